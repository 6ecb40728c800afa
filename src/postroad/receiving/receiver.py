"""The receiver: polls a queue, has each message decided, and carries out the decision."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError
from postroad.queues import Delivery, Queue
from postroad.receiving.asynchrony import LoopClosed, LoopThread, Result, in_thread, is_async
from postroad.receiving.breaker import Breaker, CircuitBreaker, CircuitBreakerConfig
from postroad.receiving.housekeeping import Housekeeper
from postroad.receiving.leases import Acks, Attempts, Leases
from postroad.receiving.outcomes import DeadLetters, Decide, DecideTogether, GivenDeadLetters, Outcome, OwnDeadLetters
from postroad.receiving.polling import SLICE_SECONDS, YEAR_SECONDS, Hooks, Loop, Poller
from postroad.receiving.settlement import Counts, Observe, Settlement
from postroad.receiving.work import Users, Work, current_work
from postroad.telemetry import get_logger

_standard = logging.getLogger("postroad.receiving")
_LINES = {
    "received": "receiver_received",
    "acked": "receiver_acked",
    "deferred": "receiver_deferred",
    "released": "receiver_released",
    "retried": "receiver_retried",
    "rejected": "receiver_rejected",
    "lease_lost": "receiver_lease_lost",
    "ack_failed": "receiver_ack_failed",
    "heartbeat_failed": "receiver_heartbeat_failed",
    "settle_failed": "receiver_settle_failed",
    "receive_failed": "receiver_receive_failed",
    "chore_failed": "receiver_chore_failed",
    "stop_timed_out": "receiver_stop_timed_out",
}
_QUIET = frozenset({"acked", "deferred", "received", "released"})


def log_to(name: str) -> Observe:
    """Return what writes one line for each thing that happens to a message of this receiver."""

    def observe(what: str, delivery: Delivery | None, /, **fields: Any) -> None:
        level = logging.INFO if what in _QUIET else logging.WARNING
        if what not in _LINES or not _standard.isEnabledFor(level):
            return
        fields.pop("about", None)
        deliveries = fields.pop("deliveries", None)
        if deliveries is not None:
            fields["messages"] = len(deliveries)
        if delivery is not None:
            fields |= {"message_id": delivery.message_id, "receives": delivery.receive_count}
        told = {key: str(value) if isinstance(value, Exception) else value for key, value in fields.items()}
        shown = {key: value for key, value in told.items() if value is not None}
        get_logger("receiving").log(level, _LINES[what], receiver=name, **shown)

    return observe


_MOST = 1_000
_LONGEST_WAIT, _LONGEST_DELAY = 20.0, 43_200.0


class Receiver:
    """Receives from a queue until it is stopped, and settles each message as `decide` says.

    Messages of one FIFO group are handled one after another and in order; a failed one holds back those behind it.
    Leases are extended while handlers run. A stop lets running handlers end and gives back all other messages, which
    costs them no attempt. It installs no signal handler: `postroad.run` and the commands do.

    Args:
        queue: The queue to receive from, or a function that returns it where it may be replaced by another one.
        decide: Called with each `Delivery`; returns `Ack()`, `Retry(…)`, `Reject(…)` or `Defer(…)`. What it raises
            is a `Retry` with the error. With `together` above 1 it gets a list and returns a list.
        concurrency: How many messages, or groups, are handled at the same time, each on a thread.
        batch: How many messages one poll asks for, at the most.
        prefetch: Whether to fetch a whole batch ahead. False fetches only what can begin at once: for long work.
        together: How many messages one call of `decide` gets, at the most. For standard queues only.
        wait: Seconds that one poll waits for messages.
        visibility: Seconds for which a received message is hidden from others; by default what the queue says.
        extend_every: Seconds between two extensions of a lease; by default half of the visibility.
        on_extended: Called with a delivery whose lease was extended.
        on_lost: Called with a delivery whose lease was lost: somebody else may handle it now.
        retry_delays: Seconds before each next attempt; the last one repeats.
        max_receives: After how many failed attempts a message is rejected; by default the queue alone decides.
        dead_letters: The queue that rejected messages are sent to; by default the queue's own dead letters.
        breaker: When to stop receiving for a while because handlers fail; by default never.
        name: What log lines call it; by default the queue's name.
        clock: For tests.

    Raises:
        ConfigurationError: An argument is out of its bounds.

    Example:
        receiver = Receiver(backend.queue("jobs"), lambda delivery: Ack() if work(delivery.body) else Retry())
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
        _check(concurrency=concurrency, batch=batch, together=together, wait=wait, retry_delays=retry_delays)
        clock = SYSTEM_CLOCK if clock is None else clock
        source: Callable[[], Queue] = queue if callable(queue) else lambda: queue
        self.name = source().name if name is None else name
        self._decide, self._concurrency, self._together = decide, concurrency, together
        self._hooks, self._is_async = hooks, is_async(decide)
        self._own_loop = hooks.loop_thread or LoopThread()
        self._started_on: asyncio.AbstractEventLoop | None = None
        observe = log_to(self.name) if hooks.observe is None else hooks.observe
        if breaker is None or isinstance(breaker, CircuitBreakerConfig):
            breaker = CircuitBreaker(breaker, clock.monotonic)
        self.breaker = breaker
        self._counts = Counts()
        acks = Acks(clock, lambda delivery, error: observe("ack_failed", delivery, error=error))
        self._leases = Leases(
            visibility=source().traits.visibility if visibility is None else visibility,
            clock=clock,
            failed=lambda delivery, error: observe("heartbeat_failed", delivery, error=error),
            longest=hooks.longest,
            extend_every=extend_every,
            on_extended=on_extended,
            on_lost=on_lost,
        )
        self._housekeeper = Housekeeper(
            clock, [acks, self._leases, *hooks.chores], failed=lambda error: observe("chore_failed", None, error=error)
        )
        acks.wake = self._leases.wake = self._housekeeper.wake
        self._attempts = Attempts(clock)
        self._settlement = Settlement(
            acks=acks,
            leases=self._leases,
            attempts=self._attempts,
            dead_letters=_dead_letters(dead_letters, clock),
            retry_delays=retry_delays,
            max_receives=max_receives,
            breaker=self.breaker,
            counts=self._counts,
            observe=observe,
        )
        self._poller = Poller(
            source,
            hooks=hooks,
            attempts=self._attempts,
            breaker=self.breaker,
            batch=batch,
            wait=wait,
            visibility=visibility,
            prefetch=prefetch,
        )
        self._users = Users()
        self._lifecycle = threading.Lock()
        self._loop: Loop | None = None

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
        """The monotonic time at which it last looked for messages; None before its first start."""
        return self._poller.turned_at

    def attempt(self, delivery: Delivery) -> int:
        """Return the number of the attempt that this delivery is: receives on which nothing began do not count."""
        return self._attempts.number(delivery)

    def run(self, stop: threading.Event | None = None) -> None:
        """Receive until `stop` is set, or for ever; then finish what runs and give back the rest."""
        stopping = threading.Event() if stop is None else stop
        loop = self._begin()
        try:
            while loop.is_alive and not stopping.wait(SLICE_SECONDS):
                continue
        finally:
            self.stop(timeout=YEAR_SECONDS)
        if loop.error is not None:
            raise loop.error

    def run_once(self, *, wait: float = 0.0) -> dict[str, int]:
        """Poll once, handle what came, and return what was counted meanwhile."""
        before = self.counts
        # Whoever blocks a loop until this returns cannot have handlers on it.
        self._started_on = None if self._loop is None else self._started_on
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
        """Receive until `stop` is set or the task is cancelled, with async `decide` on this loop."""
        stopping = asyncio.Event() if stop is None else stop
        self._begin()
        try:
            await stopping.wait()
        finally:
            await asyncio.shield(in_thread(self.stop))

    def start(self) -> None:
        """Receive on a thread of its own; an async `decide` runs on the loop of the caller, if it has one."""
        self._begin()

    def stop(self, timeout: float = 20.0) -> bool:
        """Begin nothing more, let running handlers end, give back the rest; return whether all ended in time.

        Stopping twice is ok. Called by one of its own handlers, it does not wait for that handler. Called on the event
        loop on which handlers run, it waits for none of them, and those that run may end; `arun` waits.
        """
        with self._lifecycle:
            loop, self._loop = self._loop, None
        if loop is None:
            return True
        waits = self._started_on is None or _running_loop() is not self._started_on
        return loop.stop(min(timeout, YEAR_SECONDS), waits=waits)

    def when_idle(self, action: Callable[[], None]) -> None:
        """Run the action when nobody polls or handles any more: now, or on the thread of the last one to end."""
        self._users.afterwards(action)

    def flush(self) -> None:
        """Ack all that waits, now."""
        self._settlement.acks.flush()

    @property
    def is_here(self) -> bool:
        """Whether the caller is one of its handlers."""
        work = current_work()
        return work is not None and work.belongs_to(self._settlement)

    def complete(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end on the loop of async handlers, for a thread that waits for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop_of_handlers()).result()

    def wake(self) -> None:
        """Let the housekeeping look at what is due."""
        self._housekeeper.wake()

    def keep_alive(self, owner: object) -> None:
        """Keep the owner alive for as long as there is something to do, and look at what is due."""
        self._housekeeper.owner = owner
        self._housekeeper.wake()

    def _begin(self) -> Loop:
        with self._lifecycle:
            if self._loop is not None:
                raise RuntimeError("the receiver is already started; stop it first")
            self._started_on = _running_loop()
            self._loop = Loop(self._poller, self._work(), self._settlement, self._users)
            self._loop.start()
            return self._loop

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
        decide: Any = self._hooks.adecide or self._decide
        if self._together > 1:
            return cast(Sequence[Outcome], await decide(deliveries))
        return [await decide(delivery) for delivery in deliveries]

    def _decided(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome]:
        if self._together > 1:
            return self._decide(deliveries)  # type: ignore[arg-type,return-value]  # it takes and returns lists
        return [self._decide(delivery) for delivery in deliveries]  # type: ignore[arg-type,misc]  # one by one


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _dead_letters(given: Queue | DeadLetters | None, clock: Clock) -> DeadLetters:
    if given is None:
        return OwnDeadLetters()
    return given if isinstance(given, DeadLetters) else GivenDeadLetters(given, clock)


def _check(*, concurrency: object, batch: object, together: object, wait: object, retry_delays: object) -> None:
    for name, value in (("concurrency", concurrency), ("batch", batch), ("together", together)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
            raise _refused(name, value, f"a whole number from 1 to {_MOST}")
    if not _is_seconds(wait, _LONGEST_WAIT):
        raise _refused("wait", wait, f"a number of seconds from 0 to {_LONGEST_WAIT:.0f}")
    if isinstance(retry_delays, str) or not isinstance(retry_delays, Sequence):
        raise _refused("retry_delays", retry_delays, "numbers of seconds")
    if not all(_is_seconds(delay, _LONGEST_DELAY) for delay in retry_delays):
        raise _refused("retry_delays", retry_delays, f"numbers of seconds from 0 to {_LONGEST_DELAY:.0f}")


def _is_seconds(value: object, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


def _refused(field: str, value: object, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{field}: {value!r} is not {wanted}", field=field, remedy=f"Give {wanted}.")
