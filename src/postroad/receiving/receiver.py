"""The receiver: polls a queue, has each message decided, and carries out the decision."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, cast

from msgspec import Meta

from postroad.arguments import Seconds, check, refusal, seconds_between, whole_number
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, InvalidInput
from postroad.queues import MAX_VISIBILITY, Delivery, Queue
from postroad.receiving import handlers, outcomes
from postroad.receiving.breaker import Breaker, CircuitBreaker, CircuitBreakerConfig
from postroad.receiving.handlers import LoopClosed, LoopThread, Result, Users
from postroad.receiving.leases import Acks, Attempts, Housekeeper, Leases
from postroad.receiving.outcomes import DeadLetters, Decide, DecideTogether, Delay, Hooks, Outcome
from postroad.receiving.settlement import Counts, Settlement, log_to
from postroad.receiving.workers import SLICE_SECONDS, Loop, Poller, Work, current_work

# Practically for ever: locks refuse to wait much longer.
_YEAR_SECONDS = 31_536_000.0
_Count = whole_number(1, 1_000)
_Function = Annotated[Any, Meta(description="a function")]
_Queue = Annotated[Any, Meta(description="a queue", extra={"remedy": "Pass backend.queue(name)."})]
_Breaker = Annotated[Any, Meta(description="a CircuitBreakerConfig")]
_Timeout = Annotated[float, Meta(ge=0, description="a number of seconds of 0 or more")]
_Visibility = seconds_between(0, MAX_VISIBILITY)
_Delays = Annotated[list[Delay], Meta(description="numbers of seconds from 0 to 43200")]


class Receiver:
    """Receives from a queue until it is stopped, and acks, retries, rejects or defers each message as `decide` says.

    Messages of one FIFO group are handled one after another and in order; a failed one holds back those behind it.
    Leases are extended while handlers run. A stop lets running handlers end and gives back all other messages, which
    costs them no attempt. The receiver installs no signal handler: `postroad.run` and the commands do.

    Args:
        queue: The queue to receive from. Pass a function that returns it if another queue may replace it later.
        decide: Called with each `Delivery`; returns `Ack()`, `Retry(…)`, `Reject(…)` or `Defer(…)`. If it raises, that
            is a `Retry` with the error, and with its `after` if it is a `postroad.Retryable`; a `NonRetryable` is a
            `Reject`. It may be `async def`. With `together` above 1 it takes and returns lists.
        concurrency: How many messages, or FIFO groups, are handled at the same time, 1 to 1,000; each has a thread, or
            with an async `decide` a task. Raise it if `decide` waits for other services.
        batch: How many messages one poll asks for at most, 1 to 1,000; SQS gives at most 10.
        prefetch: Whether a poll fetches a whole batch ahead. Pass False if handling takes minutes: then it fetches
            only messages that can begin at once, and other receivers get the rest.
        together: How many messages one call of `decide` gets at most, for standard queues. Raise it to write many
            messages in one transaction.
        wait: Seconds for which one poll waits for messages, 0 to 20.
        visibility: Seconds for which a received message is hidden from others; by default the queue's own setting.
            After a crash the message is delivered again when they are over.
        extend_every: Seconds between two extensions of a lease, less than the visibility; by default half of it.
        on_extended: Called with each delivery whose lease was extended.
        on_lost: Called with a delivery whose lease was lost: another receiver may handle it now, so stop working on it.
        retry_delays: Seconds before each next attempt, each 0 to 43,200; the last one repeats.
        max_receives: The number of failed attempts after which a message is rejected; by default the queue's own
            limit applies.
        dead_letters: The queue that rejected messages are sent to; by default the queue's own dead letters.
        breaker: When to stop receiving for a while because handlers fail; by default never.
        name: Its name in log lines; by default the queue's name.
        clock: Another clock, for tests.
        hooks: Used by the parts of Postroad that are built on a receiver.

    Raises:
        ConfigurationError: An argument is out of bounds, or is not a queue, a function or a breaker where it has to be.

    Example:
        def decide(delivery: Delivery) -> Outcome:
            return Ack() if work(delivery.body) else Retry(after=60)

        receiver = Receiver(backend.queue("jobs"), decide, concurrency=4, max_receives=5)
        receiver.run()
    """

    def __init__(
        self,
        queue: Queue | Callable[[], Queue],
        decide: Decide | DecideTogether,
        *,
        concurrency: int = 1,
        batch: int = 10,
        prefetch: bool = True,
        together: int = 1,
        wait: float = 20.0,
        visibility: float | None = None,
        extend_every: float | None = None,
        on_extended: Callable[[Delivery], object] | None = None,
        on_lost: Callable[[Delivery], object] | None = None,
        retry_delays: Sequence[float] = (1, 5, 30, 120),
        max_receives: int | None = None,
        dead_letters: Queue | DeadLetters | None = None,
        breaker: Breaker | CircuitBreakerConfig | None = None,
        name: str | None = None,
        clock: Clock | None = None,
        hooks: Hooks = Hooks(),  # noqa: B008  # frozen
    ) -> None:
        functions: dict[str, object] = {"decide": decide, "on_extended": on_extended, "on_lost": on_lost}
        for field, function in functions.items():
            if not callable(function) and (function is not None or field == "decide"):
                raise refusal(function, _Function, field, ConfigurationError)
        places: dict[str, object] = {"queue": queue, "dead_letters": dead_letters}
        for field, place in places.items():
            if not (callable(place) or hasattr(place, "send")) and (place is not None or field == "queue"):
                raise refusal(place, _Queue, field, ConfigurationError)
        given: object = retry_delays
        delays = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else given
        checked = (
            *(("concurrency", concurrency, _Count), ("batch", batch, _Count), ("together", together, _Count)),
            *(("wait", wait, seconds_between(0, 20)), ("retry_delays", delays, _Delays)),
            *(("visibility", visibility, _Visibility | None), ("max_receives", max_receives, whole_number(1) | None)),
        )
        for field, value, kind in checked:
            check(value, kind, field, ConfigurationError)
        clock = SYSTEM_CLOCK if clock is None else clock
        source: Callable[[], Queue] = queue if callable(queue) else lambda: queue
        self.name = source().name if name is None else name
        hidden = source().traits.visibility if visibility is None else visibility
        # A lease that is extended later than it lasts is lost.
        check(extend_every, seconds_between(0, hidden) | None, "extend_every", ConfigurationError)
        self._decide, self._concurrency, self._together = decide, concurrency, together
        self._hooks, self._is_async = hooks, handlers.is_async(decide)
        self._own_loop = hooks.loop_thread or LoopThread()
        self._started_on: asyncio.AbstractEventLoop | None = None
        observe = log_to(self.name) if hooks.observe is None else hooks.observe
        if isinstance(breaker, CircuitBreakerConfig):
            breaker = CircuitBreaker(breaker, clock.monotonic)
        elif breaker is not None and not hasattr(breaker, "pause"):
            raise refusal(breaker, _Breaker, "breaker", ConfigurationError)
        self.breaker = breaker
        if dead_letters is None:
            dead_letters = outcomes.OwnDeadLetters()
        elif not callable(dead_letters):
            dead_letters = outcomes.GivenDeadLetters(dead_letters, clock)
        self._counts = Counts()
        acks = Acks(clock, observe)
        self._leases = Leases(
            visibility=hidden,
            clock=clock,
            observe=observe,
            longest=hooks.longest,
            extend_every=hidden / 2 if extend_every is None else extend_every,
            on_extended=on_extended,
            on_lost=on_lost,
        )
        self._housekeeper = Housekeeper(clock, [acks, self._leases, *hooks.chores], observe)
        acks.wake = self._leases.wake = self._housekeeper.wake
        self._attempts = Attempts(clock)
        self._settlement = Settlement(
            name=self.name,
            acks=acks,
            leases=self._leases,
            attempts=self._attempts,
            dead_letters=dead_letters,
            retry_delays=retry_delays,
            max_receives=max_receives,
            breaker=breaker,
            counts=self._counts,
            observe=observe,
        )
        self._poller = Poller(
            source=source,
            hooks=hooks,
            attempts=self._attempts,
            breaker=breaker,
            batch=batch,
            wait=wait,
            visibility=visibility,
            prefetch=prefetch,
        )
        self._users = Users()
        self._lifecycle = threading.Lock()
        self._loop: Loop | None = None
        self._halted: Loop | None = None
        """What was stopped and may still have running handlers."""

    @property
    def counts(self) -> dict[str, int]:
        """How many messages were received, acked, retried, rejected, deferred, released and lost so far."""
        return self._counts.read()

    @property
    def in_flight(self) -> int:
        """How many messages it holds now."""
        return len(self._leases)

    @property
    def is_running(self) -> bool:
        """Whether it receives on a thread of its own."""
        loop = self._loop
        return loop is not None and loop.is_alive

    @property
    def turned_at(self) -> float | None:
        """The monotonic time of its last poll; None before its first start."""
        return self._poller.turned_at

    def attempt(self, delivery: Delivery) -> int:
        """Return which attempt `delivery` is, from 1; receives on which nothing began do not count."""
        return self._attempts.number(delivery)

    def run(self, stop: threading.Event | None = None) -> None:
        """Receive until `stop` is set, or for ever; then let running handlers end and give back the rest."""
        stopping = threading.Event() if stop is None else stop
        self.start()
        try:
            while self.is_running and not stopping.wait(SLICE_SECONDS):
                continue
            self.check()
        finally:
            self.stop(timeout=_YEAR_SECONDS)

    def run_once(self, *, wait: float = 0.0) -> dict[str, int]:
        """Poll once for up to `wait` seconds, handle what came, and return the counters of this poll."""
        check(wait, Seconds, "wait")
        before = self.counts
        # Handlers cannot run on the caller's loop, which is blocked until this returns.
        self._started_on = self._started_on if self.is_running else None
        work = self._work(raises=True)
        with self._users.inside():
            try:
                work.take(*self._poller.poll(work, wait))
                work.wait_until_idle()
            finally:
                work.halt()
                work.give_back()
                self.flush()
        if work.error is not None:
            raise work.error
        return {name: count - before.get(name, 0) for name, count in self.counts.items()}

    async def arun(self, stop: asyncio.Event | None = None) -> None:
        """Receive until `stop` is set or the task is cancelled; an async `decide` runs on this loop."""
        self.start()
        try:
            await self.until(stop)
        finally:
            await asyncio.shield(handlers.in_thread(self.stop))

    async def until(self, stop: asyncio.Event | None) -> None:
        """Wait until `stop` is set or the receiver ends; raise the error that ended it, if one did."""
        stopping = asyncio.Event() if stop is None else stop
        if not isinstance(stopping, asyncio.Event):
            # The wait for an event of threads would block the loop.
            kind = type(stopping).__qualname__
            raise InvalidInput(f"stop: {kind} is not an asyncio.Event", field="stop", remedy="Give an asyncio.Event.")
        while self.is_running and not stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(SLICE_SECONDS):
                    await stopping.wait()
        self.check()

    def check(self) -> None:
        """Raise the error that ended the receiver's thread, if one did since its start."""
        if (loop := self._loop) is not None and loop.error is not None:
            raise loop.error

    def start(self) -> None:
        """Receive on another thread; an async `decide` runs on the caller's loop, if there is one."""
        with self._lifecycle:
            if self.is_running:
                raise RuntimeError("the receiver is already started; stop it first")
            self._started_on = self._own_loop.home = handlers.running_loop()
            self._loop = Loop(self._poller, self._work(), self._started_on)
            self._loop.start()

    def stop(self, timeout: float = 20.0) -> bool:
        """Begin nothing more, let running handlers end, give back the rest; return whether all ended in time.

        Stopping twice is allowed. If one of its own handlers calls this, it does not wait for that handler. On the
        event loop on which handlers run it waits for none of them, and those that run may end; `arun` waits, and so
        does another stop from elsewhere.

        Args:
            timeout: Seconds to wait for running handlers. When they are over, async handlers are cancelled and their
                messages released; other handlers go on, and their messages are delivered again if nothing acks them.
        """
        # A bad timeout is refused before anything is stopped.
        check(timeout, _Timeout, "timeout")
        return self.halt()(timeout)

    def halt(self) -> Callable[[float], bool]:
        """Begin nothing more from now on, without waiting; return the function that does the rest of `stop`."""
        with self._lifecycle:
            if self._loop is not None:
                self._loop.halt()
                self._halted, self._loop = self._loop, None
            self._own_loop.home = None
            return partial(self._finish, self._halted)

    def _finish(self, halted: Loop | None, timeout: float) -> bool:
        """Stop a loop that was halted; one stop may begin while another one still waits."""
        if halted is None:
            return True
        waits = halted.home is None or handlers.running_loop() is not halted.home
        ended = halted.stop(min(timeout, _YEAR_SECONDS), waits=waits)
        if waits and self._halted is halted:
            self._halted = None
        return ended

    def when_idle(self, action: Callable[[], None]) -> None:
        """Run `action` when no thread polls or handles any more: now, or on the last thread that ends."""
        self._users.afterwards(action)

    def flush(self) -> None:
        """Send the acks that wait, now."""
        self._settlement.acks.flush()

    @property
    def is_here(self) -> bool:
        """Whether the caller is one of its handlers."""
        work = current_work()
        return work is not None and work.settlement is self._settlement

    def complete(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run `coroutine` on the loop of async handlers, wait for its end and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop_of_handlers()).result()

    def wake(self) -> None:
        """Let the housekeeping thread check what is due."""
        self._housekeeper.wake()

    def keep_alive(self, owner: object) -> None:
        """Keep `owner` alive for as long as there is something to do, and check what is due."""
        self._housekeeper.owner = owner
        self._housekeeper.wake()

    def _work(self, *, raises: bool = False) -> Work:
        return Work(
            self._settlement,
            self._decided,
            self._users,
            concurrency=self._concurrency,
            together=self._together,
            raises=raises,
            loop=self._next_loop,
            adecide=self._adecided,
        )

    def _next_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop on which the next messages are decided; None where threads decide."""
        return self._loop_of_handlers() if self._is_async or self._hooks.on_loop() else None

    def _loop_of_handlers(self) -> asyncio.AbstractEventLoop:
        if self._started_on is None:
            return self._own_loop.loop
        if self._started_on.is_closed():
            raise LoopClosed("the event loop in which the receiver was started is closed")
        return self._started_on

    async def _adecided(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome]:
        return await _awaited(self._called(self._hooks.adecide or self._decide, deliveries), len(deliveries))

    def _decided(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome]:
        found = self._called(self._decide, deliveries)
        is_ready = _are_outcomes(found, len(deliveries))
        return cast(Sequence[Outcome], found) if is_ready else self.complete(_awaited(found, len(deliveries)))

    def _called(self, decide: Any, deliveries: Sequence[Delivery]) -> Any:
        # Without `together` messages come one by one.
        return decide(deliveries) if self._together > 1 else [decide(deliveries[0])]


async def _awaited(found: Any, count: int) -> Sequence[Outcome]:
    """Return the outcomes, awaited where `decide` returned a coroutine; raise TypeError if they are none."""
    returned = await handlers.settled(found)
    if isinstance(returned, Iterable):
        returned = [await handlers.settled(each) for each in returned]
    if not _are_outcomes(returned, count):
        raise TypeError(f"decide returned {returned!r:.100}; return Ack(), Retry(…), Reject(…) or Defer(…) for each")
    return cast(Sequence[Outcome], returned)


def _are_outcomes(found: Any, count: int) -> bool:
    return isinstance(found, list | tuple) and len(found) == count and all(isinstance(each, Outcome) for each in found)
