"""The lease of a task: who may run it, how often that was tried, and what came of it.

One item per task under conditional writes. Whoever takes it gets the next token; refreshing and settling need the same
owner and token, so that a worker that slept through its lease changes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from postroad.journal import EVENT_TO_STATE, JournalEvent, Owing


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """How a run ended."""

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
    """The state of one task as its item holds it."""

    run: int = 1
    token: int = 0
    attempts: int = 0
    owner: str | None = None
    effective_until: int = 0
    """Seconds since 1970."""
    sent_at: int | None = None
    """When the message of this run was sent, in milliseconds; None before."""
    outcome: Outcome | None = None
    name: str = ""
    digest: str = ""
    """Tells name and input apart from others."""
    queue: str = ""
    app: str = ""
    job_id: str | None = None
    task_id: str | None = None
    begun_at: int = 0
    """When the run was submitted, in milliseconds."""
    failure: Failure | None = None
    last_event_type: str | None = None
    """What was recorded last with a write of this item; None where that is not known."""
    last_event_at: int | None = None

    def with_last_of(self, events: Sequence[JournalEvent]) -> Lease:
        """The lease that knows the last of these events, which are recorded with it."""
        if not events:
            return self
        last = events[-1]
        return msgspec.structs.replace(self, last_event_type=last.event_type, last_event_at=last.timestamp)

    def is_live(self, now: float) -> bool:
        """Whether somebody holds it."""
        return self.owner is not None and now < self.effective_until

    def is_held_by(self, owner: str, token: int) -> bool:
        """Whether this taking of the lease still counts."""
        return self.owner == owner and self.token == token

    def taken(self, *, owner: str, run: int, until: int, now_ms: int) -> Lease:
        """The lease in the hands of its next owner; a new run starts counting anew."""
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
        )

    def freed(self, *, attempts: int | None = None, failure: Failure | None = None) -> Lease:
        """The lease in nobody's hands."""
        return msgspec.structs.replace(
            self,
            owner=None,
            effective_until=0,
            attempts=self.attempts if attempts is None else attempts,
            failure=failure or self.failure,
        )

    def settled(self, event: JournalEvent) -> Lease:
        """The lease of a run that ended with this event."""
        return msgspec.structs.replace(
            self,
            owner=None,
            effective_until=0,
            outcome=Outcome(event.event_type, str(event.event_id), event.timestamp),
        )

    def again(self, *, now_ms: int) -> Lease:
        """The lease of the next run; tokens go on."""
        return msgspec.structs.replace(
            self,
            run=self.run + 1,
            attempts=0,
            owner=None,
            effective_until=0,
            sent_at=None,
            outcome=None,
            failure=None,
            begun_at=now_ms,
        )


class Held(msgspec.Struct, frozen=True):
    """A lease as it was read or written, with the version that the next write expects."""

    lease: Lease
    version: int


def leases_of(tenant: str) -> str:
    """What the keys of a tenant's leases begin with."""
    return f"{tenant}/LEASE#TASK#"


def lease_key(tenant: str, request_id: str) -> str:
    """The key of a task's item."""
    return f"{leases_of(tenant)}{request_id}"


def open_job_key(tenant: str, job_id: str) -> str:
    """The key of the item that has dispatchers look at a job."""
    return f"{tenant}/OPENJOB#{job_id}"


def lease_end(now: float, visibility_extension: float) -> int:
    """Until when a lease taken or refreshed now is good, in seconds rounded up."""
    return math.ceil(now + 1.5 * visibility_extension)


class Take(msgspec.Struct, frozen=True):
    """Run it."""


class Drop(msgspec.Struct, frozen=True):
    """Ack it: the run ended, or a later one took its place."""

    why: Literal["known", "older"]


class HandBack(msgspec.Struct, frozen=True):
    """Somebody else runs it; look again when the lease ends."""

    seconds: float


class Quarantine(msgspec.Struct, frozen=True):
    """It was tried often enough. `lost`: the last worker never said what became of its attempt."""

    lost: bool


Receipt = Take | Drop | HandBack | Quarantine


def decide(lease: Lease | None, *, run: int, now: float, max_attempts: int) -> Receipt:
    """What the lease says about a message of this run."""
    if lease is None or run > lease.run:
        return Take()
    if run < lease.run:
        return Drop("older")
    if lease.outcome is not None:
        return Drop("known")
    if lease.is_live(now):
        return HandBack(max(0.0, lease.effective_until - now))
    if lease.attempts >= max_attempts:
        return Quarantine(lost=lease.owner is not None)
    return Take()


def pause_before_retry(attempt: int, *, base: float, cap: float, chance: float) -> float:
    """Seconds until the next attempt: doubled each time, scattered, never above the cap."""
    return float(min(base * 2.0 ** min(attempt - 1, 60) * (1 + chance), cap))


def pause_while_unknown(age: float, *, grace: float) -> float | None:
    """Seconds until a worker may look again at a task whose name it does not know; None when the grace is over.

    The pause grows with the age of the run: a worker that knows the name gets a young task soon, and an old one does
    not use up the receives that its queue allows.
    """
    left = grace - age
    return None if left <= 0 else min(max(1.0, age / 2), max(60.0, grace / 30), left)
