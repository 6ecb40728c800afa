"""The values of all slices of a session."""

from __future__ import annotations

from collections.abc import Mapping

from postroad.sessions.reducing import Values


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
