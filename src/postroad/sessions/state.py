"""The state of a session: its slices, its reducers and the steps they have taken. It knows no locks and no bus."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from postroad.events import EventRegistry
from postroad.sessions.requests import values_in
from postroad.sessions.slices import Reducer, Reduction, Values, appending, function_step, reductions_of, step_name
from postroad.sessions.vocabulary import known
from postroad.telemetry import get_logger


class Slices:
    """Tuples by type. What is appended waits in a list until somebody reads, so that a long log grows cheaply."""

    def __init__(self, values: Mapping[type, Values] | None = None) -> None:
        self._values = dict(values or {})
        self._tails: dict[type, list[object]] = {}

    def settled(self, cls: type) -> Values | None:
        """The values of one slice, or None when reading them changes something and needs the lock."""
        return None if cls in self._tails else self._values.get(cls, ())

    def get(self, cls: type) -> Values:
        """The values of one slice, oldest first."""
        if cls in self._tails:
            # The tail goes last: whoever reads without the lock meets it until the values are whole.
            self._values[cls] = (*self._values.get(cls, ()), *self._tails[cls])
            del self._tails[cls]
        return self._values.get(cls, ())

    def put(self, cls: type, values: Values) -> None:
        """Put these values in the place of the slice's own."""
        self._values[cls] = values
        self._tails.pop(cls, None)

    def append(self, cls: type, value: object) -> None:
        """Add a value behind the others."""
        self._tails.setdefault(cls, []).append(value)

    def all(self) -> dict[type, Values]:
        """Every slice."""
        return {cls: self.get(cls) for cls in {**self._values, **self._tails}}


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
