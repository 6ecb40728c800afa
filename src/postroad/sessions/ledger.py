"""Remembers which reducers have applied which events, so that no step is taken twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

MOST_IDS = 10_000


class Ledger:
    """The steps taken for each of the last 10,000 event ids."""

    def __init__(self, entries: Mapping[str, Iterable[str]] | None = None) -> None:
        self._steps = OrderedDict((event_id, set(steps)) for event_id, steps in (entries or {}).items())
        self._forget()

    def has(self, event_id: str, step: str) -> bool:
        """Whether the step was taken for this event."""
        return step in self._steps.get(event_id, ())

    def add(self, event_id: str, step: str) -> None:
        """Note that the step was taken; the oldest id goes when there are too many."""
        self._steps.setdefault(event_id, set()).add(step)
        self._forget()

    def entries(self, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, tuple[str, ...]]:
        """Each id with the wanted steps taken for it, oldest first; ids without any are left out."""
        chosen = ((event_id, sorted(filter(wanted, steps))) for event_id, steps in self._steps.items())
        return {event_id: tuple(steps) for event_id, steps in chosen if steps}

    def _forget(self) -> None:
        while len(self._steps) > MOST_IDS:
            self._steps.popitem(last=False)
