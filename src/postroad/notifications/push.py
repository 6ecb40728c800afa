"""Sends a push once to each of its devices, several at a time, and stores each result; pauses failing providers."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, TypeVar

from postroad import failpoints
from postroad.arguments import Count, Seconds, check
from postroad.errors import ConfigurationError, InvalidNotification
from postroad.notifications.devices import Platform, PushSender, TokenResult, bare, platform_of, token_hash
from postroad.notifications.messages import PushNotification
from postroad.notifications.store import KnownDevice, NotificationStore
from postroad.receiving import BreakerState, CircuitBreaker, CircuitBreakerConfig
from postroad.telemetry import counter, get_logger

_standard = logging.getLogger("postroad.notifications")
Thing = TypeVar("Thing")
Done = TypeVar("Done")


def done_in_parallel(things: Sequence[Thing], work: Callable[[Thing], Done], *, threads: int) -> Iterator[list[Done]]:
    """Yield what the work returned, in groups, as soon as there is some; raise its first error after the others."""
    if len(things) == 1 or threads == 1:
        yield from ([work(thing)] for thing in things)
        return
    waiting: SimpleQueue[Thing] = SimpleQueue()
    done: SimpleQueue[Future[Done]] = SimpleQueue()
    failed: list[Future[Done]] = []
    for thing in things:
        waiting.put(thing)
    for _ in range(min(threads, len(things))):
        threading.Thread(target=_run, args=(waiting, done, work), name="postroad-push", daemon=True).start()
    left = len(things)
    while left:
        group = [done.get(), *_there(done)]
        left -= len(group)
        failed += [each for each in group if each.exception() is not None]
        yield [each.result() for each in group if each not in failed]
    if failed:
        failed[0].result()


def _run(waiting: SimpleQueue[Thing], done: SimpleQueue[Future[Done]], work: Callable[[Thing], Done]) -> None:
    for thing in _there(waiting):
        ended: Future[Done] = Future()
        try:
            ended.set_result(work(thing))
        except BaseException as error:
            # The caller waits for each of them, so not one may be left out.
            ended.set_exception(error)
        done.put(ended)


def _there(queue: SimpleQueue[Thing]) -> Iterator[Thing]:
    try:
        while True:
            yield queue.get_nowait()
    except Empty:
        return


SETTLED: Final = ("sent", "dead_token")
"""Outcomes after which a push is not sent to the device again."""
FAILED: Final = ("retry", "auth")
"""Outcomes that count as a failure of the provider."""


_LONGEST_SECONDS: Final = 300.0
_REMEMBERED_CONNECTIONS: Final = 16


class ProviderBreaker(CircuitBreaker):
    """Counts consecutive failures of a provider, and then pauses it for all threads; after that one push probes."""

    def __init__(
        self, *, failures: int = 5, seconds: float = 30.0, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        check(failures, Count, "breaker_failures", ConfigurationError)
        check(seconds, Seconds, "breaker_seconds", ConfigurationError)
        config = CircuitBreakerConfig(failure_threshold=failures, recovery_timeout_seconds=seconds)
        super().__init__(config, monotonic, longest=_LONGEST_SECONDS)
        self._losing = threading.Lock()
        self._lost_connections: deque[int] = deque(maxlen=_REMEMBERED_CONNECTIONS)

    def failed(self, lost_connection: int | None = None) -> None:
        """Count that the provider did not answer or refuses everything; pushes of one lost connection count once."""
        with self._losing:
            counted = lost_connection in self._lost_connections
            if lost_connection is not None and not counted:
                self._lost_connections.append(lost_connection)
        (self.undecided if counted else super().failed)()


class ProviderBreakers:
    """The breakers of all providers as that of the receiver: it receives while one of them lets pushes pass."""

    def __init__(self, breakers: Collection[ProviderBreaker]) -> None:
        self._breakers = breakers

    @property
    def state(self) -> BreakerState:
        """Closed while one of them is; else half open while one is, and single pushes pass as probes."""
        states = {breaker.state for breaker in self._breakers}
        return next(state for state in ("closed", "half_open", "open") if state in states)

    def pause(self) -> float:
        """Return the seconds until a probe may pass; 0 if pushes pass."""
        return min(breaker.pause() for breaker in self._breakers) if self.state == "open" else 0.0

    def succeeded(self) -> None:
        """Do nothing: the outcome of a message says nothing about one provider."""

    def failed(self) -> None:
        """Do nothing: the outcome of a message says nothing about one provider."""


class Target(NamedTuple):
    token: str
    platform: Platform


@dataclass(slots=True)
class Attempt:
    """What one attempt at a push achieved."""

    results: list[TokenResult] = field(default_factory=list)
    failures: list[tuple[Platform, TokenResult]] = field(default_factory=list)
    """Results that are neither sent nor dead, with their providers."""
    waits: list[float] = field(default_factory=list)
    """For each device whose provider may not be asked now, the seconds for which that lasts."""
    untried: int = 0
    """Devices left out because the worker stops."""
    sent: int = 0
    dropped: int = 0

    def add(self, platform: Platform, result: TokenResult | float | None) -> None:
        """Add what `_try` returned for one device."""
        if result is None:
            self.untried += 1
        elif not isinstance(result, TokenResult):
            self.waits.append(result)
        else:
            self.results.append(result)
            self.sent += result.outcome == "sent"
            if result.outcome not in SETTLED:
                self.failures.append((platform, result))


class PushProcessor:
    """Sends pushes with the senders of both providers, to devices that have not got them yet.

    Args:
        store: Where devices and results are stored.
        apns: Sends to Apple's devices; without it, pushes to them are refused.
        fcm: Sends to Google's devices, likewise.
        concurrency: The number of requests to providers that may run at once.
        gates: The breakers that pause a provider after failures, by platform; none by default.

    Example:
        PushProcessor(store, apns=APNSSender(…)).handle(push, push_id="order-7")
    """

    def __init__(
        self,
        store: NotificationStore,
        *,
        apns: PushSender | None = None,
        fcm: PushSender | None = None,
        concurrency: int = 8,
        gates: Mapping[Platform, ProviderBreaker] | None = None,
    ) -> None:
        self._store = store
        self._senders: dict[Platform, PushSender | None] = {"apns": apns, "fcm": fcm}
        self._concurrency = concurrency
        self._gates = gates or {}
        self._places = threading.BoundedSemaphore(concurrency)
        self._stopping = threading.Event()

    def handle(self, push: PushNotification, *, push_id: str) -> list[TokenResult]:
        """Send `push` to each device that has not got it under `push_id`, and return the results of all devices."""
        return self.attempt(push, push_id=push_id).results

    def stop(self) -> None:
        """Send to no further device."""
        self._stopping.set()

    def resume(self) -> None:
        """Send again after a stop."""
        self._stopping.clear()

    def attempt(self, push: PushNotification, *, push_id: str) -> Attempt:
        """Send `push` once to each device that has not got it under `push_id`, and commit each result."""
        attempt = Attempt()
        targets = self._open_targets(push, push_id, attempt)
        asked_at = self._store.clock.now()
        for tries in done_in_parallel(
            targets, lambda target: (target, self._try(push, target, push_id)), threads=self._concurrency
        ):
            answered = [result for _, result in tries if isinstance(result, TokenResult)]
            failpoints.hit("notifications.push.after_send")
            if answered:
                attempt.dropped += self._store.record(push_id, answered, asked_at=asked_at)
            for target, result in tries:
                attempt.add(target.platform, result)
        attempt.results.sort(key=lambda result: push.deviceTokens.index(result.token))
        return attempt

    def _open_targets(self, push: PushNotification, push_id: str, attempt: Attempt) -> list[Target]:
        """Return the devices that have not got the push; add the known results of the others to the attempt."""
        tokens = dict.fromkeys(push.deviceTokens)
        before = {result.token: result for result in self._store.results(push_id) if result.outcome in SETTLED}
        known = self._store.known(tokens)
        targets = []
        for token in tokens:
            settled = before.get(token_hash(token)) or _not_the_users(known.get(token), push.userId)
            if settled is not None:
                attempt.results.append(replace(settled, token=token))
            else:
                registered = known[token].platform if token in known else None
                targets.append(Target(token, platform_of(token, registered)))
        return targets

    def _try(self, push: PushNotification, target: Target, push_id: str) -> TokenResult | float | None:
        """Return the result; or, if the provider may not be asked, for how many seconds; None if the worker stops."""
        sender = self._senders[target.platform]
        if sender is None:
            return TokenResult(target.token, "permanent", None, "no_sender")
        if self._stopping.is_set():
            return None
        breaker = self._gates.get(target.platform)
        wait = None if breaker is None else breaker.admit()
        if wait is not None:
            return wait
        with self._places:
            result = self._ask(sender, push, target, push_id, breaker)
        counter("push_results").labels(target.platform, result.outcome).inc()
        if _standard.isEnabledFor(logging.INFO):
            said = {"outcome": result.outcome, "status": result.status, "reason": result.reason}
            get_logger("notifications").info("notification_pushed", push_id=push_id, provider=target.platform, **said)
        return result

    def _ask(
        self, sender: PushSender, push: PushNotification, target: Target, push_id: str, breaker: ProviderBreaker | None
    ) -> TokenResult:
        try:
            answer: object = sender.send(push, bare(target.token, target.platform), push_id=push_id)
            if not isinstance(answer, TokenResult):
                raise TypeError(f"send returned {type(answer).__name__}; return a TokenResult")
        except InvalidNotification as error:
            if breaker is not None:
                breaker.undecided()
            return TokenResult(target.token, "permanent", None, f"{error.field or 'push'} refused")
        except Exception as error:
            # A custom sender that raises counts like a provider that does not answer.
            answer = TokenResult(target.token, "retry", None, type(error).__name__)
        if breaker is not None:
            if answer.outcome in FAILED:
                breaker.failed(answer.lost_connection)
            else:
                breaker.succeeded()
        return replace(answer, token=target.token)


def _not_the_users(device: KnownDevice | None, user_id: str) -> TokenResult | None:
    """Return a result if the device was dropped, or is another user's now: it must not show this user's messages."""
    if device is None:
        return None
    if device.user_id != user_id:
        return TokenResult("", "dead_token", None, "other_user")
    return TokenResult("", "dead_token", None, "dropped") if device.dropped else None
