"""The output of a child: its tail is kept, its last lines are read, and all of it is passed on to the log."""

from __future__ import annotations

import os
import select
import time
from typing import Annotated, Literal

import msgspec

TAIL_BYTES = 65_536
TAIL_LINES = 20
_LINE_CHARACTERS = 500
_ACTIVITY, _PROGRESS = b'"lastActivity"', b'"progress"'
_LAST_SECOND = 99_999_999_999
_STDERR = 2
# The limits of one task for a second and for a line; a pipe that is ready accepts a line of this size at once.
_ECHO_BYTES = 131_072
_ECHO_LINE = 3_000
# What a line costs besides its bytes: a flood of short ones must not keep the monitor from its other work.
_LINE_COST = 64


class Tail:
    """The last 64 KiB of the output."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data
        if len(self._data) >= 2 * TAIL_BYTES:
            del self._data[:-TAIL_BYTES]

    def lines(self) -> tuple[str, ...]:
        """Return the last lines that are not blank, without control characters."""
        text = self._data[-TAIL_BYTES:].decode(errors="replace")
        lines = ("".join(c if c.isprintable() else " " for c in line[:_LINE_CHARACTERS]) for line in text.splitlines())
        return tuple([clean for line in lines if (clean := line.rstrip())][-TAIL_LINES:])


class Lines:
    """The last line of a stream that is not blank; a line above the limit is marked as too long and dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = bytearray()
        self._open_too_long = False
        self.last: bytes | None = None
        self.too_long = False

    def feed(self, data: bytes) -> list[Reported]:
        """Add output; return what the lines that it completes report."""
        first, newline, rest = data.partition(b"\n")
        self._add(first)
        if not newline:
            return []
        middle, _, last = rest.rpartition(b"\n")
        # Many lines are not parsed one by one: only the last line that is not blank matters.
        lines = middle.split(b"\n") if _may_report(middle) else [middle.rstrip().rpartition(b"\n")[2]]
        found = [self._ended()]
        for line in lines:
            self._add(line)
            found.append(self._ended())
        self._add(last)
        return [reported for reported in found if reported is not None]

    def end(self) -> None:
        """End the last line."""
        if self._open.strip() or self._open_too_long:
            self.last = None if self._open_too_long else bytes(self._open).strip()
            self.too_long = self._open_too_long
        self._open.clear()
        self._open_too_long = False

    def _ended(self) -> Reported | None:
        """End the line; return what it reports, if it is a report."""
        reported = reported_by(self._open)
        self.end()
        return reported

    def _add(self, part: bytes) -> None:
        if len(self._open) + len(part) > self._limit:
            self._open_too_long = True
            self._open.clear()
        elif not self._open_too_long:
            self._open += part


TaskOutput = Literal["log", "inherit", "drop"]


class Unchanged:
    """Writes the output of a child to the worker's standard error as it is; what nobody reads in time is dropped."""

    def feed(self, data: bytes) -> None:
        while data and _write_some(data[: select.PIPE_BUF]):
            data = data[select.PIPE_BUF :]

    def end(self) -> None:
        """Everything is written."""


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
        now = time.monotonic()
        self._left = min(_ECHO_BYTES, self._left + (now - self._at) * _ECHO_BYTES)
        self._at = now
        if self._left < _LINE_COST:
            self._drop(len(self._open) + len(data))
            return
        *lines, self._open = (self._open + data).split(b"\n")
        if len(self._open) > _ECHO_LINE:
            lines, self._open = [*lines, self._open], b""
        for number, line in enumerate(lines):
            self._left -= len(line) + _LINE_COST
            if self._left < 0:
                self._left = 0.0
                self._drop(sum(len(each) + 1 for each in lines[number:]) + len(self._open))
                return
            self._line(line)

    def _drop(self, size: int) -> None:
        self._dropped += size
        self._open = self._held = b""

    def end(self) -> None:
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
        if self._is_result and reported_by(line) is not None:
            return
        self._note_dropped()
        if text := "".join(c if c.isprintable() else " " for c in line[:_ECHO_LINE].decode(errors="replace")).rstrip():
            # Most children write nothing.
            from postroad.telemetry import redact

            self._write(redact(text))

    def _note_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._write(f"… {dropped:,} bytes not shown")

    def _write(self, text: str) -> None:
        data = f"{self._prefix}{text}".encode()[: select.PIPE_BUF - 1] + b"\n"
        if not _write_some(data):
            self._dropped += len(data)


def _write_some(data: bytes) -> bool:
    """Write to standard error what a pipe accepts at once; return False if its reader is too slow."""
    try:
        events = select.poll()
        events.register(_STDERR, select.POLLOUT)
        if not any(event & select.POLLOUT for _, event in events.poll(0)):
            return False
        os.write(_STDERR, data)
    except OSError:
        # It has no reader any more.
        return True
    return True


class Activity(msgspec.Struct, omit_defaults=True):
    """The step that a child says it is at."""

    type: str
    stepName: str | None = None
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=_LAST_SECOND)] | None = None

    def __post_init__(self) -> None:
        self.type, self.stepName = self.type[:100], self.stepName and self.stepName[:200]


class Progress(msgspec.Struct, omit_defaults=True):
    """How much a child says is done."""

    fraction: Annotated[float, msgspec.Meta(ge=0, le=1)]
    message: str | None = None

    def __post_init__(self) -> None:
        self.message = self.message and self.message[:200]


class Reported(msgspec.Struct, frozen=True):
    """The activity and the progress that a child reported last; None before the first of each."""

    activity: Activity | None = msgspec.field(name="lastActivity", default=None)
    progress: Progress | None = None

    def over(self, before: Reported) -> Reported:
        """Return it together with what was reported before and not replaced."""
        return Reported(self.activity or before.activity, self.progress or before.progress)


def reported_by(line: bytes | bytearray) -> Reported | None:
    """Return what a line of a program, or a function, reports; None if it is ordinary output."""
    if not _may_report(line):
        return None
    try:
        found = msgspec.json.decode(bytes(line), type=Reported)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return None if found == Reported() else found


def _may_report(data: bytes | bytearray) -> bool:
    return _ACTIVITY in data or _PROGRESS in data
