"""Maintenance of a journal: old events are removed in small steps, and stored states are compared with the events.

A task or job is removed as a whole: its events stay until its last event is old enough, and the tasks of a job stay
until the job may be removed. Running tasks and open jobs stay. On DynamoDB the table's own time to live removes events;
there only an operator prunes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import msgspec

from postroad.arguments import check
from postroad.errors import NotSupported
from postroad.journal.event import JournalEvent
from postroad.journal.port import Entity, Journal, Time, every_event
from postroad.journal.states import JOB, TASK, fold, progress_of_tasks, task_state
from postroad.journal.store import StoredJournal

DAY_MS: Final = 86_400_000
_PAGE: Final = 500
_MOST_PAGES: Final = 4
_JOB_IS_OVER: Final = frozenset({"Job Completed", "Job Cancelled"})


class Pruned(msgspec.Struct, frozen=True):
    """The number of old events that were removed, and of those kept because their task or job is not over."""

    removed: int = 0
    kept: int = 0


def prune(
    journal: Journal, tenant: str, *, before: int, progress: Callable[[Pruned], Any] = lambda so_far: None
) -> Pruned:
    """Remove all events of the tenant that happened before a moment in milliseconds.

    Args:
        journal: The journal that holds the events.
        tenant: The tenant of the events.
        before: The moment; events at it and after it stay.
        progress: Called after each step with the totals so far.

    Raises:
        InvalidInput: `before` is not a moment in milliseconds.
        NotSupported: The journal cannot remove events.
    """
    check(before, Time, "before")
    total = Pruned()
    for _, step in _steps(journal, tenant, before=before):
        total = Pruned(total.removed + step.removed, total.kept + step.kept)
        progress(total)
    return total


class Expiry:
    """Removes events that are older than the journal keeps them, a few at a time, round after round."""

    def __init__(self, journal: Journal, tenant: str) -> None:
        self._journal = journal
        self._tenant = tenant
        self._reached: int | None = None
        """The time of the last event that was examined; None at the beginning of a round."""

    def step(self, now: int) -> int:
        """Examine the next few events and return how many were removed."""
        if not isinstance(self._journal, StoredJournal) or self._journal.keeps_days is None:
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
    """Remove page after page, each in its own short commit; yield the time each page reached, None at the end."""
    if not isinstance(journal, StoredJournal):
        raise NotSupported("this journal cannot remove events")
    lives = _living(journal, tenant, before)
    cursor = None
    while True:
        page = journal.query("PK", tenant=tenant, start=start, end=before - 1, limit=_PAGE, cursor=cursor, raw=True)
        old = [event for event in page.events if received_before is None or (event.received_at or 0) < received_before]
        over = [event for event in old if not lives((event.entity_type, event.entity_id))]
        journal.remove(over)
        cursor = page.cursor
        yield None if cursor is None else page.events[-1].timestamp, Pruned(len(over), len(page.events) - len(over))
        if cursor is None:
            return


def _living(journal: Journal, tenant: str, before: int) -> Callable[[Entity], bool]:
    """Return a function that says whether the events of a task or a job may not be removed yet."""

    @cache
    def lives(entity: Entity) -> bool:
        kind, name = entity
        job_id, dot, _ = name.partition(".")
        if kind not in (TASK, JOB):
            return False
        if kind == TASK and dot and lives((JOB, job_id)):
            return True
        events = list(every_event(journal, "GSI1", tenant=tenant, entity=entity, raw=True))
        if not events or events[-1].timestamp >= before:
            return bool(events)
        if kind == JOB:
            return not any(event.event_type in _JOB_IS_OVER for event in events)
        state = fold(events)
        return state is not None and state.state in ("pending", "processing")

    return lives


_PROGRESS_EVERY = 10_000


class Difference(msgspec.Struct, frozen=True):
    """A task whose stored state differs from its events; None where there is no state."""

    request_id: str
    kept: str | None
    folded: str | None


class Verification(msgspec.Struct, frozen=True):
    """The numbers of events and tasks that were read, and the differences."""

    events: int
    tasks: int
    keeps_states: bool
    differences: list[Difference]


def verify(journal: Journal, tenant: str, *, progress: Callable[[int], Any] = lambda events: None) -> Verification:
    """Fold all events of a tenant and compare the results with the stored states.

    Args:
        journal: The journal to verify.
        tenant: The tenant of the events.
        progress: Called after every 10,000 events with their number.
    """
    count = 0

    def counted() -> Iterator[JournalEvent]:
        nonlocal count
        for event in every_event(journal, "PK", tenant=tenant, raw=True):
            count += 1
            if count % _PROGRESS_EVERY == 0:
                progress(count)
            yield event

    folded = {name: found.state for name, found in progress_of_tasks(counted()).items() if found.state}
    kept = _kept(journal, tenant)
    differences = [] if kept is None else list(_differences(journal, tenant, kept, folded))
    return Verification(events=count, tasks=len(folded), keeps_states=kept is not None, differences=differences)


def _kept(journal: Journal, tenant: str) -> dict[str, str] | None:
    states = journal.states(tenant, app=None, since=None) if isinstance(journal, StoredJournal) else None
    return None if states is None else dict(states)


def _differences(journal: Journal, tenant: str, kept: dict[str, str], folded: dict[str, str]) -> Iterator[Difference]:
    doubtful = sorted(name for name in kept.keys() | folded.keys() if kept.get(name) != folded.get(name))
    # Events may have arrived meanwhile, so each difference is checked once more by itself.
    now = (_kept(journal, tenant) or {}) if doubtful else {}
    for request_id in doubtful:
        state = task_state(journal, tenant, request_id, raw=True)
        name = None if state is None else state.state
        if now.get(request_id) != name:
            yield Difference(request_id, now.get(request_id), name)
