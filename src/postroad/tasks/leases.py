"""The lease of a task: which worker may run it, how many attempts it had, and its outcome.

Each task has one item, changed by conditional writes. Taking the lease increments its token; refreshing and settling
need the same owner and token, so a worker that slept through its lease changes nothing. The events of a change are
written with the item, so that the lease and the journal never contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, Self

import msgspec

from postroad.errors import InvalidMessage, NotPermitted, PostroadError
from postroad.items import ABSENT, Expect
from postroad.journal import (
    CANCELLED,
    EVENT_TO_STATE,
    FAILED,
    Appends,
    Journal,
    JournalEvent,
    Owing,
    OwingItems,
    TaskProgress,
    TaskState,
    owing_nothing,
    task_state,
)
from postroad.ports import Store
from postroad.queues import Delivery, OutgoingMessage, legible
from postroad.tasks.messages import EventFactory, TaskId, log_event, scan


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """The end of a run."""

    event_type: str
    event_id: str
    at: int
    """When it ended, in milliseconds."""

    @property
    def state(self) -> str:
        """`completed`, `failed` or `cancelled`."""
        return EVENT_TO_STATE[self.event_type]


class Failure(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why the last attempt failed."""

    error: str
    error_category: str
    crash: dict[str, Any] | None = None
    traceback: list[str] | None = None
    last_lines: list[str] | None = None


class Lease(Owing, frozen=True, kw_only=True, rename="camel"):
    """The state of one task in its item."""

    run: int = 1
    token: int = 0
    attempts: int = 0
    owner: str | None = None
    effective_until: int = 0
    """Seconds since 1970."""
    sent_at: int | None = None
    """When the message of this run was sent, in milliseconds; None before."""
    due_at: int | None = None
    """When the message of this run is to be sent, in milliseconds, if it was put off; None for at once."""
    outcome: Outcome | None = None
    name: str = ""
    digest: str = ""
    """A hash of name and input."""
    queue: str = ""
    app: str = ""
    job_id: str | None = None
    task_id: str | None = None
    begun_at: int = 0
    """When a worker could receive the run for the first time, in milliseconds."""
    failure: Failure | None = None
    last_event_type: str | None = None
    """The last event that was recorded with a write of this item; None if it is not known."""
    last_event_at: int | None = None
    progress: TaskProgress | None = None
    """What the last attempt reported last."""

    def with_last_of(self, events: Sequence[JournalEvent]) -> Lease:
        """Return the lease with the last of these events, which are recorded with it."""
        if not events:
            return self
        last = events[-1]
        return msgspec.structs.replace(self, last_event_type=last.event_type, last_event_at=last.timestamp)

    def task(self, tenant: str, request_id: str) -> TaskId:
        """Return the run that the lease is about."""
        return TaskId(tenant_id=tenant, request_id=request_id, run=self.run, job_id=self.job_id, task_id=self.task_id)

    @property
    def is_unsent(self) -> bool:
        """Whether the message of this run is to be sent at once and is not known to be sent."""
        return self.sent_at is None and self.outcome is None and self.due_at is None

    def is_live(self, now: float) -> bool:
        """Return whether a worker holds it."""
        return self.owner is not None and now < self.effective_until

    def is_held_by(self, owner: str, token: int) -> bool:
        """Return whether this owner still holds it with this token."""
        return self.owner == owner and self.token == token

    def taken(self, *, owner: str, run: int, until: int, now_ms: int) -> Lease:
        """Return the lease held by its next owner; a new run starts with the first attempt."""
        again = run == self.run
        return msgspec.structs.replace(
            self,
            run=run,
            owner=owner,
            token=self.token + 1,
            attempts=self.attempts + 1 if again else 1,
            effective_until=until,
            sent_at=self.sent_at or now_ms,
            failure=self.failure if again else None,
            progress=None,
        )

    def freed(self, *, attempts: int | None = None, failure: Failure | None = None) -> Lease:
        """Return the lease without an owner."""
        return msgspec.structs.replace(
            self,
            owner=None,
            effective_until=0,
            attempts=self.attempts if attempts is None else attempts,
            failure=failure or self.failure,
        )

    def settled(self, event: JournalEvent) -> Lease:
        """Return the lease of a run that ended with this event."""
        outcome = Outcome(event.event_type, str(event.event_id), event.timestamp)
        return msgspec.structs.replace(self, owner=None, effective_until=0, outcome=outcome)

    def again(self, *, now_ms: int) -> Lease:
        """Return the lease of the next run; tokens continue."""
        return msgspec.structs.replace(
            self,
            run=self.run + 1,
            attempts=0,
            owner=None,
            effective_until=0,
            sent_at=None,
            due_at=None,
            outcome=None,
            failure=None,
            begun_at=now_ms,
            progress=None,
        )


def first_lease(task: TaskId, name: str, queue: str, app: str, begun_at: int, digest: str = "") -> Lease:
    """Return the lease of a run that has none yet."""
    return Lease(
        run=task.run,
        name=name,
        digest=digest,
        queue=queue,
        app=app,
        job_id=task.job_id,
        task_id=task.task_id,
        begun_at=begun_at,
    )


def first_lease_in_job(tenant: str, request_id: str, name: str, queue: str, factory: EventFactory) -> Lease:
    """Return the lease of a job's task that has not begun yet."""
    job_id, _, task_id = request_id.partition(".")
    task = TaskId(tenant_id=tenant, request_id=request_id, run=1, job_id=job_id, task_id=task_id)
    return first_lease(task, name, queue, factory.app, factory.now_ms())


class Held(NamedTuple):
    """A lease as it was read or written, with the version that the next write expects."""

    lease: Lease
    version: int


def lease_key(tenant: str, request_id: str) -> str:
    """Return the key of a task's item; with an empty request id, the prefix of all leases of the tenant."""
    return f"{tenant}/LEASE#TASK#{request_id}"


def open_job_key(tenant: str, job_id: str) -> str:
    """Return the key of the item that marks a job for dispatchers."""
    return f"{tenant}/OPENJOB#{job_id}"


def lease_end(now: float, visibility_extension: float) -> int:
    """Return the end of a lease that is taken or refreshed now, in seconds rounded up."""
    return math.ceil(now + 1.5 * visibility_extension)


class WakeUp(msgspec.Struct, frozen=True, rename="camel"):
    """A message to dispatchers: a task of a job is in this state. It ended, or is pending again."""

    tenant_id: str
    job_id: str
    task_id: str
    state: str

    @classmethod
    def read(cls, delivery: Delivery) -> Self:
        """Return the wake-up of a delivery, or raise `InvalidMessage`."""
        try:
            return msgspec.json.decode(delivery.body, type=cls)
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidMessage(f"the message is not a wake-up: {error}") from error


Then = Callable[[bool], None]
"""What follows a write, such as an ack; it gets whether the events are in the journal."""
Also = Callable[[], Sequence[JournalEvent]]
"""What else happens in the commit of a write; it returns further events to record, and may run more than once."""
_PAGE = 500


def _nothing(recorded: bool) -> None:
    """Follow a write with nothing."""


LEASES = "leases/"
decode_lease = msgspec.json.Decoder(Lease).decode


class Written(NamedTuple):
    """The result of a write: whether the lease was as expected, and the lease now.

    `along`: whether what was to be done also is in the same commit.
    """

    ok: bool
    held: Held | None
    along: bool = False


class TaskRecords:
    """Reads and writes the leases of tasks together with their events."""

    def __init__(self, backend: Store, journal: Appends | None = None) -> None:
        self._backend = backend
        self._items = backend.items()
        recorded_in: Appends = backend.journal() if journal is None else journal
        self._leases = OwingItems(Lease, Held, self._items, backend.blobs(), recorded_in)
        # A journal that the caller brings has its own commits.
        self.together = journal is None and backend.joins_writes
        self._wake_ups = cache(lambda queue: backend.queue(f"{backend.stage_prefix}{queue}-dispatch"))
        self.append = self._leases.append

    def put(
        self,
        tenant: str,
        request_id: str,
        lease: Lease,
        *,
        expect: Held | None,
        owes: Sequence[JournalEvent] = (),
    ) -> Written:
        """Write the lease alone, if it is still as expected.

        The caller records the events in `owes`; where that is another write, the lease owes them until then.
        """
        if owes and not self.together:
            lease = self._owing(request_id, lease, [*self._leases.owed(lease), *owes])
        return Written(*self._leases.put(lease_key(tenant, request_id), lease, _version(expect)))

    def remove(self, tenant: str, request_id: str, *, expect: Held) -> None:
        """Delete the lease, if it is still as expected."""
        self._items.delete(lease_key(tenant, request_id), expect=expect.version)

    def open_job(self, tenant: str, job_id: str) -> None:
        """Mark a job for dispatchers, because one of its tasks is about to run again."""
        self._items.put(open_job_key(tenant, job_id), b"1")

    def wake_job(self, tenant: str, lease: Lease, *, state: str) -> None:
        """Send dispatchers the state of a job's task; if that fails, they see it at their next look."""
        if lease.job_id is None or lease.task_id is None or not lease.queue:
            return
        wake_up = WakeUp(tenant, lease.job_id, lease.task_id, state)
        try:
            self._wake_ups(lease.queue).send([OutgoingMessage(msgspec.json.encode(wake_up))])
        except PostroadError as error:
            log_event("job_wake_failed", job_id=lease.job_id, error=error)

    def read(self, tenant: str, request_id: str) -> Held | None:
        """Return the lease of a task, or None."""
        return self._leases.read(lease_key(tenant, request_id))

    def read_many(self, tenant: str, prefix: str) -> dict[str, Held]:
        """Return the leases of all tasks whose request id begins with `prefix`, by the rest of the id."""
        start = lease_key(tenant, prefix)
        found = scan(self._items, start, limit=_PAGE)
        return {item.key.removeprefix(start): self._leases.decoded(item) for item in found}

    def write(
        self,
        tenant: str,
        request_id: str,
        lease: Lease,
        events: Sequence[JournalEvent] = (),
        *,
        expect: Held | None,
        then: Then = _nothing,
        also: Also | None = None,
    ) -> Written:
        """Write the lease if it is still as expected, record the events and what the lease owes, and call `then`.

        Where all this is one commit it holds `also`, too; elsewhere that is left out.
        """
        key = lease_key(tenant, request_id)
        version = _version(expect)
        due = [*self._leases.owed(lease), *events]
        lease = lease.with_last_of(events)
        if self.together:
            plain = owing_nothing(lease) if lease.owes else lease

            def unit() -> tuple[bool, Held | None]:
                ok, held = self._leases.put(key, plain, version)
                if ok:
                    then(True)
                    record(() if also is None else also())
                return ok, held

            with suppress(PostroadError):
                record = self._leases.prepared(due)
                ok, held = self._backend.together(unit)
                if ok and lease.outcome is not None:
                    self.wake_job(tenant, lease, state=lease.outcome.state)
                return Written(ok, held, ok and also is not None)
        ok, held = self._leases.put(key, self._owing(request_id, lease, due), version)
        if not ok:
            return Written(ok, held)
        recorded = self.record(due)
        try:
            then(recorded)
        except PostroadError as error:
            # The message comes back by itself, and the lease says what to do with it.
            log_event("task_ack_failed", error=error)
        if lease.outcome is not None:
            self.wake_job(tenant, lease, state=lease.outcome.state)
        return Written(True, self.paid(held) if recorded and held is not None else held)

    def cancel(
        self,
        tenant: str,
        request_id: str,
        factory: EventFactory,
        *,
        reason: str,
        unbegun: Callable[[], Lease],
        run: int | None = None,
    ) -> bool:
        """Cancel a task, or only this run of it; return False if it has ended.

        `unbegun` returns the lease of a task that has none yet.
        """
        while True:
            held = self.read(tenant, request_id)
            lease = unbegun() if held is None else held.lease
            if lease.outcome is not None or run not in (None, lease.run):
                return False
            event = factory.event(CANCELLED, lease.task(tenant, request_id), reason=reason)
            if self.write(tenant, request_id, lease.settled(event), [event], expect=held).ok:
                return True

    def refuse(
        self,
        task: TaskId,
        factory: EventFactory,
        error: str,
        *,
        lease: Lease,
        expect: Held | None,
        then: Then = _nothing,
    ) -> bool:
        """Fail a run that no worker could ever run; return False if its lease is not as expected."""
        event = factory.event(
            FAILED, task, error=legible(error), errorCategory="validation", retryCount=lease.attempts, source="worker"
        )
        settled = lease.settled(event)
        return self.write(task.tenant_id, task.request_id, settled, [event], expect=expect, then=then).ok

    def record(self, events: Sequence[JournalEvent]) -> bool:
        """Append the events; if the journal rejects them, log it and return False."""
        try:
            self.append(events)
        except PostroadError as error:
            log_event("task_record_failed", error=error, events=[event.event_type for event in events])
            return False
        return True

    def keep(self) -> None:
        """Return once all that can be read survives a power cut: a commit is seen before it is on the disk."""
        if self.together:
            # Who may only read a file cannot do more.
            with suppress(NotPermitted):
                self._backend.together(lambda: None, removes=True)

    def owed(self, held: Held) -> list[JournalEvent]:
        """Return the events that the lease owes to the journal."""
        return self._leases.owed(held.lease) if held.lease.owes else []

    def record_owed(self, held: Held) -> bool:
        """Append the events that the lease owes; return whether it owes nothing now."""
        recorded = self.record(self._leases.owed(held.lease))
        if recorded:
            self.paid(held)
        return recorded

    def _owing(self, request_id: str, lease: Lease, events: Sequence[JournalEvent]) -> Lease:
        return self._leases.owing(lease, events, f"{LEASES}{request_id}/{lease.run}-{lease.token}.json")

    def paid(self, held: Held) -> Held:
        """Return the lease without the owed events, which are recorded; the item says so at its next write."""
        if not held.lease.owes:
            return held
        self._leases.forget(held.lease)
        return Held(owing_nothing(held.lease), held.version)


def current_state(
    journal: Journal, records: TaskRecords, tenant: str, request_id: str, at: int | None = None
) -> TaskState | None:
    """Return the state of a task, now or at a moment in milliseconds; None before its first event.

    Now it has the progress of the lease, which is younger than that of the last heartbeat.
    """
    state = task_state(journal, tenant, request_id, at)
    if at is None and state is not None and state.state in ("processing", "failed"):
        held = records.read(tenant, request_id)
        if held is not None and held.lease.run == state.run and held.lease.progress is not None:
            return msgspec.structs.replace(state, progress=held.lease.progress)
    return state


def _version(expect: Held | None) -> int | Expect:
    return ABSENT if expect is None else expect.version
