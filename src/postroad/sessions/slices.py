"""One slice of a session: its values, to read and to change."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
Values = tuple[Any, ...]
Reducer = Callable[[tuple[T, ...], Any], Iterable[T]]
Step = Callable[[Values, Any], Values | None]

_EVENTS = "__postroad_reduces__"


@dataclass(frozen=True, slots=True)
class Reduction:
    """One reducer of a session: on which event it changes which slice, and the name its steps are remembered by.

    `step` answers None when it leaves the event alone; what it left alone it may still apply later. Where there is no
    step the event itself is appended.
    """

    event_type: type
    slice_type: type
    name: str
    step: Step | None


def step_name(slice_name: str, reducer_name: str) -> str:
    """The name of a reducer's steps, the same in every process that has the reducer."""
    return f"{slice_name} {reducer_name}"


def slice_of_step(name: str) -> str:
    """The name of the slice that the step changed; names of types have no spaces."""
    return name.partition(" ")[0]


def reducer(*, on: type) -> Callable[[Method], Method]:
    """Let a method of a frozen dataclass answer the event with the next state: `(self, event) -> same class`."""
    if not isinstance(on, type):
        raise TypeError(f"on: {on!r} is not a class")

    def mark(method: Method) -> Method:
        setattr(method, _EVENTS, (*getattr(method, _EVENTS, ()), on))
        return method

    return mark


def reductions_of(cls: type, name: str, initial: Callable[[], Any] | None) -> list[Reduction]:
    """The reducers that the class declares; each acts on the latest value, or on `initial()` where there is none."""
    found = list(_declared(cls))
    events = [event for event, _ in found]
    if not found:
        raise ValueError(f"{cls.__qualname__} has no method with @reducer(on=…)")
    for event in events:
        if events.count(event) > 1:
            raise ValueError(f"{cls.__qualname__} has two reducers for {event.__qualname__}")
    return [
        Reduction(event, cls, step_name(name, method), _method_step(cls, method, initial)) for event, method in found
    ]


def checked_slice_class(cls: Any) -> None:
    """Refuse what is not a frozen dataclass: a state that could change in place would never be noticed."""
    if not is_dataclass_type(cls):
        raise TypeError(f"{cls!r} is not a dataclass; a slice is a frozen dataclass")
    if not cls.__dataclass_params__.frozen:
        raise TypeError(f"{cls.__qualname__} is not frozen; write @dataclass(frozen=True)")


def is_dataclass_type(value: object) -> bool:
    """Whether the value is a class of data, not an instance of one."""
    return isinstance(value, type) and dataclasses.is_dataclass(value)


def appending(event_type: type, name: str) -> Reduction:
    """What happens to an event that has no reducer: it is appended to the slice of its own type."""
    return Reduction(event_type, event_type, step_name(name, "+"), None)


def function_step(cls: type, reduce: Reducer[Any]) -> Step:
    """A reducer given as a function, held to what it promises."""

    def step(values: Values, event: Any) -> Values:
        result = tuple(reduce(values, event))
        for value in result:
            _refuse_another_class(value, cls)
        return result

    return step


def _declared(cls: type) -> Iterator[tuple[type, str]]:
    for name in dir(cls):
        for event in getattr(inspect.getattr_static(cls, name), _EVENTS, ()):
            yield event, name


def _method_step(cls: type, method: str, initial: Callable[[], Any] | None) -> Step:
    def step(values: Values, event: Any) -> Values | None:
        if values:
            state = values[-1]
        elif initial is not None:
            state = initial()
        else:
            return None
        result = getattr(state, method)(event)
        _refuse_another_class(result, cls)
        return values if len(values) == 1 and result is state else (result,)

    return step


def _refuse_another_class(value: object, cls: type) -> None:
    if not isinstance(value, cls):
        raise TypeError(f"a reducer of {cls.__qualname__} returned {type(value).__qualname__}")


class SliceHolder(Protocol):
    """The part of a session that a slice needs."""

    def values_of(self, slice_type: type) -> Values: ...
    def change_slice(self, slice_type: type, change: Callable[[Values], Values]) -> None: ...
    def register_reducer(self, event_type: type, slice_type: type, reduce: Reducer[Any]) -> None: ...


class SliceAccessor(Generic[T]):
    """The values of one type in a session, oldest first. Changing them here asks no reducer and publishes nothing."""

    def __init__(self, session: SliceHolder, slice_type: type[T]) -> None:
        self._session = session
        self._type = slice_type

    def all(self) -> tuple[T, ...]:
        """Every value."""
        return self._session.values_of(self._type)

    def latest(self) -> T | None:
        """The newest value, or None."""
        values = self.all()
        return values[-1] if values else None

    def where(self, pred: Callable[[T], bool]) -> tuple[T, ...]:
        """The values that the predicate accepts."""
        return tuple(value for value in self.all() if pred(value))

    def seed(self, value: T | Iterable[T]) -> None:
        """Put this value, or these, in the place of all others."""
        seeded = (value,) if isinstance(value, self._type) else tuple(cast(Iterable[T], value))
        for item in seeded:
            self._refuse_another_class(item)
        self._session.change_slice(self._type, lambda _: seeded)

    def append(self, value: T) -> None:
        """Add a value behind the others."""
        self._refuse_another_class(value)
        self._session.change_slice(self._type, lambda values: (*values, value))

    def clear(self, pred: Callable[[T], bool] | None = None) -> None:
        """Remove every value, or those that the predicate accepts."""

        def kept(values: Values) -> Values:
            return tuple(value for value in values if pred is not None and not pred(value))

        self._session.change_slice(self._type, kept)

    def register(self, event_type: type, reducer: Reducer[T]) -> None:
        """Let `reducer(values, event)` answer events of exactly this type with the next values."""
        self._session.register_reducer(event_type, self._type, reducer)

    def _refuse_another_class(self, value: object) -> None:
        if not isinstance(value, self._type):
            raise TypeError(f"{value!r} is not a {self._type.__qualname__}")
