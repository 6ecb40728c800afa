"""The state of a session: slices, reducers and the steps they took, observers and snapshots; no locks and no bus."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID

import msgspec

from postroad.errors import InvalidSnapshot
from postroad.events import Codec, Envelope, EventRegistry, checked_bytes, codec
from postroad.sessions.slices import Reducer, Reduction, Values, function_step, reductions_of, slice_of_step, step_name
from postroad.sessions.vocabulary import known, values_in
from postroad.telemetry import get_logger

Observer = Callable[[tuple[Any, ...], tuple[Any, ...]], object]


@dataclass(frozen=True, slots=True, eq=False)
class Subscription:
    """An observer of a slice; it is called after each change until it unsubscribes.

    Args:
        slice_type: The class of the slice.
        observer: The function.
        leave: Called to unsubscribe.
    """

    slice_type: type
    observer: Observer
    leave: Callable[[Subscription], None]

    def unsubscribe(self) -> None:
        """Stop calling the observer. Unsubscribing twice changes nothing."""
        self.leave(self)

    def notify(self, old: Values, new: Values) -> None:
        """Call the observer with `old` and `new`; its error is only logged, because the change has happened."""
        try:
            self.observer(old, new)
        except Exception as error:
            get_logger("sessions").error(
                "session_observer_failed",
                slice_type=self.slice_type.__qualname__,
                observer=getattr(self.observer, "__qualname__", repr(self.observer)),
                error=f"{type(error).__name__}: {error}",
            )


class Slices:
    """Tuples by type. Appended values wait in a list until the slice is read, so that a long log grows cheaply."""

    def __init__(self, values: Mapping[type, Values] | None = None) -> None:
        self._values = dict(values or {})
        self._tails: dict[type, list[object]] = {}

    def settled(self, cls: type) -> Values | None:
        """Return the values of one slice, or None if reading them needs the lock."""
        return None if cls in self._tails else self._values.get(cls, ())

    def get(self, cls: type) -> Values:
        """Return the values of one slice, oldest first."""
        if cls in self._tails:
            # The tail is deleted last, so that a reader without the lock sees it until the values are complete.
            self._values[cls] = (*self._values.get(cls, ()), *self._tails[cls])
            del self._tails[cls]
        return self._values.get(cls, ())

    def put(self, cls: type, values: Values) -> None:
        self._values[cls] = values
        self._tails.pop(cls, None)

    def append(self, cls: type, value: object) -> None:
        self._tails.setdefault(cls, []).append(value)

    def all(self) -> dict[type, Values]:
        return {cls: self.get(cls) for cls in {**self._values, **self._tails}}


MOST_IDS = 10_000


class Ledger:
    """The steps taken for each of the last 10,000 event ids."""

    def __init__(self, entries: Mapping[str, Iterable[str]] | None = None) -> None:
        self._steps = OrderedDict((event_id, set(steps)) for event_id, steps in (entries or {}).items())
        self._forget()

    def has(self, event_id: str, step: str) -> bool:
        return step in self._steps.get(event_id, ())

    def add(self, event_id: str, step: str) -> None:
        """Note that the step was taken; the oldest id is forgotten if there are too many."""
        self._steps.setdefault(event_id, set()).add(step)
        self._forget()

    def entries(self, *, without: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
        """Return each id with the steps taken for it, oldest first, without those that changed some of the slices."""
        chosen = {
            event_id: tuple(sorted(step for step in steps if slice_of_step(step) not in without))
            for event_id, steps in self._steps.items()
        }
        return {event_id: steps for event_id, steps in chosen.items() if steps}

    def _forget(self) -> None:
        while len(self._steps) > MOST_IDS:
            self._steps.popitem(last=False)


@dataclass(slots=True)
class State:
    """What one session holds; it is changed only under the session's lock."""

    registry: EventRegistry
    slices: Slices = field(default_factory=Slices)
    reductions: dict[type, list[Reduction]] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)

    def install(self, cls: type, initial: Callable[[], Any] | None) -> list[type]:
        """Install the reducers that the class declares, in place of those it declared before."""
        found = reductions_of(cls, known(cls, self.registry), initial)
        names = {reduction.name for reduction in found}
        for event_type, others in self.reductions.items():
            self.reductions[event_type] = [other for other in others if other.name not in names]
        for reduction in found:
            self.reductions.setdefault(reduction.event_type, []).append(reduction)
        return [reduction.event_type for reduction in found]

    def register(self, event_type: type, cls: type, reduce: Reducer[Any]) -> None:
        """Install a function as a reducer; two with the same name are distinguished by their order."""
        label = getattr(reduce, "__qualname__", type(reduce).__qualname__)
        name = step_name(known(cls, self.registry), label)
        bucket = self.reductions.setdefault(event_type, [])
        twins = sum(other.name.partition("#")[0] == name for other in bucket)
        unique = f"{name}#{twins}" if twins else name
        bucket.append(Reduction(event_type, cls, unique, function_step(cls, reduce)))

    def apply(self, event: object, event_id: str) -> list[Exception]:
        """Run every reducer of the event, and of the values in its result, once; return the errors."""
        failures: list[Exception] = []
        for value, place in ((event, ""), *values_in(event)):
            cls = type(value)
            # Without a reducer it is appended to the slice of its own type.
            for reduction in self.reductions.get(cls) or [self._appending(cls)]:
                step = reduction.name + place
                if self.ledger.has(event_id, step):
                    continue
                try:
                    if self._step(reduction, value):
                        self.ledger.add(event_id, step)
                except Exception as error:
                    failures.append(error)
                    get_logger("sessions").error(
                        "session_reducer_failed",
                        reducer=reduction.name,
                        event_type=reduction.event_type.__qualname__,
                        event_id=event_id,
                        error=f"{type(error).__name__}: {error}",
                    )
        return failures

    def _appending(self, cls: type) -> Reduction:
        return Reduction(cls, cls, step_name(known(cls, self.registry), "+"), None)

    def _step(self, reduction: Reduction, value: object) -> bool:
        """Change the slice; return False if the reducer leaves it alone."""
        if reduction.step is None:
            self.slices.append(reduction.slice_type, value)
            return True
        result = reduction.step(self.slices.get(reduction.slice_type), value)
        if result is not None:
            self.slices.put(reduction.slice_type, result)
        return result is not None


_VERSION = 1
_NO_ID = UUID(int=0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WrittenValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value of a slice as JSON, with the version of its class, so that an older one can be upcast."""

    type: str
    payload: dict[str, Any]
    version: int = 1


class _Written(msgspec.Struct, frozen=True, tag_field="kind", tag="postroad.snapshot"):
    version: int
    session_id: UUID
    created_at: datetime
    tags: dict[str, str]
    slices: dict[str, tuple[WrittenValue, ...]]
    applied: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Snapshot:
    """The slices of a session at one moment, by the name of their type, and the steps its reducers had taken.

    Attributes:
        session_id: The session.
        created_at: When it was taken.
        tags: The tags of the session.
        applied: The steps that were taken, by the id of the event.
        codec: Writes and reads the values.
    """

    session_id: UUID
    created_at: datetime
    tags: Mapping[str, str]
    slices: Mapping[str, tuple[object, ...]]
    """The values themselves, or `WrittenValue`s if the snapshot was read from JSON."""
    applied: Mapping[str, tuple[str, ...]]
    codec: Codec = field(default=codec, compare=False, repr=False)

    def to_json(self) -> str:
        """Return the snapshot as JSON; `InvalidMessage` names the field of a value that JSON cannot hold."""
        slices = {name: tuple(self._written(value) for value in values) for name, values in self.slices.items()}
        written = _Written(_VERSION, self.session_id, self.created_at, dict(self.tags), slices, dict(self.applied))
        return msgspec.json.encode(written).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the snapshot that `to_json` wrote as `text`, or raise `InvalidSnapshot`. No type is looked up yet."""
        try:
            data = checked_bytes(text, codec.max_bytes)
            found = msgspec.json.decode(data, type=_Written)
        except Exception as error:
            raise InvalidSnapshot(f"not a snapshot: {error}") from error
        if found.version != _VERSION:
            raise InvalidSnapshot(f"version: {found.version} is not the version {_VERSION} that this Postroad reads")
        return cls(found.session_id, found.created_at, found.tags, found.slices, found.applied)

    def read(self, reader: Codec) -> dict[type, tuple[object, ...]]:
        """Return the values of each slice, read by `reader`; raise `UnknownEventType` for a type it does not know."""
        return {
            reader.registry.type_of(name): tuple(_value(value, reader) for value in values)
            for name, values in self.slices.items()
        }

    def _written(self, value: object) -> WrittenValue:
        if isinstance(value, WrittenValue):
            return value
        # The id is fixed, because a slice may have an `event_id` of any kind.
        wrapped = self.codec.wrap(value, publisher_id="snapshot", event_id=_NO_ID, created_at=_EPOCH)
        return WrittenValue(wrapped.event_type, wrapped.payload, wrapped.version)


def _value(value: object, reader: Codec) -> object:
    if not isinstance(value, WrittenValue):
        return value
    return reader.unwrap(Envelope(value.type, _NO_ID, _EPOCH, "snapshot", value.payload, version=value.version))
