"""What `postroad up` runs, part by part, as the API shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

PartState = Literal["running", "starting", "failed"]


class Part(msgspec.Struct, frozen=True):
    """One part of a running `postroad up`."""

    name: str
    process: str
    pid: int | None
    state: PartState
    restarts: int = 0
    missing: str | msgspec.UnsetType = msgspec.UNSET
    """What it waits for, while something that it needs is away."""


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
