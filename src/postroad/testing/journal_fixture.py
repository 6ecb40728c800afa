"""What the rules of journals stand on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from postroad.blobs import Blobs
from postroad.journal import Journal, JournalEvent, every_event
from postroad.testing.conformance import Suite

T0 = 1_767_453_739_640
"""The time from which the suites count, in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFixture:
    """An empty journal, and the blobs in which it keeps what is large."""

    journal: Journal
    blobs: Blobs


JournalGround = JournalFixture  # The name that this class had before.


class JournalRules(Suite):
    """The fixtures of every part of the suite."""

    @pytest.fixture
    def journal(self, ground: JournalFixture) -> Journal:
        return ground.journal


def pending(request_id: str, ms: int = 0, **given: Any) -> JournalEvent:
    """A task that waits, `ms` milliseconds after T0."""
    properties = {"requestId": request_id, "name": "scrape", **given.pop("properties", {})}
    return made("Task Pending", request_id, ms, properties=properties, **given)


def heartbeat(request_id: str, ms: int = 0, **given: Any) -> JournalEvent:
    """A task that lives."""
    properties = {
        "requestId": request_id,
        "effectiveUntil": 1_767_453_800,
        "heartbeatNumber": 1,
        "elapsedMs": 5,
        "workerId": "w-1",
        "processId": 7,
        "memoryUsage": {"rss": 1},
    }
    return made("Task Heartbeat", request_id, ms, properties=properties, **given)


def completed(request_id: str, ms: int = 0, *, output: Any = None, **given: Any) -> JournalEvent:
    """A task that is done."""
    properties = {"requestId": request_id, "output": output, "durationMs": 1, "exitCode": 0}
    return made("Task Completed", request_id, ms, properties=properties, **given)


def made(event_type: str, entity_id: str, ms: int = 0, *, tenant: str = "acme", **given: Any) -> JournalEvent:
    """An event of tenant acme, `ms` milliseconds after T0."""
    return JournalEvent.create(event_type, tenant_id=tenant, entity_id=entity_id, timestamp=T0 + ms, **given)


def add(journal: Journal, events: Sequence[JournalEvent]) -> None:
    """Append events that must be taken."""
    results = journal.append(events)
    assert [result.error for result in results] == [None] * len(events)
    assert [result.event_id for result in results] == [event.event_id for event in events]


def ids(events: Iterable[JournalEvent]) -> list[Any]:
    """The ids of events."""
    return [event.event_id for event in events]


def in_order(events: Iterable[JournalEvent]) -> list[Any]:
    """The ids of events in journal order."""
    return ids(sorted(events, key=lambda event: (event.timestamp, event.event_id)))


def whole(journal: Journal, index: str, **asked: Any) -> list[Any]:
    """The ids of the whole answer."""
    return ids(every_event(journal, index, tenant=asked.pop("tenant", "acme"), **asked))
