"""Event ids: UUIDv7, in order of making within a process."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import msgspec

from postroad.errors import InvalidInput, InvalidName

_RANDOM_BITS = 74
_MAX_MILLISECONDS = (1 << 48) - 1


def uuid7_of(milliseconds: int, tail: int) -> UUID:
    """The UUIDv7 of a moment since 1970 and 74 further bits."""
    version_and_high = 0x7000 | (tail >> 62)
    variant_and_low = (0b10 << 62) | (tail & ((1 << 62) - 1))
    number = (milliseconds << 80) | (version_and_high << 64) | variant_and_low
    # msgspec makes a UUID of 16 bytes in half the time of UUID(int=…).
    return msgspec.convert(number.to_bytes(16, "big"), UUID)


class UUID7Source:
    """Makes UUIDv7s, each greater than the one before, even where the clock steps back."""

    def __init__(
        self,
        *,
        time_ns: Callable[[], int] = time.time_ns,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._time_ns = time_ns
        self._random_bytes = random_bytes
        self._lock = threading.Lock()
        self._milliseconds = -1
        self._tail = 0

    def __call__(self) -> UUID:
        """The next id."""
        with self._lock:
            milliseconds = self._time_ns() // 1_000_000
            if milliseconds > self._milliseconds:
                self._milliseconds, self._tail = min(milliseconds, _MAX_MILLISECONDS), self._new_tail()
            else:
                self._tail += 1
            return uuid7_of(self._milliseconds, self._tail)

    def forget(self) -> None:
        """Start anew: a forked child must not go on where its parent goes on too."""
        self._lock = threading.Lock()
        self._milliseconds = -1

    def _new_tail(self) -> int:
        # The highest bit is left clear, so that counting up within one millisecond cannot overflow.
        return int.from_bytes(self._random_bytes(10), "big") >> (81 - _RANDOM_BITS)


uuid7 = UUID7Source()
os.register_at_fork(after_in_child=uuid7.forget)


Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

MAX_NAME_LENGTH = 256
_ATTRIBUTE = "__postroad_event__"
_MAIN_MODULES = ("__main__", "__mp_main__")


@dataclass(frozen=True, slots=True)
class Identity:
    """The name and version an event class was declared with, and the steps that lift older payloads to it."""

    name: str | None = None
    version: int = 1
    upcasters: dict[int, Upcaster] = field(default_factory=dict)


_UNDECLARED = Identity()


def declare(cls: type, *, name: str | None, version: int) -> None:
    """Write name and version on the class, where every registry finds them."""
    setattr(cls, _ATTRIBUTE, Identity(checked_name(name) if name is not None else None, checked_version(version)))


def identity_of(cls: type) -> Identity:
    """What the class itself was declared with; a parent's name is not inherited."""
    found = vars(cls).get(_ATTRIBUTE, _UNDECLARED)
    return found if isinstance(found, Identity) else _UNDECLARED


def default_name(cls: type) -> str:
    """`module:QualName`, with the script's own name where the class lives in `__main__`."""
    module = cls.__module__
    if module in _MAIN_MODULES:
        module = import_name(sys.modules.get(module))
    return f"{module}:{cls.__qualname__}"


def import_name(main: ModuleType | None) -> str:
    """The name by which another process imports the module that runs as `__main__`."""
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "__main__"


def checked_name(name: object) -> str:
    """The name, when it can stand in a message and its attributes."""
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable() and " " not in name:
        return name
    raise InvalidName(
        f"name: {str(name)[:80]!r} cannot name an event",
        field="name",
        remedy=f"Use 1 to {MAX_NAME_LENGTH} printable characters without spaces, such as 'orders.placed'.",
    )


def checked_version(version: object) -> int:
    """The version, when it is a whole number from 1 on."""
    if isinstance(version, int) and not isinstance(version, bool) and version >= 1:
        return version
    raise InvalidInput(f"version: {version!r} is not a whole number from 1 on", field="version")
