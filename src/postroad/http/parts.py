"""What `postroad up` runs, part by part, as the API shows it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from postroad.views import Part


class Parts:
    """All parts as the supervisor last described them."""

    def __init__(self) -> None:
        self._parts: tuple[Part, ...] = ()

    def describe(self, parts: tuple[Part, ...]) -> None:
        """Take the supervisor's word for it."""
        self._parts = parts

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def troubles(self) -> str | None:
        """Which parts do not run; None when all do."""
        down = [_trouble(part) for part in self._parts if part.state != "running"]
        return ", ".join(down) or None


def _trouble(part: Part) -> str:
    why = "" if part.missing is msgspec.UNSET else f": {part.missing}"
    return f"{part.name} is {part.state}{why}"
