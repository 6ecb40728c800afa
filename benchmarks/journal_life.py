"""The life of tasks as a journal sees it: fifty at a time, five events each, in the order of time."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

from postroad.journal import JournalEvent
from postroad.journal.event import new_event_id

AT_ONCE = 50
STEP_MS = 3
T0 = 1_767_453_739_640
CONTEXT = {"source": "system", "environment": "prod", "origin": "sqs-worker", "workerId": "worker-1"}


class Life:
    """Makes events that never end, and remembers what can be asked about them."""

    tenant = "acme"

    def __init__(self) -> None:
        self.finished: list[str] = []
        self.times: list[int] = [T0]
        self._now = T0
        self._stories = [_story(_name()) for _ in range(AT_ONCE)]
        self._turn = itertools.cycle(range(AT_ONCE))

    @property
    def questions(self) -> list[tuple[str, dict[str, Any]]]:
        """Ways to ask for a page that has a hundred events and more behind it."""
        heartbeat = {"event_type": "Task Heartbeat"}
        return [("PK", {}), ("GSI2", {"app": "shop"}), ("GSI4", heartbeat), ("GSI6", {**heartbeat, "app": "shop"})]

    def events(self, count: int) -> list[JournalEvent]:
        """The next events."""
        return [self._event() for _ in range(count)]

    def _event(self) -> JournalEvent:
        place = next(self._turn)
        told = next(self._stories[place], None)
        if told is None:
            self._stories[place] = _story(_name())
            told = next(self._stories[place])
        event_type, properties = told
        self._now += STEP_MS
        if event_type == "Task Completed":
            self.finished.append(properties["requestId"])
            self._remember()
        return JournalEvent(
            event_type=event_type,
            entity_type="TASK",
            entity_id=properties["requestId"],
            tenant_id=self.tenant,
            app="shop",
            timestamp=self._now,
            event_id=new_event_id(self._now),
            context=CONTEXT,
            properties=properties,
        )

    def _remember(self) -> None:
        # A page from here on has its hundred heartbeats: they are two events of five.
        early = self._now - 400 * STEP_MS
        if early > self.times[-1]:
            self.times.append(early)


def _name() -> str:
    return f"req-{uuid.uuid4()}"


def _story(request_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What happens to one task."""
    mine = {"requestId": request_id, "run": 1}
    worker = {**mine, "token": 1, "workerId": "worker-1", "processId": 12_345, "effectiveUntil": 1_767_453_800}
    beat = {"elapsedMs": 20_000, "memoryUsage": {"rss": 25_600_000}}
    yield "Task Pending", {**mine, "name": "scrape-store", "input": {"storeId": "store-123", "depth": "detailed"}}
    yield "Task Processing Started", {**worker, "attemptNumber": 1}
    yield "Task Heartbeat", {**worker, **beat, "heartbeatNumber": 1}
    yield "Task Heartbeat", {**worker, **beat, "heartbeatNumber": 2}
    yield "Task Completed", {**mine, "token": 1, "output": {"items": 12}, "durationMs": 45_000, "exitCode": 0}
