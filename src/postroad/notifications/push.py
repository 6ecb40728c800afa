"""What becomes of a push: sent once to each of its devices, a few at a time, and written down for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, Protocol, TypeVar

from postroad import failpoints
from postroad.errors import InvalidNotification
from postroad.notifications.devices import Platform, PushSender, TokenResult, bare, platform_of, token_hash
from postroad.notifications.messages import PushNotification
from postroad.notifications.reports import tell_result
from postroad.notifications.store import KnownDevice, NotificationStore

Thing = TypeVar("Thing")
Done = TypeVar("Done")


def done_in_parallel(things: Sequence[Thing], work: Callable[[Thing], Done], *, threads: int) -> Iterator[list[Done]]:
    """What the work gave, in groups, as soon as there is something; the work must not raise."""
    if len(things) == 1 or threads == 1:
        yield from ([work(thing)] for thing in things)
        return
    waiting: SimpleQueue[Thing] = SimpleQueue()
    done: SimpleQueue[Done] = SimpleQueue()
    for thing in things:
        waiting.put(thing)
    for _ in range(min(threads, len(things))):
        threading.Thread(target=_run, args=(waiting, done, work), name="postroad-push", daemon=True).start()
    left = len(things)
    while left:
        group = [done.get(), *_there(done)]
        left -= len(group)
        yield group


def _run(waiting: SimpleQueue[Thing], done: SimpleQueue[Done], work: Callable[[Thing], Done]) -> None:
    for thing in _there(waiting):
        done.put(work(thing))


def _there(queue: SimpleQueue[Thing]) -> Iterator[Thing]:
    try:
        while True:
            yield queue.get_nowait()
    except Empty:
        return


SETTLED: Final = ("sent", "dead_token")
"""Outcomes after which a device gets nothing more of a push."""
FAILED: Final = ("retry", "auth")
"""Outcomes that speak against the provider."""


class Gate(Protocol):
    """Whether a provider is asked at all."""

    def admit(self) -> float | None:
        """None when it may be asked now, else the seconds after which to look again."""
        ...

    def succeeded(self) -> None:
        """It answered."""
        ...

    def failed(self, lost_connection: int | None = None) -> None:
        """It did not answer, or refused everything; pushes that one lost connection took along are one failure."""
        ...

    def undecided(self) -> None:
        """It was not asked after all."""
        ...


class Target(NamedTuple):
    """A device that has not got the push yet."""

    token: str
    platform: Platform


class Try(NamedTuple):
    """What a try gave; no result when the provider was not asked, and then how long it may not be."""

    target: Target
    result: TokenResult | None
    wait: float | None = None


@dataclass(slots=True)
class Attempt:
    """What became of a push in one go."""

    results: list[TokenResult] = field(default_factory=list)
    failures: list[tuple[Platform, TokenResult]] = field(default_factory=list)
    """What is neither sent nor dead, with the provider that said so."""
    waits: list[float] = field(default_factory=list)
    """For each device whose provider may not be asked now, how long that lasts."""
    untried: int = 0
    """Devices left out because the worker stops."""
    sent: int = 0
    dropped: int = 0


class PushProcessor:
    """Sends pushes by the senders of both providers, to devices that have not got them yet."""

    def __init__(
        self,
        store: NotificationStore,
        *,
        apns: PushSender | None = None,
        fcm: PushSender | None = None,
        concurrency: int = 8,
        gates: Mapping[Platform, Gate] | None = None,
    ) -> None:
        self._store = store
        self._senders: dict[Platform, PushSender | None] = {"apns": apns, "fcm": fcm}
        self._concurrency = concurrency
        self._gates = gates or {}
        self._places = threading.BoundedSemaphore(concurrency)
        self._stopping = threading.Event()

    def handle(self, push: PushNotification, *, push_id: str) -> list[TokenResult]:
        """Send the push to each device that has not got it; what each device's provider answered, now or before."""
        return self.attempt(push, push_id=push_id).results

    def stop(self) -> None:
        """Begin with no further device."""
        self._stopping.set()

    def resume(self) -> None:
        """Work again after a stop."""
        self._stopping.clear()

    def attempt(self, push: PushNotification, *, push_id: str) -> Attempt:
        """Send to each open device once; each result is committed before this returns."""
        attempt = Attempt()
        targets = self._open_targets(push, push_id, attempt)
        asked_at = self._store.clock.now()
        for tries in done_in_parallel(
            targets, lambda target: self._try(push, target, push_id), threads=self._concurrency
        ):
            answered = [each.result for each in tries if each.result is not None]
            failpoints.hit("notifications.push.after_send")
            if answered:
                attempt.dropped += self._store.record(push_id, answered, asked_at=asked_at)
            for each in tries:
                _take_in(attempt, each)
        attempt.results.sort(key=lambda result: push.deviceTokens.index(result.token))
        return attempt

    def _open_targets(self, push: PushNotification, push_id: str, attempt: Attempt) -> list[Target]:
        """The devices that have not got the push; what is known of the others goes into the attempt."""
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

    def _try(self, push: PushNotification, target: Target, push_id: str) -> Try:
        sender = self._senders[target.platform]
        if sender is None:
            return Try(target, TokenResult(target.token, "permanent", None, "no_sender"))
        if self._stopping.is_set():
            return Try(target, None)
        gate = self._gates.get(target.platform)
        wait = None if gate is None else gate.admit()
        if wait is not None:
            return Try(target, None, wait)
        with self._places:
            result = self._ask(sender, push, target, push_id, gate)
        tell_result(push_id, target.platform, result)
        return Try(target, result)

    def _ask(
        self, sender: PushSender, push: PushNotification, target: Target, push_id: str, gate: Gate | None
    ) -> TokenResult:
        try:
            answer = sender.send(push, bare(target.token, target.platform), push_id=push_id)
        except InvalidNotification as error:
            if gate is not None:
                gate.undecided()
            return TokenResult(target.token, "permanent", None, f"{error.field or 'push'} refused")
        except Exception as error:
            # A sender of the user's own that raises says no more than one that does not answer.
            answer = TokenResult(target.token, "retry", None, type(error).__name__)
        if gate is not None:
            if answer.outcome in FAILED:
                gate.failed(answer.lost_connection)
            else:
                gate.succeeded()
        return replace(answer, token=target.token)


def _not_the_users(device: KnownDevice | None, user_id: str) -> TokenResult | None:
    """A device that was dropped since, or that another user has by now, must not show this user's messages."""
    if device is None:
        return None
    if device.user_id != user_id:
        return TokenResult("", "dead_token", None, "other_user")
    return TokenResult("", "dead_token", None, "dropped") if device.dropped else None


def _take_in(attempt: Attempt, each: Try) -> None:
    if each.wait is not None:
        attempt.waits.append(each.wait)
    elif each.result is None:
        attempt.untried += 1
    else:
        attempt.results.append(each.result)
        attempt.sent += each.result.outcome == "sent"
        if each.result.outcome not in SETTLED:
            attempt.failures.append((each.target.platform, each.result))
