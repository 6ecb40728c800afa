"""All rows, in the order in which they are measured."""

from __future__ import annotations

from benchmarks import agents, bus, bus_processes, bus_sqs, codec, embedded, growth, journal, outbox_add, processes, sqs
from benchmarks.frame import Row

_MODULES = (codec, embedded, growth, processes, sqs, bus, bus_processes, bus_sqs, outbox_add, journal, agents)

ROWS: tuple[Row, ...] = tuple(row for module in _MODULES for row in module.ROWS)
