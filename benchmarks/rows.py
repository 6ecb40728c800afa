"""All rows, in the order in which they are measured."""

from __future__ import annotations

import functools
from types import ModuleType

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
    pages,
    power_cuts,
    processes,
    proof,
    push,
    schedules,
    sqs,
    surfaces,
    tasks,
    topology,
)
from benchmarks.frame import Row
from benchmarks.results import code_hash

_QUEUES = ("engine", "queues")
_BUS = ("bus", "events", "receiving", "topics")
_OUTBOX = ("events", "outbox")
_TASKS = (*_QUEUES, "items", "journal", "tasks")
_SURFACES = (*_QUEUES, "dashboard", "http", "journal", "operations", "up", "views")

MEASURED: dict[ModuleType, tuple[str, ...]] = {
    codec: ("events",),
    embedded: _QUEUES,
    growth: _QUEUES,
    processes: _QUEUES,
    sqs: ("connections", "queues"),
    bus: _BUS,
    bus_processes: (*_BUS, *_QUEUES),
    bus_sqs: (*_BUS, "connections", "queues"),
    earlier: (*_BUS, *_QUEUES),
    outbox_add: _OUTBOX,
    outbox_dispatch: _OUTBOX,
    outbox_latency: _OUTBOX,
    outbox_steady: _OUTBOX,
    inbox: ("events", "inbox"),
    journal: ("engine", "journal"),
    topology: (*_QUEUES, "connections", "topology"),
    operations: (*_QUEUES, "connections", "operations", "views"),
    tasks: _TASKS,
    schedules: _TASKS,
    jobs: (*_TASKS, "connections", "jobs"),
    agents: (*_QUEUES, "agents", "connections", "streams"),
    http_streams: (*_SURFACES, "agents"),
    surfaces: _SURFACES,
    pages: _SURFACES,
    push: ("notifications",),
    notifications: (*_QUEUES, "notifications", "receiving"),
    power_cuts: (*_QUEUES, "testing"),
    proof: (*_QUEUES, "testing"),
}
"""The modules with rows, in the order in which they are measured, and the folders of the package that each measures."""

ROWS: tuple[Row, ...] = tuple(row for module in MEASURED for row in module.ROWS)


@functools.cache
def code() -> dict[str, str]:
    """The name of the code that each row measures, as it is now."""
    return {
        row.name: named
        for module, folders in MEASURED.items()
        for named in [code_hash(module.__name__.rpartition(".")[2], folders)]
        for row in module.ROWS
    }
