"""What a child prints: its tail is kept, the rest is read and dropped."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from typing import Annotated

import msgspec

from postroad.telemetry import redact

TAIL_BYTES = 65_536
TAIL_LINES = 20
_LINE_CHARACTERS = 500
_ACTIVITY = b'"lastActivity"'
_LAST_SECOND = 99_999_999_999
_STDERR = 2
# What one task may pass on in a second, and in one line; a pipe that is ready takes a line of this size at once.
_ECHO_BYTES = 131_072
_ECHO_LINE = 3_000


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


class Echo:
    """Passes what a child prints on to the worker's standard error, line by line, each behind the request id.

    Nothing waits for whoever reads there: what is too much for it is dropped, and a line says so. The last line of a
    program's output may be its result, which is no log; it is held back until another one follows.
    """

    def __init__(self, request_id: str, *, is_result: bool = False) -> None:
        self._prefix = f"{request_id}: "
        self._is_result = is_result
        self._open = b""
        self._held = b""
        self._dropped = 0
        self._left = float(_ECHO_BYTES)
        self._at = time.monotonic()

    def feed(self, data: bytes) -> None:
        """Take in what was printed."""
        now = time.monotonic()
        self._left = min(_ECHO_BYTES, self._left + (now - self._at) * _ECHO_BYTES)
        self._at = now
        if len(data) > self._left:
            self._dropped += len(self._open) + len(data)
            self._open = self._held = b""
            return
        self._left -= len(data)
        *lines, self._open = (self._open + data).split(b"\n")
        if len(self._open) > _ECHO_LINE:
            lines, self._open = [*lines, self._open], b""
        for line in lines:
            self._line(line)

    def end(self) -> None:
        """Pass on what is left; nothing more follows."""
        self._line(self._open)
        if b'"output"' not in self._held:
            self._pass_on(self._held)
        self._open = self._held = b""
        self._tell_dropped()

    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        if self._is_result:
            line, self._held = self._held, line
        self._pass_on(line)

    def _pass_on(self, line: bytes) -> None:
        if self._is_result and _ACTIVITY in line:
            return
        self._tell_dropped()
        if text := "".join(c if c.isprintable() else " " for c in line[:_ECHO_LINE].decode(errors="replace")).rstrip():
            self._write(redact(text))

    def _tell_dropped(self) -> None:
        if self._dropped:
            told, self._dropped = self._dropped, 0
            self._write(f"… {told:,} bytes not shown")

    def _write(self, text: str) -> None:
        data = f"{self._prefix}{text}".encode()[: select.PIPE_BUF - 1] + b"\n"
        try:
            events = select.poll()
            events.register(_STDERR, select.POLLOUT)
            if any(event & select.POLLOUT for _, event in events.poll(0)):
                os.write(_STDERR, data)
            else:
                self._dropped += len(data)
        except OSError:
            # Nobody reads there any more.
            return


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
