"""All rows, in the order in which they are measured."""

from __future__ import annotations

from benchmarks import (
    agents,
    bus,
    bus_processes,
    bus_sqs,
    codec,
    earlier,
    embedded,
    growth,
    http_streams,
    inbox,
    jobs,
    journal,
    notifications,
    operations,
    outbox_add,
    outbox_dispatch,
    outbox_latency,
    outbox_steady,
    processes,
    push,
    schedules,
    sqs,
    tasks,
    topology,
)
from benchmarks.frame import Row

MODULES = (
    codec,
    embedded,
    growth,
    processes,
    sqs,
    bus,
    bus_processes,
    bus_sqs,
    earlier,
    outbox_add,
    outbox_dispatch,
    outbox_latency,
    outbox_steady,
    inbox,
    journal,
    topology,
    operations,
    tasks,
    schedules,
    jobs,
    agents,
    http_streams,
    push,
    notifications,
)

ROWS: tuple[Row, ...] = tuple(row for module in MODULES for row in module.ROWS)
