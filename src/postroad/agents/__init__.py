"""Agents: subscriptions and ordered fan-out, on one SQLite file and on AWS."""
