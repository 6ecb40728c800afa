"""One slice of a session: its values, and the reducers that change it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from postroad.sessions.session import Session

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
Values = tuple[Any, ...]
Reducer = Callable[[tuple[T, ...], Any], Iterable[T]]
Step = Callable[[Values, Any], Values | None]

_EVENTS = "__postroad_reduces__"


@dataclass(frozen=True, slots=True)
class Reduction:
    """One reducer of a session: the event, the slice that it changes, and the name of its steps.

    `step` returns None if it leaves the slice alone; it may still apply the event later. Without a step the event
    itself is appended.
    """

    event_type: type
    slice_type: type
    name: str
    step: Step | None


def step_name(slice_name: str, reducer_name: str) -> str:
    """Return the name of a reducer's steps, the same in every process."""
    return f"{slice_name} {reducer_name}"


def slice_of_step(name: str) -> str:
    """Return the name of the slice that the step changed; names of types have no spaces."""
    return name.partition(" ")[0]


def reducer(*, on: type) -> Callable[[Method], Method]:
    """Mark a method of a frozen dataclass that returns the next state for an event.

    Args:
        on: The class of the events.

    Example:
        @dataclass(frozen=True)
        class Total:
            amount: int = 0

            @reducer(on=OrderPlaced)
            def add(self, event: OrderPlaced) -> Total:
                return Total(self.amount + event.amount)
    """
    if not isinstance(on, type):
        raise TypeError(f"on: {on!r} is not a class")

    def mark(method: Method) -> Method:
        setattr(method, _EVENTS, (*getattr(method, _EVENTS, ()), on))
        return method

    return mark


def reductions_of(cls: type, name: str, initial: Callable[[], Any] | None) -> list[Reduction]:
    """Return the reducers that the class declares; each gets the latest value, or `initial()` if there is none."""
    found = [(event, name) for name in dir(cls) for event in getattr(inspect.getattr_static(cls, name), _EVENTS, ())]
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
    """Refuse a class that is not a frozen dataclass: a state that changes in place would not be noticed."""
    if not is_dataclass_type(cls):
        raise TypeError(f"{cls!r} is not a dataclass; a slice is a frozen dataclass")
    if not cls.__dataclass_params__.frozen:
        raise TypeError(f"{cls.__qualname__} is not frozen; write @dataclass(frozen=True)")


def is_dataclass_type(value: object) -> bool:
    """Return whether the value is a dataclass, not an instance of one."""
    return isinstance(value, type) and dataclasses.is_dataclass(value)


def function_step(cls: type, reduce: Reducer[Any]) -> Step:
    """Return the step of a reducer that is a function; it checks the class of the results."""

    def step(values: Values, event: Any) -> Values:
        result = tuple(reduce(values, event))
        for value in result:
            _refuse_another_class(value, cls)
        return result

    return step


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


class SliceAccessor(Generic[T]):
    """The values of one type in a session, oldest first. Changes here run no reducer and publish nothing.

    Args:
        session: The session.
        slice_type: The class of the values.
    """

    def __init__(self, session: Session, slice_type: type[T]) -> None:
        self._session = session
        self._type = slice_type

    def all(self) -> tuple[T, ...]:
        """Return every value."""
        return self._session.values_of(self._type)

    def latest(self) -> T | None:
        """Return the newest value, or None."""
        values = self.all()
        return values[-1] if values else None

    def where(self, pred: Callable[[T], bool]) -> tuple[T, ...]:
        """Return the values for which `pred` is true."""
        return tuple(value for value in self.all() if pred(value))

    def seed(self, value: T | Iterable[T]) -> None:
        """Replace all values by `value`, or by several."""
        seeded = (value,) if isinstance(value, self._type) else tuple(cast(Iterable[T], value))
        for item in seeded:
            self._refuse_another_class(item)
        self._session.change_slice(self._type, lambda _: seeded)

    def append(self, value: T) -> None:
        """Add `value` at the end."""
        self._refuse_another_class(value)
        self._session.change_slice(self._type, lambda values: (*values, value))

    def clear(self, pred: Callable[[T], bool] | None = None) -> None:
        """Remove every value, or those for which `pred` is true."""

        def kept(values: Values) -> Values:
            return tuple(value for value in values if pred is not None and not pred(value))

        self._session.change_slice(self._type, kept)

    def register(self, event_type: type, reducer: Reducer[T]) -> None:
        """Call `reducer` (values, event) for events of exactly `event_type`; it returns the next values."""
        self._session.register_reducer(event_type, self._type, reducer)

    def _refuse_another_class(self, value: object) -> None:
        if not isinstance(value, self._type):
            raise TypeError(f"{value!r} is not a {self._type.__qualname__}")
