"""The workers of a tenant: each stores that it is there, and what it runs.

It does so every 30 seconds. Where each write is a request that costs money, a worker that runs nothing does so every
two minutes.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from postroad.clock import Clock
from postroad.errors import PostroadError
from postroad.items import Items
from postroad.tasks.messages import scan
from postroad.tasks.processes import resident_bytes

RENEW_SECONDS: Final = 30.0
_IDLE: Final = timedelta(seconds=120)
FORGET: Final = timedelta(hours=1)
"""A worker that was not seen for so long is forgotten."""
_PAGE: Final = 100


class RunningTask(msgspec.Struct, frozen=True):
    """A task in a child of a worker; `rss` is the child's resident memory in bytes."""

    request_id: str
    name: str
    started_at: datetime
    rss: int


class WorkerShown(msgspec.Struct, frozen=True):
    """A worker as it was when it was last seen."""

    worker_id: str
    host: str
    pid: int
    queues: list[str]
    concurrency: int
    seen_at: datetime
    running: list[RunningTask]


class WorkerPage(msgspec.Struct, frozen=True):
    """Workers by id; `cursor` is None on the last page."""

    items: list[WorkerShown]
    cursor: str | None


class RunningTasks:
    """What the threads of one worker run. They may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[int, tuple[str, str, datetime, int]] = {}

    @contextmanager
    def noted(self, request_id: str, name: str, started_at: datetime, pid: int) -> Iterator[None]:
        """Count a task among those that run, inside the block; `pid` is its child."""
        me = threading.get_ident()
        with self._lock:
            self._tasks[me] = (request_id, name, started_at, pid)
        try:
            yield
        finally:
            with self._lock:
                del self._tasks[me]

    def pids(self) -> set[int]:
        """Return the children that run a task now."""
        with self._lock:
            return {pid for _, _, _, pid in self._tasks.values()}

    def now(self) -> list[RunningTask]:
        """Return what runs now, the longest first."""
        with self._lock:
            found = list(self._tasks.values())
        tasks = [RunningTask(request_id, name, at, resident_bytes(pid)) for request_id, name, at, pid in found]
        return sorted(tasks, key=lambda task: task.started_at)


class Presence:
    """The item of one worker, renewed by `renew` and removed by `end`."""

    def __init__(
        self,
        items: Items,
        clock: Clock,
        running: RunningTasks,
        *,
        tenant: str,
        worker_id: str,
        queues: Sequence[str],
        concurrency: int,
        is_far: bool = False,
    ) -> None:
        self._items = items
        self._clock = clock
        self._running = running
        self._tenant = tenant
        self._is_far = is_far
        self._stored_at = self._looked_at = datetime.min.replace(tzinfo=UTC)
        self._key = _prefix(tenant) + worker_id
        self._shown = WorkerShown(
            worker_id=worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=list(queues),
            concurrency=concurrency,
            seen_at=clock.now(),
            running=[],
        )

    def renew(self) -> int:
        """Store that the worker is there, forget others that are gone for long, and return how many these were."""
        now, running = self._clock.now(), self._running.now()
        if self._is_far and not running and not self._shown.running and now - self._stored_at < _IDLE:
            return 0
        shown = msgspec.structs.replace(self._shown, seen_at=now, running=running)
        self._items.put(self._key, msgspec.json.encode(shown))
        self._shown, self._stored_at = shown, now
        if self._is_far and now - self._looked_at < FORGET:
            return 0
        self._looked_at = now
        gone = [each for each in _every(self._items, self._tenant) if now - each.seen_at > FORGET]
        for each in gone:
            self._items.delete(_prefix(self._tenant) + each.worker_id)
        return len(gone)

    def end(self) -> None:
        """Remove the item, if the store answers."""
        with suppress(PostroadError):
            self._items.delete(self._key)


def worker_page(items: Items, clock: Clock, tenant: str, *, limit: int, after: str | None) -> WorkerPage:
    """Return the workers of the tenant behind the id `after`, by id, without those that are gone for long."""
    now = clock.now()
    found = [
        each
        for each in _every(items, tenant)
        if (after is None or each.worker_id > after) and now - each.seen_at <= FORGET
    ]
    found.sort(key=lambda each: each.worker_id)
    return WorkerPage(found[:limit], found[limit - 1].worker_id if len(found) > limit else None)


def _every(items: Items, tenant: str) -> Iterator[WorkerShown]:
    for item in scan(items, _prefix(tenant), limit=_PAGE):
        yield msgspec.json.decode(item.value, type=WorkerShown)


def _prefix(tenant: str) -> str:
    return f"{tenant}/WORKER#"
