"""What a child prints: its tail is kept, the rest is read and dropped."""

from __future__ import annotations

from collections import deque
from typing import Annotated

import msgspec

TAIL_BYTES = 65_536
TAIL_LINES = 20
_LINE_CHARACTERS = 500
_ACTIVITY = b'"lastActivity"'
_LAST_SECOND = 99_999_999_999


class Tail:
    """The last 64 KiB of what was printed."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Take in what was printed."""
        self._parts.append(data)
        self._size += len(data)
        while self._size - len(self._parts[0]) >= TAIL_BYTES:
            self._size -= len(self._parts.popleft())

    def lines(self) -> tuple[str, ...]:
        """The last lines that hold something, without characters that drive a terminal."""
        text = b"".join(self._parts)[-TAIL_BYTES:].decode(errors="replace")
        lines = [clean for line in text.splitlines() if (clean := _clean(line))]
        return tuple(lines[-TAIL_LINES:])


class Lines:
    """The last line of a stream that holds something; one above the limit is known to be too long, and not kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = bytearray()
        self._open_too_long = False
        self.last: bytes | None = None
        self.too_long = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take in what was printed; the lines completed by it that speak of an activity."""
        first, newline, rest = data.partition(b"\n")
        self._add(first)
        if not newline:
            return []
        middle, _, last = rest.rpartition(b"\n")
        # A flood of lines is not looked at one by one: the last that holds something stands for all.
        lines = middle.split(b"\n") if _ACTIVITY in middle else [middle.rstrip().rpartition(b"\n")[2]]
        found = [self._ended()]
        for line in lines:
            self._add(line)
            found.append(self._ended())
        self._add(last)
        return [activity for activity in found if activity is not None]

    def end(self) -> None:
        """The line is complete."""
        if self._open.strip() or self._open_too_long:
            self.last = None if self._open_too_long else bytes(self._open).strip()
            self.too_long = self._open_too_long
        self._open.clear()
        self._open_too_long = False

    def _ended(self) -> bytes | None:
        """The line is complete; the activity it speaks of, if it does."""
        activity = _activity(bytes(self._open)) if _ACTIVITY in self._open else None
        self.end()
        return activity

    def _add(self, part: bytes) -> None:
        if len(self._open) + len(part) > self._limit:
            self._open_too_long = True
            self._open.clear()
        elif not self._open_too_long:
            self._open += part


class _Activity(msgspec.Struct, omit_defaults=True):
    type: str
    stepName: str | None = None
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=_LAST_SECOND)] | None = None


class _Saying(msgspec.Struct):
    lastActivity: _Activity


def checked_activity(told: bytes) -> bytes | None:
    """An activity as a heartbeat can carry it; None for anything else."""
    try:
        return _cut(msgspec.json.decode(told, type=_Activity))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _activity(line: bytes) -> bytes | None:
    try:
        return _cut(msgspec.json.decode(line, type=_Saying).lastActivity)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _cut(told: _Activity) -> bytes:
    step = None if told.stepName is None else told.stepName[:200]
    return msgspec.json.encode(_Activity(told.type[:100], step, told.timestamp))


def _clean(line: str) -> str:
    return "".join(c if c.isprintable() else " " for c in line[:_LINE_CHARACTERS]).rstrip()
