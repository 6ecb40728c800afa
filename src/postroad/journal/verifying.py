"""Verifying: the states that a journal keeps, compared with what its events fold to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from postroad.journal.event import JournalEvent
from postroad.journal.port import Journal
from postroad.journal.states import KeepsStates, every_event, progress_of_tasks, task_state

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
    return Verification(
        events=counted.count, tasks=len(folded), keeps_states=kept is not None, differences=differences
    )  # fmt: skip


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
