"""The state of a session: its slices, its reducers and the steps they have taken. It knows no locks and no bus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from postroad.events import EventRegistry
from postroad.sessions.holding import Slices
from postroad.sessions.ledger import Ledger
from postroad.sessions.reducing import Reducer, Reduction, appending, function_step, reductions_of, step_name
from postroad.sessions.results import values_in
from postroad.sessions.vocabulary import known
from postroad.telemetry import get_logger


@dataclass(slots=True)
class State:
    """What one session holds; whoever changes it holds the session's lock."""

    registry: EventRegistry
    slices: Slices = field(default_factory=Slices)
    reductions: dict[type, list[Reduction]] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)

    def install(self, cls: type, initial: Callable[[], Any] | None) -> list[type]:
        """Take the reducers that the class declares, in the place of those it declared before."""
        found = reductions_of(cls, known(cls, self.registry), initial)
        names = {reduction.name for reduction in found}
        for event_type, others in self.reductions.items():
            self.reductions[event_type] = [other for other in others if other.name not in names]
        for reduction in found:
            self.reductions.setdefault(reduction.event_type, []).append(reduction)
        return [reduction.event_type for reduction in found]

    def register(self, event_type: type, cls: type, reduce: Reducer[Any]) -> None:
        """Take a reducer given as a function; two of one name are told apart by their order."""
        label = getattr(reduce, "__qualname__", type(reduce).__qualname__)
        name = step_name(known(cls, self.registry), label)
        bucket = self.reductions.setdefault(event_type, [])
        twins = sum(other.name.partition("#")[0] == name for other in bucket)
        unique = f"{name}#{twins}" if twins else name
        bucket.append(Reduction(event_type, cls, unique, function_step(cls, reduce)))

    def apply(self, event: object, event_id: str) -> list[Exception]:
        """Let every reducer of the event, and of the values in its result, take its step once; return what failed."""
        failures: list[Exception] = []
        for value, place in ((event, ""), *values_in(event)):
            for reduction in self._reductions_for(type(value)):
                failures += self._take(reduction, value, event_id, place)
        return failures

    def _take(self, reduction: Reduction, value: object, event_id: str, place: str) -> Iterator[Exception]:
        step = reduction.name + place
        if self.ledger.has(event_id, step):
            return
        try:
            if self._step(reduction, value):
                self.ledger.add(event_id, step)
        except Exception as error:
            _log_failure(reduction, event_id, error)
            yield error

    def _step(self, reduction: Reduction, value: object) -> bool:
        """Change the slice; False when the reducer leaves the value alone."""
        if reduction.step is None:
            self.slices.append(reduction.slice_type, value)
            return True
        result = reduction.step(self.slices.get(reduction.slice_type), value)
        if result is not None:
            self.slices.put(reduction.slice_type, result)
        return result is not None

    def _reductions_for(self, event_type: type) -> list[Reduction]:
        return self.reductions.get(event_type) or [appending(event_type, known(event_type, self.registry))]


def _log_failure(reduction: Reduction, event_id: str, error: Exception) -> None:
    get_logger("sessions").error(
        "session_reducer_failed",
        reducer=reduction.name,
        event_type=reduction.event_type.__qualname__,
        event_id=event_id,
        error=f"{type(error).__name__}: {error}",
    )
