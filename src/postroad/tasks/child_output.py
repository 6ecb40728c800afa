"""The output of a child: its tail is kept, its last lines are read, and all of it is passed on to the log."""

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
# The limits of one task for a second and for a line; a pipe that is ready accepts a line of this size at once.
_ECHO_BYTES = 131_072
_ECHO_LINE = 3_000


class Tail:
    """The last 64 KiB of the output."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Add output."""
        self._parts.append(data)
        self._size += len(data)
        while self._size - len(self._parts[0]) >= TAIL_BYTES:
            self._size -= len(self._parts.popleft())

    def lines(self) -> tuple[str, ...]:
        """Return the last lines that are not blank, without control characters."""
        text = b"".join(self._parts)[-TAIL_BYTES:].decode(errors="replace")
        lines = [clean for line in text.splitlines() if (clean := _clean(line))]
        return tuple(lines[-TAIL_LINES:])


class Lines:
    """The last line of a stream that is not blank; a line above the limit is marked as too long and dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = bytearray()
        self._open_too_long = False
        self.last: bytes | None = None
        self.too_long = False

    def feed(self, data: bytes) -> list[bytes]:
        """Add output; return the activities in the lines that it completes."""
        first, newline, rest = data.partition(b"\n")
        self._add(first)
        if not newline:
            return []
        middle, _, last = rest.rpartition(b"\n")
        # Many lines are not parsed one by one: only the last line that is not blank matters.
        lines = middle.split(b"\n") if _ACTIVITY in middle else [middle.rstrip().rpartition(b"\n")[2]]
        found = [self._ended()]
        for line in lines:
            self._add(line)
            found.append(self._ended())
        self._add(last)
        return [activity for activity in found if activity is not None]

    def end(self) -> None:
        """End the last line."""
        if self._open.strip() or self._open_too_long:
            self.last = None if self._open_too_long else bytes(self._open).strip()
            self.too_long = self._open_too_long
        self._open.clear()
        self._open_too_long = False

    def _ended(self) -> bytes | None:
        """End the line; return the activity in it, if there is one."""
        activity = checked_activity(bytes(self._open), _Line) if _ACTIVITY in self._open else None
        self.end()
        return activity

    def _add(self, part: bytes) -> None:
        if len(self._open) + len(part) > self._limit:
            self._open_too_long = True
            self._open.clear()
        elif not self._open_too_long:
            self._open += part


class Echo:
    """Writes the output of a child to the worker's standard error, line by line, each after the request id.

    It never waits for a slow reader: what is too much is dropped, and a line says so. The last line of a program may be
    its result, which is not log output, so each line is held back until another one follows.
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
        """Add output."""
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
        """Write what is left."""
        self._line(self._open)
        if b'"output"' not in self._held:
            self._write_line(self._held)
        self._open = self._held = b""
        self._note_dropped()

    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        if self._is_result:
            line, self._held = self._held, line
        self._write_line(line)

    def _write_line(self, line: bytes) -> None:
        if self._is_result and _ACTIVITY in line:
            return
        self._note_dropped()
        if text := "".join(c if c.isprintable() else " " for c in line[:_ECHO_LINE].decode(errors="replace")).rstrip():
            self._write(redact(text))

    def _note_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._write(f"… {dropped:,} bytes not shown")

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
            # It has no reader any more.
            return


class _Activity(msgspec.Struct, omit_defaults=True):
    type: str
    stepName: str | None = None
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=_LAST_SECOND)] | None = None


class _Line(msgspec.Struct):
    lastActivity: _Activity


def checked_activity(data: bytes, kind: type[_Activity] | type[_Line] = _Activity) -> bytes | None:
    """Return an activity as a heartbeat can carry it; None for anything else."""
    try:
        found = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    activity = found.lastActivity if isinstance(found, _Line) else found
    step = None if activity.stepName is None else activity.stepName[:200]
    return msgspec.json.encode(_Activity(activity.type[:100], step, activity.timestamp))


def _clean(line: str) -> str:
    return "".join(c if c.isprintable() else " " for c in line[:_LINE_CHARACTERS]).rstrip()
