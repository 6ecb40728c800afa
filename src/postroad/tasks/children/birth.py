"""A child as its keeper sees it: a process and the keeper's ends of its pipes."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field

from postroad.tasks.children import kernel
from postroad.tasks.children.child import Ends, Life, live
from postroad.tasks.children.wire import SETTLED, Frames

_SETTLING_MS = 30_000
# Linux counts kilobytes there, macOS bytes.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1_024


class StillBirth(Exception):
    """A child that never came so far as to wait for an order."""


class Deaths:
    """Tells when some child of this process has ended: `bell` is readable then."""

    def __init__(self) -> None:
        self._oom_kills = kernel.oom_kills()
        self.bell, rung = os.pipe()
        for end in (self.bell, rung):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(rung, warn_on_full_buffer=False)

    def heard(self) -> None:
        """Be quiet until the next one."""
        some(self.bell)

    def look_for_oom(self) -> bool:
        """Whether the kernel has killed for want of memory since the last look, which an idle keeper takes often."""
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


def bear(life: Life) -> Child:
    """Fork a child and wait until it has settled in."""
    sys.stdout.flush()
    sys.stderr.flush()
    pipes = [os.pipe() for _ in range(4)]
    (orders_in, orders), (words, words_in), (out, out_in), (err, err_in) = pipes
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        live(life, Ends(orders=orders_in, words=words_in, out=out_in, err=err_in), keeper)
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
    raise StillBirth
