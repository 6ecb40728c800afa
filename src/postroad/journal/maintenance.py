"""Maintenance of a journal: old events are removed in small steps, and kept states are compared with the events.

A task or job is removed as a whole: nothing of it goes before its last event is old enough, and nothing of a job's
tasks before the job itself may go; running tasks and open jobs stay. On DynamoDB the table's own time to live removes
events; there only an operator prunes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from postroad.errors import InvalidInput, NotSupported
from postroad.journal.event import JournalEvent
from postroad.journal.port import Entity, Journal
from postroad.journal.states import (
    JOB,
    TASK,
    KeepsStates,
    every_event,
    fold,
    progress_of_tasks,
    task_history,
    task_state,
)

DAY_MS: Final = 86_400_000
_PAGE: Final = 500
_MOST_PAGES: Final = 4
_JOB_IS_OVER: Final = frozenset({"Job Completed", "Job Cancelled"})


@runtime_checkable
class Removes(Protocol):
    """A journal that can forget events."""

    @property
    def keeps_days(self) -> int | None:
        """After how many days somebody has to remove an event; None: never, or the store does it by itself."""
        ...

    def remove(self, events: Sequence[JournalEvent]) -> None:
        """Forget these events, read with `raw`, and their blobs."""
        ...


class Pruned(msgspec.Struct, frozen=True):
    """How many old events were removed, and how many were kept because their task or job is not over."""

    removed: int = 0
    kept: int = 0


def prune(journal: Journal, tenant: str, *, before: int, told: Callable[[Pruned], Any] = lambda so_far: None) -> Pruned:
    """Remove all events of the tenant that happened before a moment in milliseconds.

    Args:
        journal: Where the events are.
        tenant: Whose events.
        before: The moment; events at it and after it stay.
        told: Hears after each step how far it is.

    Raises:
        InvalidInput: `before` is not a moment in milliseconds.
        NotSupported: The journal cannot forget events.
    """
    if type(before) is not int:
        raise InvalidInput(f"before: {before!r} is not a whole number of milliseconds since 1970", field="before")
    total = Pruned()
    for _, step in _steps(journal, tenant, before=before):
        total = Pruned(total.removed + step.removed, total.kept + step.kept)
        told(total)
    return total


class Expiry:
    """Removes what is older than the journal keeps it, a few events at a time, round after round."""

    def __init__(self, journal: Journal, tenant: str) -> None:
        self._journal = journal
        self._tenant = tenant
        self._reached: int | None = None
        """The time of the last event that was looked at; None at the beginning of a round."""

    def step(self, now: int) -> int:
        """Look at the next few events and return how many were removed."""
        if not isinstance(self._journal, Removes) or self._journal.keeps_days is None:
            return 0
        before = now - self._journal.keeps_days * DAY_MS
        steps = _steps(self._journal, self._tenant, start=self._reached, before=before, received_before=before)
        removed, self._reached = 0, None
        for _, (reached, step) in zip(range(_MOST_PAGES), steps, strict=False):
            removed, self._reached = removed + step.removed, reached
        return removed


def _steps(
    journal: Journal, tenant: str, *, before: int, start: int | None = None, received_before: int | None = None
) -> Iterator[tuple[int | None, Pruned]]:
    """Remove page after page, each in a short commit of its own; with each the time it reached, None at the end."""
    if not isinstance(journal, Removes):
        raise NotSupported("this journal cannot forget events")
    living = _Living(journal, tenant, before)
    cursor = None
    while True:
        page = journal.query("PK", tenant=tenant, start=start, end=before - 1, limit=_PAGE, cursor=cursor, raw=True)
        old = [event for event in page.events if received_before is None or (event.received_at or 0) < received_before]
        over = [event for event in old if (event.entity_type, event.entity_id) not in living]
        journal.remove(over)
        cursor = page.cursor
        yield None if cursor is None else page.events[-1].timestamp, Pruned(len(over), len(page.events) - len(over))
        if cursor is None:
            return


class _Living:
    """The tasks and jobs of which nothing may be removed yet."""

    def __init__(self, journal: Journal, tenant: str, before: int) -> None:
        self._journal = journal
        self._tenant = tenant
        self._before = before
        self._known: dict[Entity, bool] = {}

    def __contains__(self, entity: Entity) -> bool:
        if entity[0] not in (TASK, JOB):
            return False
        if entity not in self._known:
            self._known[entity] = self._task_lives(entity[1]) if entity[0] == TASK else self._job_lives(entity[1])
        return self._known[entity]

    def _task_lives(self, request_id: str) -> bool:
        job_id, dot, _ = request_id.partition(".")
        if dot and (JOB, job_id) in self:
            return True
        events = task_history(self._journal, self._tenant, request_id, raw=True)
        state = fold(events)
        return self._is_young(events) or (state is not None and state.state in ("pending", "processing"))

    def _job_lives(self, job_id: str) -> bool:
        events = list(every_event(self._journal, "GSI1", tenant=self._tenant, entity=(JOB, job_id), raw=True))
        is_open = bool(events) and not any(event.event_type in _JOB_IS_OVER for event in events)
        return is_open or self._is_young(events)

    def _is_young(self, events: Sequence[JournalEvent]) -> bool:
        return bool(events) and events[-1].timestamp >= self._before


TELL_EVERY = 10_000


class Difference(msgspec.Struct, frozen=True):
    """A task whose kept state is not what its events say; None where there is none."""

    request_id: str
    kept: str | None
    folded: str | None


class Verification(msgspec.Struct, frozen=True):
    """What was read, and what differs."""

    events: int
    tasks: int
    keeps_states: bool
    differences: list[Difference]


def verify(journal: Journal, tenant: str, *, told: Callable[[int], Any] = lambda events: None) -> Verification:
    """Fold all events of a tenant and compare; `told` hears now and then how many were read."""
    counted = _Counted(every_event(journal, "PK", tenant=tenant, raw=True), told)
    folded = {name: progress.state for name, progress in progress_of_tasks(counted).items() if progress.state}
    kept = _kept(journal, tenant)
    differences = [] if kept is None else list(_differences(journal, tenant, kept, folded))
    return Verification(events=counted.count, tasks=len(folded), keeps_states=kept is not None, differences=differences)


class _Counted:
    def __init__(self, events: Iterable[JournalEvent], told: Callable[[int], Any]) -> None:
        self.count = 0
        self._events, self._told = events, told

    def __iter__(self) -> Iterator[JournalEvent]:
        for event in self._events:
            self.count += 1
            if self.count % TELL_EVERY == 0:
                self._told(self.count)
            yield event


def _kept(journal: Journal, tenant: str) -> dict[str, str] | None:
    states = journal.states(tenant, app=None, since=None) if isinstance(journal, KeepsStates) else None
    return None if states is None else dict(states)


def _differences(journal: Journal, tenant: str, kept: dict[str, str], folded: dict[str, str]) -> Iterator[Difference]:
    doubtful = sorted(name for name in kept.keys() | folded.keys() if kept.get(name) != folded.get(name))
    # Events may have come in meanwhile: what looks different is looked at once more, by itself.
    now = (_kept(journal, tenant) or {}) if doubtful else {}
    for request_id in doubtful:
        state = task_state(journal, tenant, request_id, raw=True)
        name = None if state is None else state.state
        if now.get(request_id) != name:
            yield Difference(request_id, now.get(request_id), name)
