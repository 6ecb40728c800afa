"""The workers of a receiver: one thread polls, others or an event loop handle, and a stop gives back the rest."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial

from postroad.arguments import build_structs
from postroad.backoff import CHANCE, Backoff
from postroad.errors import QueueNotFound, describe
from postroad.queues import Delivery, Queue
from postroad.receiving.breaker import Breaker
from postroad.receiving.handlers import LoopClosed, Users, Workers, settle_in_thread
from postroad.receiving.leases import Attempts, Held
from postroad.receiving.outcomes import STOPPED, Hooks, Outcome, Retry, outcome_of
from postroad.receiving.settlement import Settlement, log_traceback
from postroad.telemetry import tracing

Group = list[Held]
"""Messages that are handled one after another."""
Steps = Generator[Sequence[Delivery], Sequence[Outcome], None]
_CANCEL_SECONDS = 0.5
# The longest wait where waiting costs nothing, so that a stop is noticed soon.
SLICE_SECONDS = 0.5
# How long a stop waits for the transport to take messages back when its own time is over.
_GRACE_SECONDS = 0.2
_inside: ContextVar[Work | None] = ContextVar("postroad_receiver", default=None)


class Work:
    """Has messages decided and settled, group by group in order, until it is stopped."""

    def __init__(
        self,
        settlement: Settlement,
        decide: Callable[[Sequence[Delivery]], Sequence[Outcome]],
        users: Users,
        *,
        concurrency: int,
        together: int,
        raises: bool,
        loop: Callable[[], asyncio.AbstractEventLoop | None],
        adecide: Callable[[Sequence[Delivery]], Awaitable[Sequence[Outcome]]],
    ) -> None:
        self.stopping = threading.Event()
        self.settlement = settlement
        self._decide, self._adecide, self.users = decide, adecide, users
        self.loop = loop
        """Returns the loop on which the next messages are decided; None if threads decide."""
        self._running: set[Future[None]] = set()
        self._slots = asyncio.Semaphore(concurrency)
        """Limits the groups that are decided on the loop."""
        self._concurrency, self._together = concurrency, together
        self._raises = raises and concurrency == 1
        self._workers = Workers(concurrency, "postroad-handler") if concurrency > 1 else None
        self._changed = threading.Condition()
        self._unbegun: dict[int, Held] = {}
        self._begun: dict[int, Held] = {}
        self._open_groups = 0
        self.error: BaseException | None = None
        """The error that ended the work early, to be raised to the caller who waits for it."""
        self.is_over = False
        """Whether the time of a stop is over: a running handler should begin nothing more."""

    @property
    def is_here(self) -> bool:
        """Whether the caller is one of its handlers: waiting for it to end would last for ever."""
        return _inside.get() is self

    def take(self, queue: Queue, deliveries: Sequence[Delivery]) -> None:
        """Handle the messages: on this thread if there is only one, else on others or on an event loop."""
        if not deliveries:
            return
        helds = self.settlement.leases.take(queue, deliveries)
        groups = _groups(helds, fifo=queue.traits.fifo, together=self._together)
        with self._changed:
            self._unbegun.update({id(held): held for held in helds})
            self._open_groups += len(groups)
            late = self.stopping.is_set()
        self.settlement.attempts.seen(deliveries)
        self.settlement.counts.add("received", len(helds))
        with tracing.receiving(queue.name, deliveries):
            self.settlement.observe("received", None, deliveries=deliveries, queue=queue.name)
        if late:
            # They came after a stop had given back what it saw.
            self.give_back()
        loop = self.loop()
        for group in groups:
            if loop is not None:
                future = asyncio.run_coroutine_threadsafe(self._arun(group), loop)
                with self._changed:
                    self._running.add(future)
                future.add_done_callback(self._forget)
            elif self._workers is None:
                self._run(group)
            else:
                context = copy_context()
                self._workers.submit(partial(context.run, partial(self._run, group)))

    def room(self, timeout: float) -> int:
        """Wait up to `timeout` seconds for a free thread and return how many are free; 0 at a stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._open_groups < self._concurrency or self.stopping.is_set(), timeout)
            return 0 if self.stopping.is_set() else max(0, self._concurrency - self._open_groups)

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """Wait until all messages are settled, and return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open_groups == 0, timeout)

    def halt(self) -> None:
        with self._changed:
            self.stopping.set()
            self._changed.notify_all()

    def give_back(self) -> None:
        """Release all messages on which nothing began."""
        with self._changed:
            helds, self._unbegun = list(self._unbegun.values()), {}
        self.settlement.give_back(helds)

    def give_back_begun(self) -> int:
        """Release messages that are still being handled; their outcome here is ignored from now on."""
        with self._changed:
            helds, self._begun = list(self._begun.values()), {}
        self.settlement.give_back(helds, begun=True)
        return len(helds)

    def finish(self, deadline: float) -> bool:
        """Wait for running handlers, and return whether all ended in time."""
        mine = int(self.is_here)
        with self._changed:
            if not mine:
                self._changed.wait_for(lambda: not self._begun, max(0.0, deadline - time.monotonic()))
            self.is_over = True
            ended, late = len(self._begun) <= mine, list(self._running)
        if not ended and late:
            # Handlers on a loop can be cancelled: their messages are released for others.
            for future in late:
                future.cancel()
            with self._changed:
                self._changed.wait_for(lambda: not self._begun, _CANCEL_SECONDS)
        return ended

    def _forget(self, future: Future[None]) -> None:
        with self._changed:
            self._running.discard(future)

    async def _arun(self, group: Group) -> None:
        """Do what `_run` does on a loop: `decide` is awaited and everything that may block runs in a thread."""
        # A task has a context of its own, which ends with it.
        _inside.set(self)
        steps = self._steps(group)
        with self.users.inside():
            try:
                async with self._slots:
                    deliveries = await settle_in_thread(_advance, steps, None)
                    while deliveries is not None:
                        outcomes = await self._adecided(deliveries)
                        deliveries = await settle_in_thread(_advance, steps, outcomes)
            except Exception as error:
                # A message that is not settled comes back by itself when its visibility ends.
                self.settlement.observe("receive_failed", None, error=error)
                await settle_in_thread(self.settlement.give_back, self._withdraw(group))
            finally:
                steps.close()
                self._close_group(flushes=False)

    async def _adecided(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome]:
        try:
            return await self._adecide(deliveries)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            if not self.is_over:
                # This was not a stop, so the loop is about to end.
                self.halt()
                await settle_in_thread(self.give_back)
            return [Retry(0.0, "the handler was cancelled by a stop", label=STOPPED)] * len(deliveries)
        except BaseException as error:
            log_traceback(error, receiver=self.settlement.name)
            return [outcome_of(error)] * len(deliveries)

    def _run(self, group: Group) -> None:
        token = _inside.set(self)
        steps = self._steps(group)
        with self.users.inside():
            try:
                deliveries = next(steps)
                while True:
                    deliveries = steps.send(self._decided(deliveries))
            except StopIteration:
                pass
            except BaseException as error:
                if self._raises and not isinstance(error, Exception):
                    raise
                # A message that is not settled comes back by itself when its visibility ends. This thread goes on.
                self.settlement.observe("receive_failed", None, error=error)
                self.settlement.give_back(self._withdraw(group))
            finally:
                steps.close()
                _inside.reset(token)
                self._close_group()

    def _decided(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome]:
        try:
            return self._decide(deliveries)
        except BaseException as error:
            log_traceback(error, receiver=self.settlement.name)
            if self._raises and not isinstance(error, Exception):
                # Ctrl-C and sys.exit() are for the caller who waits; otherwise they are a failure of the handler.
                self.error = error
                self.halt()
                return [Retry(error=describe(error), label="interrupted")] * len(deliveries)
            return [outcome_of(error)] * len(deliveries)

    def _steps(self, group: Group) -> Steps:
        """Begin messages, yield them to be decided, and settle them; a failed one releases those behind it."""
        rest = group
        while rest:
            helds, rest = rest[: self._together], rest[self._together :]
            begun = [held for held in helds if self._begin(held)]
            try:
                ours = [held for held in begun if not held.lost]
                for held in begun:
                    if held.lost:
                        self.settlement.lose(held, self._withdraw(rest))
                if not ours:
                    return
                outcomes = yield [held.delivery for held in ours]
                settled = [
                    self.settlement.settle(held, outcome, rest, self._withdraw)
                    for held, outcome in zip(ours, outcomes, strict=True)
                    if id(held) in self._begun
                ]
            except BaseException:
                self.settlement.leases.let_go(begun)
                raise
            finally:
                with self._changed:
                    for held in begun:
                        self._begun.pop(id(held), None)
                    self._changed.notify_all()
            if not all(settled):
                return

    def _begin(self, held: Held) -> bool:
        """Return whether the message is still ours to handle."""
        with self._changed:
            if self.stopping.is_set() or self._unbegun.pop(id(held), None) is None:
                return False
            self._begun[id(held)] = held
        self.settlement.leases.begin(held)
        return True

    def _close_group(self, *, flushes: bool = True) -> None:
        with self._changed:
            self._open_groups -= 1
            idle = self._open_groups == 0
            self._changed.notify_all()
        if idle and flushes and self._workers is None:
            # No other thread is about to fill the batch of acks.
            self.settlement.acks.flush()

    def _withdraw(self, helds: Sequence[Held]) -> list[Held]:
        """Return those on which nothing began and which a stop has not given back already."""
        with self._changed:
            return [held for held in helds if self._unbegun.pop(id(held), None) is not None]


def _advance(steps: Steps, outcomes: Sequence[Outcome] | None) -> Sequence[Delivery] | None:
    """Take the next step; return None at the end, because a future cannot carry StopIteration."""
    try:
        return next(steps) if outcomes is None else steps.send(outcomes)
    except StopIteration:
        return None


def current_work() -> Work | None:
    """Return the work of the receiver whose handler calls this; None outside of handlers."""
    return _inside.get()


def _groups(helds: Sequence[Held], *, fifo: bool, together: int) -> list[Group]:
    """Return the messages that run one after another: those of one FIFO group in order, all others by themselves."""
    if not fifo:
        return [list(helds[start : start + together]) for start in range(0, len(helds), together)]
    groups: dict[str | None, Group] = {}
    for held in helds:
        groups.setdefault(held.delivery.group, []).append(held)
    return list(groups.values())


@dataclass(slots=True, kw_only=True)
class Poller:
    """Receives for one receiver: how many messages at once, and for how long it waits."""

    source: Callable[[], Queue]
    """Returns the queue as it is now."""
    hooks: Hooks
    attempts: Attempts
    breaker: Breaker | None
    batch: int
    wait: float
    visibility: float | None
    prefetch: bool
    turned_at: float | None = None
    short_waits: bool = False
    """Whether polls are short, as far as known: the queue may not have been reached yet."""

    def poll(self, work: Work, wait: float, room: int | None = None) -> tuple[Queue, list[Delivery]]:
        """Receive once. If the queue was removed and made again, nothing was received."""
        source, most = self.source(), self.batch
        if self.breaker is not None and self.breaker.pause():
            return source, []
        if room is not None and not self.prefetch:
            most = min(most, room)
        # A breaker that is half open lets single messages through as probes.
        probing = self.breaker is not None and self.breaker.state == "half_open"
        most = 1 if probing else self.attempts.batch(most, wait)
        try:
            return source, self._receive(source, work, wait, most)
        except QueueNotFound:
            if work.stopping.is_set() or not self.hooks.reopen(source):
                raise
            return source, []

    def _receive(self, source: Queue, work: Work, wait: float, most: int) -> list[Delivery]:
        """Receive, waiting in short slices where these cost nothing."""
        deadline, short = time.monotonic() + wait, source.traits.short_waits
        self.short_waits = short
        while True:
            left = max(0.0, deadline - time.monotonic())
            found = source.receive(
                max_messages=most, wait=min(left, SLICE_SECONDS) if short else wait, visibility=self.visibility
            )
            # A long poll that returns early with nothing is over: the pause after an empty poll follows.
            if found or not short or time.monotonic() >= deadline or work.stopping.is_set():
                return found


class Loop:
    """One start of a receiver. It has its own stop signal, so that an old thread never comes back to life."""

    def __init__(self, poller: Poller, work: Work, home: asyncio.AbstractEventLoop | None) -> None:
        self._poller, self._work, self._observe = poller, work, work.settlement.observe
        self.home = home
        """The program's event loop in which it was started; a stop on its thread cannot wait for handlers."""
        # Handlers see the context variables of the code that started the receiver.
        run = copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), name="postroad-receiver", daemon=True)
        self.error: BaseException | None = None
        """The error that ended the thread, unless it was stopped."""

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._work.stopping.is_set()

    def start(self) -> None:
        build_structs()
        self._thread.start()

    def halt(self) -> None:
        """Start no handler from the moment this returns."""
        self._work.halt()

    def stop(self, timeout: float, *, waits: bool = True) -> bool:
        """Give back what has not begun and wait for the rest; return after at most `timeout` seconds."""
        work, deadline = self._work, time.monotonic() + timeout
        self._within(deadline, work.give_back)
        if not waits:
            return work.wait_until_idle(0)
        ended = work.finish(deadline)
        if not ended:
            late = work.give_back_begun() if self._poller.hooks.releases_late else 0
            self._observe("stop_timed_out", None, messages=late)
        self._within(deadline, work.settlement.acks.flush)
        if not work.is_here and (self._poller.hooks.joins or self._poller.short_waits):
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return ended

    def _within(self, deadline: float, action: Callable[[], None]) -> None:
        """Run the action; when the time is over, go on without it, because the network may be gone."""
        if self._poller.short_waits:
            action()
            return
        thread = threading.Thread(target=action, name="postroad-stop", daemon=True)
        thread.start()
        thread.join(max(_GRACE_SECONDS, deadline - time.monotonic()))

    def _run(self) -> None:
        backoff = Backoff()
        try:
            with self._work.users.inside(), self._poller.hooks.during():
                while not self._work.stopping.is_set():
                    self._turn(backoff)
        except BaseException as error:
            self.error = error

    def _turn(self, backoff: Backoff) -> None:
        poller, work, breaker = self._poller, self._work, self._poller.breaker
        poller.turned_at = time.monotonic()
        room = work.room(SLICE_SECONDS)
        try:
            # This raises if the event loop was closed.
            work.loop()
            if not room:
                return
            if breaker is not None and (pause := breaker.pause()) > 0:
                work.stopping.wait(min(pause, SLICE_SECONDS))
                return
            poller.hooks.ready()
            source, deliveries = poller.poll(work, poller.wait, room)
            self._observe("polled", None)
            if deliveries:
                work.take(source, deliveries)
            elif poller.hooks.idle_pause:
                work.stopping.wait(poller.hooks.idle_pause * CHANCE.uniform(0.5, 1.5))
            backoff.reset()
        except LoopClosed:
            # Handlers that run on it will never end: release their messages, too.
            work.halt()
            work.give_back()
            work.give_back_begun()
        except Exception as error:
            work.give_back()
            if not work.stopping.is_set():
                if breaker is not None:
                    breaker.failed()
                self._observe("receive_failed", None, error=error)
                work.stopping.wait(backoff.next())
