"""Polling a queue on a thread, with pauses after failures, until a stop."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass

from postroad.backoff import CHANCE, Backoff
from postroad.errors import QueueNotFound
from postroad.queues import Delivery, Queue
from postroad.receiving.asynchrony import LoopClosed, LoopThread
from postroad.receiving.breaker import Breaker
from postroad.receiving.housekeeping import Chore
from postroad.receiving.leases import Attempts
from postroad.receiving.outcomes import ADecide
from postroad.receiving.settlement import Observe, Settlement
from postroad.receiving.work import Users, Work

# How long a wait may be where waiting costs nothing, so that a stop is noticed soon.
SLICE_SECONDS = 0.5
# What stands for ever: locks refuse to wait much longer than this.
YEAR_SECONDS = 31_536_000.0
# How long a stop waits for the transport to take back what was in hand, when its own time is over.
_GRACE_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the parts of Postroad that are built on a receiver add to it."""

    observe: Observe | None = None
    """Hears what happens instead of the receiver's own log."""
    ready: Callable[[], None] = lambda: None
    """Called before each receive; while it raises, nothing is received."""
    reopen: Callable[[Queue], bool] = lambda queue: False
    """Called when the queue was removed: whether there is another one from now on."""
    chores: Sequence[Chore] = ()
    """Done by the receiver's housekeeping thread."""
    adecide: ADecide | None = None
    """Decides instead of `decide` while `on_loop` says so."""
    on_loop: Callable[[], bool] = lambda: False
    """Whether the next messages are decided on an event loop."""
    loop_thread: LoopThread | None = None
    """The loop of a receiver that was not started in one; by default its own."""
    longest: float = math.inf
    """How many seconds a lease is extended for at the most, from the moment its handler began."""
    idle_pause: float = 0.0
    """Seconds to pause after a poll that found nothing, more or less by half."""
    during: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered by the thread that receives, for as long as it does."""
    releases_late: bool = False
    """Whether messages that are still being handled when the time for stopping ends are released for others."""
    joins: bool = True
    """Whether a stop waits for a long poll to end; else it goes on behind, and gives back what it brings."""


class Poller:
    """Receives for one receiver: how much at once, and for how long it waits."""

    def __init__(
        self,
        source: Callable[[], Queue],
        *,
        hooks: Hooks,
        attempts: Attempts,
        breaker: Breaker,
        batch: int,
        wait: float,
        visibility: float | None,
        prefetch: bool,
    ) -> None:
        self.hooks, self.breaker, self.wait = hooks, breaker, wait
        self._source, self._attempts = source, attempts
        self._batch, self._visibility, self._prefetch = batch, visibility, prefetch
        self.turned_at: float | None = None
        self.short_waits = False
        """Whether polls are short ones, as far as known: the queue may not have been reached yet."""

    @property
    def source(self) -> Queue:
        """The queue as it is now."""
        return self._source()

    def poll(self, work: Work, wait: float, room: int | None = None) -> tuple[Queue, list[Delivery]]:
        """Receive once. A queue that somebody removed may be made again, and then nothing was received."""
        source = self.source
        if self.breaker.pause():
            return source, []
        most = self._batch if self._prefetch or room is None else min(self._batch, room)
        # A breaker that is half open lets single messages through as probes.
        most = 1 if self.breaker.state == "half_open" else self._attempts.batch(most, wait)
        try:
            return source, self._receive(source, work, wait, most)
        except QueueNotFound:
            if work.stopping.is_set() or not self.hooks.reopen(source):
                raise
            return source, []

    def _receive(self, source: Queue, work: Work, wait: float, most: int) -> list[Delivery]:
        """Wait in short slices where these cost nothing."""
        deadline, short = time.monotonic() + wait, source.traits.short_waits
        self.short_waits = short
        while True:
            left = max(0.0, deadline - time.monotonic())
            found = source.receive(
                max_messages=most, wait=min(left, SLICE_SECONDS) if short else wait, visibility=self._visibility
            )
            # A long poll that is answered early with nothing is over: the pause behind an empty poll follows.
            if found or not short or time.monotonic() >= deadline or work.stopping.is_set():
                return found


class Loop:
    """One start of a receiver. Its stop signal is its own, so that an old thread never comes back to life."""

    def __init__(self, poller: Poller, work: Work, settlement: Settlement, users: Users) -> None:
        self._poller, self._work, self._users = poller, work, users
        self._observe, self._flush = settlement.observe, settlement.acks.flush
        # Handlers see the context variables of whoever started the receiver.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="postroad-receiver", daemon=True
        )
        self.error: BaseException | None = None
        """What ended the thread, unless it was stopped."""

    @property
    def is_alive(self) -> bool:
        """Whether it still receives."""
        return self._thread.is_alive() and not self._work.stopping.is_set()

    def start(self) -> None:
        """Receive on a thread from now on."""
        self._thread.start()

    def stop(self, timeout: float, *, waits: bool = True) -> bool:
        """Start no handler from the moment this returns, at the latest after `timeout` seconds."""
        work, deadline = self._work, time.monotonic() + timeout
        work.halt()
        self._within(deadline, work.give_back)
        if not waits:
            return work.wait_until_idle(0)
        ended = work.finish(deadline)
        if not ended:
            late = work.give_back_begun() if self._poller.hooks.releases_late else 0
            self._observe("stop_timed_out", None, messages=late)
        self._within(deadline, self._flush)
        if not work.is_here and (self._poller.hooks.joins or self._poller.short_waits):
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return ended

    def _within(self, deadline: float, action: Callable[[], None]) -> None:
        """Do it, and go on without waiting for its end when a network that is gone keeps it for too long."""
        if self._poller.short_waits:
            action()
            return
        thread = threading.Thread(target=action, name="postroad-stop", daemon=True)
        thread.start()
        thread.join(max(_GRACE_SECONDS, deadline - time.monotonic()))

    def _run(self) -> None:
        backoff = Backoff()
        try:
            with self._users.inside(), self._poller.hooks.during():
                while not self._work.stopping.is_set():
                    self._turn(backoff)
        except BaseException as error:
            self.error = error

    def _turn(self, backoff: Backoff) -> None:
        self._poller.turned_at = time.monotonic()
        room = self._work.room(SLICE_SECONDS)
        try:
            self._work.check_loop()
            if not room:
                return
            if (pause := self._poller.breaker.pause()) > 0:
                self._work.stopping.wait(min(pause, SLICE_SECONDS))
                return
            self._serve(room)
            backoff.reset()
        except LoopClosed:
            # What runs on it will never end: it is for others, like all that was not begun.
            self._work.halt()
            self._work.give_back()
            self._work.give_back_begun()
        except Exception as error:
            self._work.give_back()
            if not self._work.stopping.is_set():
                self._poller.breaker.failed()
                self._observe("receive_failed", None, error=error)
                self._work.stopping.wait(backoff.next())

    def _serve(self, room: int) -> None:
        hooks = self._poller.hooks
        hooks.ready()
        source, deliveries = self._poller.poll(self._work, self._poller.wait, room)
        self._observe("polled", None)
        if deliveries:
            self._work.take(source, deliveries)
        elif hooks.idle_pause:
            self._work.stopping.wait(hooks.idle_pause * CHANCE.uniform(0.5, 1.5))
