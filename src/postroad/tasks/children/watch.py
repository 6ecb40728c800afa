"""A child as its monitor sees it: forked, fed, heard, ended in time, and gone with all its descendants."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from postroad.tasks.children import kernel
from postroad.tasks.children.child import ChildSetup, PipeEnds, run_child
from postroad.tasks.children.output import Echo, Lines, Tail, checked_activity
from postroad.tasks.children.wire import (
    ACTIVITY,
    RESULT,
    SETTLED,
    Active,
    Frames,
    FrameTooLong,
    Halt,
    Order,
    Report,
    WorkerGone,
    WorkerLink,
    encode,
    frame,
)

_SETTLING_MS = 30_000
# Linux counts kilobytes there, macOS bytes.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1_024


class ChildNotReady(Exception):
    """A child that never came so far as to wait for an order."""


class ChildExits:
    """Tells when some child of this process has ended: `readable` is readable then."""

    def __init__(self) -> None:
        self._oom_kills = kernel.oom_kills()
        self.readable, written = os.pipe()
        for end in (self.readable, written):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def heard(self) -> None:
        """Be quiet until the next one."""
        some(self.readable)

    def look_for_oom(self) -> bool:
        """Whether the kernel has killed for want of memory since the last look, which an idle monitor takes often."""
        before, self._oom_kills = self._oom_kills, kernel.oom_kills()
        return self._oom_kills > before


@dataclass(slots=True, kw_only=True)
class Child:
    """A living child. `orders` is written, the others are read; none of them blocks."""

    pid: int
    orders: int
    words: int
    out: int
    err: int
    frames: Frames = field(default_factory=Frames)
    served: int = 0
    status: int | None = None
    """How it ended; None while it lives."""
    peak_rss_bytes: int = 0

    def has_ended(self) -> bool:
        """Whether the process is no more; then it is known how it ended."""
        if self.status is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.status, self.peak_rss_bytes = status, usage.ru_maxrss * _RSS_UNIT
        return self.status is not None

    def close(self) -> None:
        """Give the ends back."""
        for end in (self.orders, self.words, self.out, self.err):
            if end >= 0:
                os.close(end)

    def close_orders(self) -> None:
        """Let the child read the end."""
        os.close(self.orders)
        self.orders = -1


def fork_child(setup: ChildSetup) -> Child:
    """Fork a child and wait until it has settled in."""
    sys.stdout.flush()
    sys.stderr.flush()
    pipes = [os.pipe() for _ in range(4)]
    (orders_in, orders), (words, words_in), (out, out_in), (err, err_in) = pipes
    monitor = os.getpid()
    pid = os.fork()
    if pid == 0:
        run_child(setup, PipeEnds(orders=orders_in, words=words_in, out=out_in, err=err_in), monitor)
    for end in (orders_in, words_in, out_in, err_in):
        os.close(end)
    for end in (orders, words, out, err):
        os.set_blocking(end, False)
    child = Child(pid=pid, orders=orders, words=words, out=out, err=err)
    _await_settled(child)
    return child


def some(descriptor: int) -> bytes | None:
    """What can be read now; None when there is nothing at the moment, nothing at all at the end."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _await_settled(child: Child) -> None:
    events = select.poll()
    events.register(child.words, select.POLLIN)
    if events.poll(_SETTLING_MS) and SETTLED in child.frames.feed(some(child.words) or b""):
        return
    child.close()
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
    raise ChildNotReady


_END_SECONDS = 5.0
_LONGEST_POLL = 60.0
# What surrounds the largest result in its frame, or the longest error.
_FRAME_BYTES = 1_048_576
# How often the worker hears of activities at the most, however often a child speaks of them.
_TELL_SECONDS = 0.1


class Watch:
    """One order of one child."""

    def __init__(
        self, child: Child, order: Order, setup: ChildSetup, link: WorkerLink, exits: ChildExits, directory: Path
    ) -> None:
        self._child = child
        self._link = link
        self._exits = exits
        self._grace = order.kill_grace
        self._task = setup.tasks.get(order.name)
        self._lasts = child.served + 1 < setup.child_reuse and self._task.command is None and not self._task.fresh
        self._unfed = memoryview(_input_of(order, directory, self._task.command is not None, self._task.fresh, setup))
        child.frames.limit = setup.max_output_bytes + _FRAME_BYTES
        self._tail = Tail()
        self._streams = {child.out: Lines(setup.max_output_bytes), child.err: Lines(setup.max_output_bytes)}
        is_command = self._task.command is not None
        self._echoes = {
            child.out: Echo(order.request_id, is_result=is_command),
            child.err: Echo(order.request_id),
        }
        self._said = b""
        self._activity: bytes | None = None
        self._untold: bytes | None = None
        self._tell_at = 0.0
        self._began = time.monotonic()
        self._end_at = self._began + order.timeout
        self._kill_at = inf
        self._killed_with: str | None = None
        self._timed_out = False
        self.ended = False
        """Whether the child is no more, rather than waiting for its next order."""

    def until_done(self) -> Report:
        """Watch until the child has ended or waits for more."""
        events = self._events()
        while not self.ended and not (self._lasts and self._said[:1] == RESULT):
            for descriptor, _ in events.poll(self._poll_ms()):
                self._attend(descriptor, events)
            self._keep_time()
        self._child.served += 1
        return self._report_of_ended() if self.ended else self._report(0, None, kernel.resident_bytes(self._child.pid))

    def _events(self) -> select.poll:
        events = select.poll()
        events.register(self._child.orders, select.POLLOUT)
        for descriptor in (self._link.fileno(), self._exits.readable, self._child.words, *self._streams):
            events.register(descriptor, select.POLLIN)
        return events

    def _attend(self, descriptor: int, events: select.poll) -> None:
        if descriptor == self._exits.readable:
            self._exits.heard()
            self.ended = self._child.has_ended()
        elif descriptor == self._link.fileno():
            for told in self._link.hear():
                if isinstance(told, Halt):
                    self._halt(told.grace)
        elif descriptor == self._child.orders:
            self._feed(events)
        elif not self._read(descriptor):
            events.unregister(descriptor)

    def _feed(self, events: select.poll) -> None:
        """Give the child what it has not read yet."""
        try:
            self._unfed = self._unfed[os.write(self._child.orders, self._unfed[: 1 << 16]) :]
        except BlockingIOError:
            return
        except OSError:
            self._unfed = self._unfed[:0]
        if not self._unfed:
            events.unregister(self._child.orders)
            if self._task.command is not None or self._task.fresh:
                self._child.close_orders()

    def _read(self, descriptor: int) -> bool:
        """Take in what the child says or prints; False at the end of it."""
        data = some(descriptor)
        if data and descriptor == self._child.words:
            try:
                self._listen(data)
            except FrameTooLong:
                self._said = b""
                return False
        elif data:
            self._tail.feed(data)
            self._echoes[descriptor].feed(data)
            if self._task.command is not None:
                activities = self._streams[descriptor].feed(data)
                if descriptor == self._child.out:
                    self._tell_of(activities)
        return data != b""

    def _listen(self, data: bytes) -> None:
        for word in self._child.frames.feed(data):
            if word[:1] == ACTIVITY:
                # The pipe is the child's to write: what is no activity is dropped.
                self._tell_of([told for told in (checked_activity(word[1:]),) if told is not None])
            else:
                self._said = word

    def _tell_of(self, activities: list[bytes]) -> None:
        for activity in activities[-1:]:
            self._activity = self._untold = activity

    def _poll_ms(self) -> float:
        tell_at = inf if self._untold is None else self._tell_at
        left = min(self._end_at, self._kill_at, tell_at) - time.monotonic()
        return max(0.0, min(left, _LONGEST_POLL)) * 1_000 + 1

    def _keep_time(self) -> None:
        now = time.monotonic()
        if now >= self._end_at and not self.ended:
            self._timed_out = True
            self._halt(self._grace)
        if now >= self._kill_at:
            self._halt(0.0)
        if self._untold is not None and now >= self._tell_at and not self.ended:
            self._link.tell(Active(self._untold))
            self._untold, self._tell_at = None, now + _TELL_SECONDS

    def _halt(self, grace: float) -> None:
        self._end_at = inf
        self._kill_at = time.monotonic() + grace if grace > 0 else inf
        number = signal.SIGTERM if grace > 0 else signal.SIGKILL
        self._killed_with = number.name
        kernel.kill_group(self._child.pid, number)

    def _report_of_ended(self) -> Report:
        """The report of a child that has ended, after all its descendants have."""
        assert self._child.status is not None
        if not kernel.end_descendants(within=_END_SECONDS):
            # Something cannot be killed. The zygote goes on trying; the worker gets another monitor.
            raise WorkerGone
        for descriptor in (self._child.words, *self._streams):
            while self._read(descriptor) and some_left(descriptor):
                continue
        code = os.waitstatus_to_exitcode(self._child.status)
        return self._report(code if code >= 0 else None, None if code >= 0 else -code, self._child.peak_rss_bytes)

    def _report(self, code: int | None, number: int | None, rss: int) -> Report:
        command = self._task.command is not None
        out, err = self._streams.values()
        for stream in (out, err):
            stream.end()
        for echo in self._echoes.values():
            echo.end()
        return Report(
            pid=self._child.pid,
            elapsed_ms=int((time.monotonic() - self._began) * 1_000),
            exit_code=code,
            signal=None if number is None else _name(number),
            killed_with=self._killed_with,
            timed_out=self._timed_out,
            oom=number == signal.SIGKILL and self._killed_with is None and self._exits.look_for_oom(),
            peak_rss_bytes=rss,
            said=self._said,
            too_long=command and out.too_long,
            out=out.last if command else None,
            err=err.last if command else None,
            last_lines=self._tail.lines(),
            last_activity=self._activity,
        )


def some_left(descriptor: int) -> bool:
    """Whether reading goes on: there is something, or it is not yet known to be the end."""
    events = select.poll()
    events.register(descriptor, select.POLLIN)
    return bool(events.poll(0))


def _input_of(order: Order, directory: Path, is_command: bool, fresh: bool, setup: ChildSetup) -> bytes:
    """What goes into the child's pipe: where it works, its order, and what an exec'd program reads behind them."""
    data = encode(order)
    told = frame(str(directory).encode()) + frame(data)
    if is_command:
        return told + order.document
    return told + frame(setup.plan) + frame(data) if fresh else told


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
