"""The records of tasks: leases and journal, written so that neither can contradict the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec

from postroad.clock import Clock
from postroad.errors import InvalidMessage, PostroadError
from postroad.items import ABSENT, Expect
from postroad.journal import Appends, JournalEvent, OwingItems, owing_nothing
from postroad.ports import Store
from postroad.queues import Delivery, OutgoingMessage, Queue
from postroad.tasks.leases import Held, Lease, lease_key, open_job_key
from postroad.tasks.log import tell


class WakeUp(msgspec.Struct, frozen=True, rename="camel"):
    """A task of a job is in this state: it ended, or is pending again."""

    tenant_id: str
    job_id: str
    task_id: str
    state: str

    @classmethod
    def read(cls, delivery: Delivery) -> Self:
        """The wake-up of a delivery, or `InvalidMessage`."""
        try:
            return msgspec.json.decode(delivery.body, type=cls)
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidMessage(f"the message is no wake-up: {error}") from error


class WakeUps:
    """Rings for dispatchers, on the queue beside the one that a task was sent to."""

    def __init__(self, backend: Store) -> None:
        self._backend = backend
        self._queues: dict[str, Queue] = {}

    def send(self, tenant: str, lease: Lease, *, state: str) -> None:
        """Tell dispatchers the state of a task when it is a job's; a failure is made good by their looks."""
        if lease.job_id is None or lease.task_id is None or not lease.queue:
            return
        wake_up = WakeUp(tenant, lease.job_id, lease.task_id, state)
        try:
            self._queue(lease.queue).send([OutgoingMessage(msgspec.json.encode(wake_up))])
        except PostroadError as error:
            tell("job_wake_failed", job_id=lease.job_id, error=error)

    def _queue(self, name: str) -> Queue:
        if name not in self._queues:
            self._queues[name] = self._backend.queue(f"{self._backend.stage_prefix}{name}-dispatch")
        return self._queues[name]


Then = Callable[[bool], None]
_PAGE = 500
LEASES = "leases/"
decode_lease = msgspec.json.Decoder(Lease).decode


class Written(msgspec.Struct, frozen=True):
    """Whether the lease was as expected and is written, how it stands, and whether the events are in the journal."""

    ok: bool
    held: Held | None
    recorded: bool = False


class TaskRecords:
    """Reads and writes the leases of tasks together with their events."""

    def __init__(self, backend: Store, journal: Appends | None = None) -> None:
        self._backend = backend
        self._items = backend.items()
        recorded_in: Appends = backend.journal() if journal is None else journal
        self._leases = OwingItems(Lease, Held, self._items, backend.blobs(), recorded_in)
        # A journal that was brought along has commits of its own.
        self.together = journal is None and backend.joins_writes
        self._wake_ups = WakeUps(backend)

    def put(self, tenant: str, request_id: str, lease: Lease, *, expect: Held | None) -> Written:
        """Write the lease alone, if it is still as expected."""
        return self._put(lease_key(tenant, request_id), lease, _version(expect))

    def remove(self, tenant: str, request_id: str, *, expect: Held) -> None:
        """Forget the lease, if it is still as expected."""
        self._items.delete(lease_key(tenant, request_id), expect=expect.version)

    def open_job(self, tenant: str, job_id: str) -> None:
        """Have dispatchers look at a job again, of which a task is about to run once more."""
        self._items.put(open_job_key(tenant, job_id), b"1")

    def wake_job(self, tenant: str, lease: Lease) -> None:
        """Tell dispatchers that a task of a job is pending again; without it they see it at their next look."""
        self._wake_ups.send(tenant, lease, state="pending")

    def read(self, tenant: str, request_id: str) -> Held | None:
        """The lease as it stands."""
        return self._leases.read(lease_key(tenant, request_id))

    def read_many(self, tenant: str, prefix: str) -> dict[str, Held]:
        """The leases of all tasks whose request id begins like this, by what follows; one request for many."""
        start, cursor = lease_key(tenant, prefix), None
        found: dict[str, Held] = {}
        while True:
            page = self._items.scan(start, limit=_PAGE, cursor=cursor)
            for item in page.items:
                found[item.key.removeprefix(start)] = self._leases.decoded(item)
            if (cursor := page.cursor) is None:
                return found

    def write(
        self,
        tenant: str,
        request_id: str,
        lease: Lease,
        events: Sequence[JournalEvent] = (),
        *,
        expect: Held | None,
        then: Then = lambda recorded: None,
    ) -> Written:
        """Write the lease if it is still as expected, record what it owes and the events, and do what follows."""
        key = lease_key(tenant, request_id)
        version = _version(expect)
        due = [*self._leases.owed(lease), *events]
        lease = lease.with_last_of(events)
        if self.together:
            with suppress(PostroadError):
                written = self._write_together(key, lease, due, version, then)
                if written.ok:
                    self._wake(tenant, lease)
                return written
        path = f"{LEASES}{request_id}/{lease.run}-{lease.token}.json"
        written = self._put(key, self._leases.owing(lease, due, path), version)
        if not written.ok:
            return written
        recorded = self.record(due)
        self._follow(then, recorded)
        self._wake(tenant, lease)
        return Written(True, self._paid(written.held) if recorded else written.held, recorded)

    def record(self, events: Sequence[JournalEvent]) -> bool:
        """Append the events; False, and a line in the log, when the journal takes them not."""
        try:
            self._leases.append(events)
        except PostroadError as error:
            tell("task_record_failed", error=error, events=[event.event_type for event in events])
            return False
        return True

    def record_owed(self, held: Held) -> bool:
        """Append what the lease owes the journal; whether nothing is owed now."""
        recorded = self.record(self._leases.owed(held.lease))
        if recorded:
            self._paid(held)
        return recorded

    def _write_together(
        self, key: str, lease: Lease, due: Sequence[JournalEvent], version: int | Expect, then: Then
    ) -> Written:
        with self._backend.transaction():
            written = self._put(key, owing_nothing(lease), version)
            if written.ok:
                self._leases.append(due)
                then(True)
        return msgspec.structs.replace(written, recorded=written.ok)

    def _follow(self, then: Then, recorded: bool) -> None:
        try:
            then(recorded)
        except PostroadError as error:
            # The message comes back by itself, and the lease tells what to do with it.
            tell("task_ack_failed", error=error)

    def _wake(self, tenant: str, lease: Lease) -> None:
        if lease.outcome is not None:
            self._wake_ups.send(tenant, lease, state=lease.outcome.state)

    def _put(self, key: str, lease: Lease, version: int | Expect) -> Written:
        ok, found = self._leases.put(key, lease, version)
        return Written(ok, found)

    def append(self, events: Sequence[JournalEvent]) -> None:
        """Append the events, or raise why one of them was refused."""
        self._leases.append(events)

    def _paid(self, held: Held | None) -> Held | None:
        """The lease as known to owe nothing; the item says so at its next write."""
        if held is None or not held.lease.owes:
            return held
        self._leases.forget(held.lease)
        return Held(owing_nothing(held.lease), held.version)


def _version(expect: Held | None) -> int | Expect:
    return ABSENT if expect is None else expect.version


WITH_ITS_JOB: Final = "the job was cancelled"
"""The reason of a task that ends because its job does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskId:
    """Which run of which task of whom."""

    tenant_id: str
    request_id: str
    run: int
    job_id: str | None = None
    task_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFactory:
    """Writes events in the name of one part of the system."""

    app: str
    environment: str
    origin: str
    clock: Clock
    worker_id: str | None = None

    def event(self, event_type: str, task: TaskId, *, token: int | None = None, **properties: Any) -> JournalEvent:
        """An event of now; properties that are None are left out."""
        context = {"source": "system", "environment": self.environment, "origin": self.origin}
        if self.worker_id is not None:
            context["workerId"] = self.worker_id
        ids = {"requestId": task.request_id, "jobId": task.job_id, "taskId": task.task_id, "run": task.run}
        given = {**ids, "token": token, **properties}
        return JournalEvent.create(
            event_type,
            tenant_id=task.tenant_id,
            entity_id=task.request_id,
            app=self.app,
            context=context,
            properties={name: value for name, value in given.items() if value is not None or name == "output"},
            clock=self.clock,
        )

    def now_ms(self) -> int:
        """The wall clock in milliseconds."""
        return int(self.clock.now().timestamp() * 1_000)
