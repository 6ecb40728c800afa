"""A payment system in small: five services, one topic, and every effect once, whoever is killed in between.

`python -m examples.transfers --dsn sqlite:///transfers.db --transfers 50 --kills 5`
"""
