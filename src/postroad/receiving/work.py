"""One start of a receiver: what it holds, the threads that handle it, and a stop that hides nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial

from postroad.errors import describe
from postroad.queues import Delivery, Queue
from postroad.receiving.asynchrony import to_its_end
from postroad.receiving.leases import Held
from postroad.receiving.outcomes import Outcome, Retry
from postroad.receiving.settlement import Settlement

Group = list[Held]
"""Messages that are handled one after another."""
Decided = Callable[[Sequence[Delivery]], Sequence[Outcome]]
ADecided = Callable[[Sequence[Delivery]], Awaitable[Sequence[Outcome]]]
_IDLE_SECONDS = 5.0
_CANCEL_SECONDS = 0.5
_inside: ContextVar[Work | None] = ContextVar("postroad_receiver", default=None)


class Workers:
    """Daemon threads that come when there is work and go when there was none for a while."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._idle = self._count = 0

    def submit(self, job: Callable[[], None]) -> None:
        """Run the job on a thread as soon as one is free."""
        with self._changed:
            self._jobs.append(job)
            if len(self._jobs) > self._idle and self._count < self._most:
                self._count += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            else:
                self._changed.notify()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._jobs, _IDLE_SECONDS)
            self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._count -= 1
            return None


class Users:
    """Counts those who poll or handle; what has to wait for the last of them runs when it leaves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._afterwards: Callable[[], None] | None = None

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be one of those inside for as long as the block runs."""
        with self._lock:
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
            self._act()

    def afterwards(self, action: Callable[[], None]) -> None:
        """Run the action once when nobody is inside: now, or on the thread of the last one to leave."""
        with self._lock:
            self._afterwards = action
        self._act()

    def _act(self) -> None:
        with self._lock:
            if self._inside or self._afterwards is None:
                return
            action, self._afterwards = self._afterwards, None
        action()


class Work:
    """Has messages decided and settled, group by group in order, until it is told to stop."""

    def __init__(
        self,
        settlement: Settlement,
        decide: Decided,
        users: Users,
        *,
        concurrency: int,
        together: int = 1,
        raises: bool = False,
        loop: Callable[[], asyncio.AbstractEventLoop | None] = lambda: None,
        adecide: ADecided | None = None,
    ) -> None:
        self.stopping = threading.Event()
        self._settlement = settlement
        self._decide, self._adecide, self._users = decide, adecide, users
        self._loop = loop
        """Gives the loop on which the next messages are decided; None where threads decide."""
        self._running: set[Future[None]] = set()
        self._slots = asyncio.Semaphore(concurrency)
        """Free places for groups that are decided on the loop."""
        self._concurrency, self._together = concurrency, together
        self._raises = raises and concurrency == 1
        self._workers = Workers(concurrency, "postroad-handler") if concurrency > 1 else None
        self._changed = threading.Condition()
        self._unbegun: dict[int, Held] = {}
        self._begun: dict[int, Held] = {}
        self._open_groups = 0
        self._over = False
        self.error: BaseException | None = None
        """What ended the work early and has to be raised to the caller who waits for it."""

    @property
    def is_here(self) -> bool:
        """Whether the caller is one of its handlers: waiting for it to end would last for ever."""
        return _inside.get() is self

    def belongs_to(self, settlement: Settlement) -> bool:
        """Whether it works for the receiver that settles so."""
        return self._settlement is settlement

    @property
    def is_over(self) -> bool:
        """Whether the time for stopping has ended: a handler that runs should begin nothing more."""
        return self._over

    def take(self, queue: Queue, deliveries: Sequence[Delivery]) -> None:
        """Handle the messages: here when there is one thread only, else on others or on an event loop."""
        if not deliveries:
            return
        helds = self._settlement.leases.take(queue, deliveries)
        groups = _groups(helds, fifo=queue.traits.fifo, together=self._together)
        with self._changed:
            self._unbegun.update({id(held): held for held in helds})
            self._open_groups += len(groups)
            late = self.stopping.is_set()
        self._settlement.attempts.seen(deliveries)
        self._settlement.counts.add("received", len(helds))
        self._settlement.observe("received", None, deliveries=deliveries)
        if late:
            # They came after a stop had given back what it saw.
            self.give_back()
        loop = self._loop()
        for group in groups:
            if loop is not None:
                self._start_on(loop, group)
            elif self._workers is None:
                self._run(group)
            else:
                self._workers.submit(partial(self._run_in, copy_context(), group))

    def check_loop(self) -> None:
        """Raise `LoopClosed` when the event loop on which messages are decided was closed."""
        self._loop()

    def room(self, timeout: float) -> int:
        """Return how many groups would find a free thread, waiting up to `timeout` seconds for one; 0 at a stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._open_groups < self._concurrency or self.stopping.is_set(), timeout)
            return 0 if self.stopping.is_set() else max(0, self._concurrency - self._open_groups)

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """Wait until all that was taken is settled, and return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open_groups == 0, timeout)

    def halt(self) -> None:
        """Begin on nothing more."""
        with self._changed:
            self.stopping.set()
            self._changed.notify_all()

    def give_back(self) -> None:
        """Release all on which nothing began."""
        with self._changed:
            helds, self._unbegun = list(self._unbegun.values()), {}
        self._settlement.give_back(helds)

    def give_back_begun(self) -> int:
        """Release what is still being handled, for others; what becomes of it here is ignored from now on."""
        with self._changed:
            helds, self._begun = list(self._begun.values()), {}
        self._settlement.give_back(helds, begun=True)
        return len(helds)

    def finish(self, deadline: float) -> bool:
        """Wait for the handlers that run, and return whether all ended in time."""
        mine = int(self.is_here)
        with self._changed:
            if not mine:
                self._changed.wait_for(lambda: not self._begun, max(0.0, deadline - time.monotonic()))
            self._over = True
            ended, late = len(self._begun) <= mine, list(self._running)
        if not ended and late:
            # What runs on a loop can be interrupted: it is released for others.
            for future in late:
                future.cancel()
            with self._changed:
                self._changed.wait_for(lambda: not self._begun, _CANCEL_SECONDS)
        return ended

    def _start_on(self, loop: asyncio.AbstractEventLoop, group: Group) -> None:
        """Have the group decided on the loop, without a thread of its own."""
        future = asyncio.run_coroutine_threadsafe(self._adrive(group), loop)
        with self._changed:
            self._running.add(future)
        future.add_done_callback(self._forget)

    def _forget(self, future: Future[None]) -> None:
        with self._changed:
            self._running.discard(future)

    async def _adrive(self, group: Group) -> None:
        """Do what `_drive` does, where `decide` is awaited and everything that may block runs in a thread."""
        # A task has a context of its own, which ends with it.
        _inside.set(self)
        steps = self._steps(group)
        with self._users.inside():
            try:
                async with self._slots:
                    deliveries = await to_its_end(_advance, steps, None)
                    while deliveries is not None:
                        outcomes = await self._adecided(deliveries)
                        deliveries = await to_its_end(_advance, steps, outcomes)
            except Exception as error:
                # Unsettled, a message comes back by itself when its visibility ends.
                self._settlement.observe("receive_failed", None, error=error)
                await to_its_end(self._settlement.give_back, self._withdraw(group))
            finally:
                steps.close()
                self._close_group(flushes=False)

    async def _adecided(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome]:
        assert self._adecide is not None
        try:
            return await self._adecide(deliveries)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                # Something that the handler waited for was cancelled, not the handler.
                return [Retry(error=describe(error))] * len(deliveries)
            task.uncancel()
            if not self._over:
                # No stop did this, so the loop is about to end.
                self.halt()
                await to_its_end(self.give_back)
            return [Retry(0.0, "the handler was cancelled by a stop", label="interrupted")] * len(deliveries)
        except BaseException as error:
            return [Retry(error=describe(error))] * len(deliveries)

    def _run_in(self, context: Context, group: Group) -> None:
        context.run(self._run, group)

    def _run(self, group: Group) -> None:
        """Drive one group: have its messages decided one after another."""
        with self._users.inside():
            self._drive(group)

    def _drive(self, group: Group) -> None:
        token = _inside.set(self)
        steps = self._steps(group)
        try:
            deliveries = next(steps)
            while True:
                deliveries = steps.send(self._decided(deliveries))
        except StopIteration:
            pass
        except Exception as error:
            # Unsettled, a message comes back by itself when its visibility ends.
            self._settlement.observe("receive_failed", None, error=error)
            self._settlement.give_back(self._withdraw(group))
        finally:
            steps.close()
            _inside.reset(token)
            self._close_group()

    def _decided(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome]:
        try:
            return self._decide(deliveries)
        except BaseException as error:
            label = None
            if self._raises and not isinstance(error, Exception):
                # Ctrl-C and sys.exit() are for the caller who waits; elsewhere they are the handler's failure.
                self.error, label = error, "interrupted"
                self.halt()
            return [Retry(error=describe(error), label=label)] * len(deliveries)

    def _steps(self, group: Group) -> Generator[Sequence[Delivery], Sequence[Outcome], None]:
        """Begin messages, yield them to be decided, and settle them; a failed one takes back what waits behind it."""
        rest = group
        while rest:
            helds, rest = rest[: self._together], rest[self._together :]
            begun = [held for held in helds if self._begin(held)]
            try:
                ours = [held for held in begun if not held.lost]
                for held in begun:
                    if held.lost:
                        self._settlement.lose(held, self._withdraw(rest))
                if not ours:
                    return
                outcomes = yield [held.delivery for held in ours]
                settled = [
                    self._settlement.settle(held, outcome, rest, self._withdraw)
                    for held, outcome in zip(ours, outcomes, strict=True)
                    if id(held) in self._begun
                ]
            except BaseException:
                self._settlement.leases.let_go(begun)
                raise
            finally:
                self._end(begun)
            if not all(settled):
                return

    def _begin(self, held: Held) -> bool:
        """Return whether the message is still ours to handle."""
        with self._changed:
            if self.stopping.is_set() or self._unbegun.pop(id(held), None) is None:
                return False
            self._begun[id(held)] = held
        self._settlement.leases.begin(held)
        return True

    def _end(self, helds: Sequence[Held]) -> None:
        with self._changed:
            for held in helds:
                self._begun.pop(id(held), None)
            self._changed.notify_all()

    def _close_group(self, *, flushes: bool = True) -> None:
        with self._changed:
            self._open_groups -= 1
            idle = self._open_groups == 0
            self._changed.notify_all()
        if idle and flushes and self._workers is None:
            # Nobody else is about to fill the batch of acks.
            self._settlement.acks.flush()

    def _withdraw(self, helds: Sequence[Held]) -> list[Held]:
        """Return those of them on which nothing began and which a stop has not given back already."""
        with self._changed:
            return [held for held in helds if self._unbegun.pop(id(held), None) is not None]


def _advance(
    steps: Generator[Sequence[Delivery], Sequence[Outcome], None], outcomes: Sequence[Outcome] | None
) -> Sequence[Delivery] | None:
    """Take the next step; None when there is none. No future can carry StopIteration."""
    try:
        return next(steps) if outcomes is None else steps.send(outcomes)
    except StopIteration:
        return None


def current_work() -> Work | None:
    """Return the work of the receiver whose handler calls this; None outside of handlers."""
    return _inside.get()


def _groups(helds: Sequence[Held], *, fifo: bool, together: int) -> list[Group]:
    """Arrange what runs one after another: the messages of one FIFO group, in order; all others by themselves."""
    if not fifo:
        return [list(helds[start : start + together]) for start in range(0, len(helds), together)]
    groups: dict[str | None, Group] = {}
    for held in helds:
        groups.setdefault(held.delivery.group, []).append(held)
    return list(groups.values())
