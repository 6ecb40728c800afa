"""The fixture of the journal suite, and events to append."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from postroad.blobs import Blobs
from postroad.journal import Journal, JournalEvent, TaskState, every_event, task_state
from postroad.testing.conformance import Suite

T0 = 1_767_453_739_640
"""The time from which the suites count, in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFixture:
    """An empty journal, and the blobs in which it stores large properties.

    Attributes:
        journal: The adapter under test.
        blobs: The blobs.
    """

    journal: Journal
    blobs: Blobs


class JournalRules(Suite):
    """The fixtures of every part of the suite."""

    @pytest.fixture
    def journal(self, ground: JournalFixture) -> Journal:
        return ground.journal


def made(event_type: str, entity_id: str, ms: int = 0, *, tenant: str = "acme", **given: Any) -> JournalEvent:
    """Return an event of tenant acme, `ms` milliseconds after T0."""
    return JournalEvent.create(event_type, tenant_id=tenant, entity_id=entity_id, timestamp=T0 + ms, **given)


def _task(event_type: str, fixed: dict[str, Any], request_id: str, ms: int = 0, **given: Any) -> JournalEvent:
    properties = {"requestId": request_id, **fixed, **given.pop("properties", {})}
    return made(event_type, request_id, ms, properties=properties, **given)


Maker = Callable[..., JournalEvent]
_RUN: dict[str, Any] = {"effectiveUntil": 1_767_453_800, "workerId": "w-1", "processId": 7}
_ALIVE = {**_RUN, "heartbeatNumber": 1, "elapsedMs": 5, "memoryUsage": {"rss": 1}}
_FAILURE = {"error": "no", "errorCategory": "auth", "retryCount": 1, "source": "worker"}
pending: Maker = partial(_task, "Task Pending", {"name": "scrape"})
started: Maker = partial(_task, "Task Processing Started", _RUN)
heartbeat: Maker = partial(_task, "Task Heartbeat", _ALIVE)
failed: Maker = partial(_task, "Task Failed", _FAILURE)
timed_out: Maker = partial(_task, "Task Timeout", {"timeoutMs": 5, "elapsedMs": 6, "signal": "SIGKILL"})
cancelled: Maker = partial(_task, "Task Cancelled", {"reason": "enough"})


def completed(request_id: str, ms: int = 0, *, output: Any = None, **given: Any) -> JournalEvent:
    return _task("Task Completed", {"output": output, "durationMs": 1, "exitCode": 0}, request_id, ms, **given)


def add(journal: Journal, events: Sequence[JournalEvent]) -> None:
    """Append events that must be accepted."""
    results = journal.append(events)
    assert [result.error for result in results] == [None] * len(events)
    assert [result.event_id for result in results] == [event.event_id for event in events]


def ids(events: Iterable[JournalEvent]) -> list[Any]:
    return [event.event_id for event in events]


def in_order(events: Iterable[JournalEvent]) -> list[Any]:
    return ids(sorted(events, key=lambda event: (event.timestamp, event.event_id)))


def whole(journal: Journal, index: str, **asked: Any) -> list[Any]:
    """Return the ids of all pages of a query."""
    return ids(every_event(journal, index, tenant=asked.pop("tenant", "acme"), **asked))


def latest(journal: Journal, request_id: str) -> JournalEvent:
    """Return the latest event of a task that has one."""
    found = journal.latest("acme", "TASK", request_id)
    assert found is not None
    return found


def state_of(journal: Journal, request_id: str, **given: Any) -> TaskState:
    """Return the state of a task that has one."""
    state = task_state(journal, "acme", request_id, **given)
    assert state is not None
    return state
