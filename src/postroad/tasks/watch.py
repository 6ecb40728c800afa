"""A child as its monitor sees it: it is forked, gets an order, replies, and ends in time with all its descendants."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from math import inf

from postroad.tasks import processes
from postroad.tasks.child_output import Echo, Lines, Reported, Tail, Unchanged, reported_by
from postroad.tasks.processes import Halt, Link, Order, PeerGone, Report, ToMonitor
from postroad.tasks.task_child import ChildSetup, run_child

_SETTLING_MS = 30_000
# Linux counts kilobytes there, macOS bytes.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1_024


class ChildNotReady(Exception):
    """A child did not get ready for an order."""


class ChildExits:
    """Notices the ends of children of this process: `readable` is readable then."""

    def __init__(self) -> None:
        self._oom_kills = processes.oom_kills()
        self.readable, written = os.pipe()
        for end in (self.readable, written):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def look_for_oom(self) -> bool:
        """Return whether the kernel has killed for lack of memory since the last look; an idle monitor looks often."""
        before, self._oom_kills = self._oom_kills, processes.oom_kills()
        return self._oom_kills > before


@dataclass(slots=True, kw_only=True)
class Child:
    """A running child. `orders` is written, the other pipes are read; none of them blocks."""

    pid: int
    orders: int
    replies: int
    out: int
    err: int
    frames: processes.Frames = field(default_factory=processes.Frames)
    events: select.poll = field(default_factory=select.poll)
    """What its monitor waits for while it has an order."""
    served: int = 0
    status: int | None = None
    """Its wait status; None while it runs."""
    peak_rss_bytes: int = 0

    def has_ended(self) -> bool:
        """Return whether the process has ended; then `status` is set."""
        if self.status is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.status, self.peak_rss_bytes = status, usage.ru_maxrss * _RSS_UNIT
        return self.status is not None

    def close(self) -> None:
        for end in (self.orders, self.replies, self.out, self.err):
            if end >= 0:
                os.close(end)


def fork_child(setup: ChildSetup) -> Child:
    """Fork a child and wait until it is set up."""
    sys.stdout.flush()
    sys.stderr.flush()
    pipes = [os.pipe() for _ in range(4)]
    (orders_in, orders), (replies, replies_in), (out, out_in), (err, err_in) = pipes
    monitor = os.getpid()
    pid = os.fork()
    if pid == 0:
        run_child(setup, (out_in, err_in, replies_in, orders_in), monitor)
    for end in (orders_in, replies_in, out_in, err_in):
        os.close(end)
    for end in (orders, replies, out, err):
        os.set_blocking(end, False)
    child = Child(pid=pid, orders=orders, replies=replies, out=out, err=err)
    events = select.poll()
    events.register(replies, select.POLLIN)
    if events.poll(_SETTLING_MS) and processes.SETTLED in child.frames.feed(read_some(replies) or b""):
        return child
    child.close()
    processes.kill(pid, signal.SIGKILL)
    raise ChildNotReady


def read_some(descriptor: int) -> bytes | None:
    """Return what can be read now; None if there is nothing at the moment, an empty value at the end."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None
    except OSError:
        return b""


_END_SECONDS = 5.0
_LONGEST_POLL = 60.0
# The rest of the frame around the largest result, or the longest error.
_FRAME_BYTES = 1_048_576
# The shortest time between two activities that are sent to the worker.
_ACTIVITY_SECONDS = 0.1


class Watch:
    """One order of one child."""

    def __init__(self, child: Child, order: Order, setup: ChildSetup, link: Link[ToMonitor], exits: ChildExits) -> None:
        self._child = child
        self._link = link
        self._exits = exits
        self._grace = order.kill_grace
        self._task = setup.tasks.get(order.name)
        self._lasts = child.served + 1 < setup.plan.child_reuse and self._task.command is None and not self._task.fresh
        data = processes.encode(order)
        unfed = processes.frame(data)
        # What an exec'd program or interpreter reads after its order.
        if self._task.command is not None:
            unfed += order.document
        elif self._task.fresh:
            unfed += processes.frame(setup.encoded_plan) + processes.frame(data)
        self._unfed = memoryview(unfed)
        child.frames.limit = setup.plan.max_output_bytes + _FRAME_BYTES
        self._tail = Tail()
        self._streams = {child.out: Lines(setup.plan.max_output_bytes), child.err: Lines(setup.plan.max_output_bytes)}
        self._echoes: dict[int, Echo | Unchanged] = {}
        """What writes the output to the log; nothing if it is dropped."""
        if setup.plan.task_output == "inherit":
            self._echoes = {child.out: Unchanged(), child.err: Unchanged()}
        elif setup.plan.task_output == "log":
            out = Echo(order.request_id, is_result=self._task.command is not None)
            self._echoes = {child.out: out, child.err: Echo(order.request_id)}
        self._reply = b""
        self._reported = Reported()
        self._unsent = False
        self._send_at = 0.0
        self._began = time.monotonic()
        self._end_at = self._began + order.timeout
        self._kill_at = inf
        self._killed_with: str | None = None
        self._timed_out = False
        self.ended = False
        """Whether the child has ended, rather than waiting for its next order."""

    def until_done(self) -> Report:
        """Watch until the child has ended or waits for another order."""
        events = self._child.events
        events.register(self._child.orders, select.POLLOUT)
        self._feed(events)
        if not self._child.served:
            for descriptor in (self._link.fileno(), self._exits.readable, self._child.replies, *self._streams):
                events.register(descriptor, select.POLLIN)
        while not self.ended and not (self._lasts and self._reply[:1] == processes.RESULT):
            send_at = self._send_at if self._unsent else inf
            left = min(self._end_at, self._kill_at, send_at) - time.monotonic()
            for descriptor, _ in events.poll(max(0.0, min(left, _LONGEST_POLL)) * 1_000 + 1):
                self._attend(descriptor, events)
            self._keep_time()
        self._child.served += 1
        return self._report_of_ended() if self.ended else self._report(0, 0)

    def _attend(self, descriptor: int, events: select.poll) -> None:
        if descriptor == self._exits.readable:
            read_some(descriptor)
            self.ended = self._child.has_ended()
        elif descriptor == self._link.fileno():
            for received in self._link.receive():
                if isinstance(received, Halt):
                    self._halt(received.grace)
        elif descriptor == self._child.orders:
            self._feed(events)
        elif self._read(descriptor) == b"":
            events.unregister(descriptor)

    def _feed(self, events: select.poll) -> None:
        try:
            self._unfed = self._unfed[os.write(self._child.orders, self._unfed[: 1 << 16]) :]
        except BlockingIOError:
            return
        except OSError:
            self._unfed = self._unfed[:0]
        if not self._unfed:
            events.unregister(self._child.orders)
            if self._task.command is not None or self._task.fresh:
                # The child reads the end of its input.
                os.close(self._child.orders)
                self._child.orders = -1

    def _read(self, descriptor: int) -> bytes | None:
        """Read replies or output of the child; return what `read_some` returned, an empty value after a bad frame."""
        data = read_some(descriptor)
        if data and descriptor == self._child.replies:
            try:
                replies = self._child.frames.feed(data)
            except processes.FrameTooLong:
                self._reply = b""
                return b""
            for reply in replies:
                if reply[:1] == processes.REPORTED:
                    self._note(reported_by(reply[1:]))
                else:
                    self._reply = reply
        elif data:
            self._tail.feed(data)
            if (echo := self._echoes.get(descriptor)) is not None:
                echo.feed(data)
            if self._task.command is not None:
                for reported in self._streams[descriptor].feed(data):
                    self._note(reported if descriptor == self._child.out else None)
        return data

    def _note(self, reported: Reported | None) -> None:
        """Note what the child reported. The task can write to the pipe, too: None is what cannot be read."""
        if reported is not None:
            self._reported = reported.over(self._reported)
            self._unsent = True

    def _keep_time(self) -> None:
        now = time.monotonic()
        if now >= self._end_at and not self.ended:
            self._timed_out = True
            self._halt(self._grace)
        if now >= self._kill_at:
            self._halt(0.0)
        if self._unsent and now >= self._send_at and not self.ended:
            self._link.send(processes.Active(self._reported.activity, self._reported.progress))
            self._unsent, self._send_at = False, now + _ACTIVITY_SECONDS

    def _halt(self, grace: float) -> None:
        self._end_at = inf
        self._kill_at = time.monotonic() + grace if grace > 0 else inf
        number = signal.SIGTERM if grace > 0 else signal.SIGKILL
        self._killed_with = number.name
        processes.kill_group(self._child.pid, number)

    def _report_of_ended(self) -> Report:
        """Return the report of a child that has ended, after all its descendants have ended."""
        assert self._child.status is not None
        if not processes.end_descendants(within=_END_SECONDS):
            # A process cannot be killed. The zygote keeps trying; the worker gets another monitor.
            raise PeerGone
        for descriptor in (self._child.replies, *self._streams):
            while self._read(descriptor):
                continue
        return self._report(os.waitstatus_to_exitcode(self._child.status), self._child.peak_rss_bytes)

    def _report(self, code: int, rss: int) -> Report:
        """Return the report; a code below 0 is the signal that ended the child, and only one that ended has an RSS."""
        command = self._task.command is not None
        out, err = self._streams.values()
        for stream in (out, err):
            stream.end()
        for echo in self._echoes.values():
            echo.end()
        return Report(
            pid=self._child.pid,
            elapsed_ms=int((time.monotonic() - self._began) * 1_000),
            exit_code=code if code >= 0 else None,
            signal=_name(-code) if code < 0 else None,
            killed_with=self._killed_with,
            timed_out=self._timed_out,
            oom=code == -signal.SIGKILL and self._killed_with is None and self._exits.look_for_oom(),
            peak_rss_bytes=rss,
            reply=self._reply,
            too_long=command and out.too_long,
            out=out.last if command else None,
            err=err.last if command else None,
            last_lines=self._tail.lines(),
            reported=self._reported,
        )


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
