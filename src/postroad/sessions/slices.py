"""One slice of a session: its values, to read and to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, cast

from postroad.sessions.reducing import Reducer, Values

T = TypeVar("T")


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
