"""Measurements beside the peers, under rules that let either side lose: `python -m benchmarks --help`."""
