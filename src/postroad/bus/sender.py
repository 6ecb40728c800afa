"""Sending with retries inside one budget, without ever changing the order of a group silently."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from postroad.backoff import CHANCE
from postroad.bus.config import SQSEventBusConfig
from postroad.bus.local import Remote
from postroad.errors import (
    CircuitOpenError,
    ConfigurationError,
    HeldBack,
    InvalidInput,
    NotPermitted,
    NotSent,
    OutcomeUnknown,
    OutOfOrder,
    PublishFailed,
    TransportError,
    Unavailable,
)
from postroad.queues import OutgoingMessage, SendResult
from postroad.receiving import CircuitBreaker

Send = Callable[[Sequence[OutgoingMessage]], list[SendResult]]

MOST = 10
_IDLE_SECONDS = 5.0


class _Entry:
    """A message on its way, and the caller who waits for it."""

    __slots__ = ("call", "message", "result", "state")

    def __init__(self, message: OutgoingMessage, call: _Call) -> None:
        self.message = message
        self.call = call
        self.state: Literal["waiting", "in flight", "done"] = "waiting"
        self.result: SendResult | None = None


class _Call:
    """One caller, woken when all of its entries are done."""

    __slots__ = ("done", "left")

    def __init__(self, entries: int) -> None:
        self.left = entries
        self.done = threading.Event()


class GroupCommit:
    """One send at a time, without a timer, and no caller waits longer than it wants to.

    A caller who finds the lane free sends on its own thread where the transport answers within `longest` seconds and it
    can wait for that long; all others are served by the lane's thread. With `longest=0` every caller sends for itself:
    the transport groups commits of its own, and a send joins its caller's transaction.
    """

    def __init__(self, send: Send, *, most: int = MOST, longest: float | None = None) -> None:
        self._send = send
        self._most = most
        self._longest = longest
        self._in_flight = False
        self._changed = threading.Condition()
        self._waiting: deque[_Entry] = deque()
        self._running = False
        self._closed = False

    def send(self, messages: Sequence[OutgoingMessage], *, timeout: float) -> list[SendResult]:
        """The outcome of each message: what did not get on its way in time surely was not sent and never will be."""
        if self._closed:
            return [_failed(ConfigurationError("the bus is closed", remedy="Make another bus.")) for _ in messages]
        if self._longest == 0:
            return self._sent(messages)
        call = _Call(len(messages))
        entries = [_Entry(message, call) for message in messages]
        with self._changed:
            leads = self._may_lead(len(messages), timeout)
            if leads:
                self._in_flight = True
            else:
                self._waiting.extend(entries)
                self._start()
        if leads:
            return self._lead(messages)
        call.done.wait(max(0.0, timeout))
        return self._outcomes(entries)

    def _may_lead(self, entries: int, timeout: float) -> bool:
        free = not self._in_flight and not self._waiting and entries <= self._most
        return free and self._longest is not None and self._longest <= timeout

    def _lead(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        try:
            return self._sent(messages)
        finally:
            with self._changed:
                self._in_flight = False
                if self._waiting:
                    self._start()

    def close(self) -> None:
        """Send what waits, then stop; later sends fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _start(self) -> None:
        """Let the lane's thread take what waits."""
        self._changed.notify_all()
        if not self._running:
            self._running = True
            threading.Thread(target=self._run, name="postroad-publish", daemon=True).start()

    def _outcomes(self, entries: Sequence[_Entry]) -> list[SendResult]:
        with self._changed:
            late = {id(entry) for entry in entries if entry.state == "waiting"}
            if late:
                self._waiting = deque(entry for entry in self._waiting if id(entry) not in late)
            return [self._outcome(entry) for entry in entries]

    def _outcome(self, entry: _Entry) -> SendResult:
        if entry.result is not None:
            return entry.result
        if entry.state == "waiting":
            return _failed(Unavailable("not sent: there was no turn for it in time"))
        return _failed(OutcomeUnknown("no answer in time; the message may have been sent"))

    def _run(self) -> None:
        while batch := self._take():
            results = self._sent([entry.message for entry in batch])
            with self._changed:
                self._in_flight = False
                for entry, result in zip(batch, results, strict=True):
                    entry.state, entry.result = "done", result
                    entry.call.left -= 1
                    if not entry.call.left:
                        entry.call.done.set()

    def _take(self) -> list[_Entry]:
        """The next entries; none when there was nothing to do for a while, and the thread ends."""
        with self._changed:
            self._changed.wait_for(lambda: (self._waiting or self._closed) and not self._in_flight, _IDLE_SECONDS)
            free = 0 if self._in_flight else min(self._most, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(free)]
            for entry in batch:
                entry.state = "in flight"
            # Whoever leads meanwhile starts the thread anew for what waits behind it.
            self._running = bool(batch)
            self._in_flight = self._in_flight or self._running
            return batch

    def _sent(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        try:
            return self._send(messages)
        except InvalidInput as error:
            if len(messages) == 1:
                return [_failed(error)]
            # The whole call was refused for one of them: each goes alone.
            return [result for message in messages for result in self._sent([message])]
        except Exception as error:
            return [_failed(error) for _ in messages]


def _failed(error: Exception) -> SendResult:
    return SendResult(ok=False, error=error)


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Try again after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It failed for good."""

    remote: Remote


def decide(
    attempt: int, error: Exception, *, left: float, config: SQSEventBusConfig, chance: float
) -> RetryAfter | GiveUp:
    """What follows the failed attempt; `left` is the rest of the budget, `chance` a number from 0 to 1.

    A retry that could not start within the budget is not made.
    """
    remote: Remote = "unknown" if isinstance(error, OutcomeUnknown) else "failed"
    if attempt > config.publish_retries or not is_passing(error):
        return GiveUp(remote)
    pause = config.publish_retry_delay_seconds * 2 ** (attempt - 1) * (0.5 + chance / 2)
    return RetryAfter(pause) if pause < left else GiveUp(remote)


def is_passing(error: Exception) -> bool:
    """Whether the same send may go well another time."""
    return isinstance(error, TransportError) and not isinstance(error, NotPermitted | CircuitOpenError)


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of one message."""

    remote: Remote
    error: Exception | None = None
    receivers: int | None = None
    """How many queues got it; None where the transport cannot tell."""


class Sender:
    """Sends the messages of one bus through its lane."""

    def __init__(
        self, lane: GroupCommit, config: SQSEventBusConfig, breaker: CircuitBreaker | None, *, name: str, fifo: bool
    ) -> None:
        self._lane = lane
        self._config = config
        self._breaker = breaker
        self._fifo = fifo
        self._name = name

    def send(self, messages: Sequence[OutgoingMessage], blocked: set[str | None]) -> list[Sent]:
        """What became of each message; groups of which one failed for good are added to `blocked` and not sent."""
        run = _Run(messages, self._fifo, blocked)
        if self._breaker is None:
            self._try(run)
        else:
            self._try_admitted(run, self._breaker)
        return [run.outcomes[index] for index in range(len(messages))]

    def _try_admitted(self, run: _Run, breaker: CircuitBreaker) -> None:
        """Try the messages that the breaker admits, and report their outcomes to it."""
        for index in tuple(run.waiting):
            # A message behind a refused one of its group is not sent, so the breaker is not asked.
            if index in run.waiting and (retry_after := breaker.admit()) is not None:
                text = f"the circuit breaker of bus {self._name!r} is open: try again in {retry_after:.1f} s"
                run.give_up(index, Sent("failed", CircuitOpenError(text, retry_after=retry_after)))
        admitted = list(run.waiting)
        try:
            self._try(run)
        finally:
            # Each of them may be a probe, which has to end even if an interruption ends the call.
            for index in admitted:
                sent = run.outcomes.get(index)
                if sent is None or isinstance(sent.error, InvalidInput | NotSent | OutOfOrder):
                    breaker.undecided()
                elif sent.error is None:
                    breaker.succeeded()
                else:
                    breaker.failed()

    def _try(self, run: _Run) -> None:
        deadline = time.monotonic() + self._config.publish_timeout_seconds
        attempt = 1
        while run.waiting:
            tried = run.waiting
            results = self._lane.send(run.messages_of(tried), timeout=deadline - time.monotonic())
            errors = {i: result.error for i, result in zip(tried, results, strict=True) if not result.ok}
            receivers = {i: result.receivers for i, result in zip(tried, results, strict=True)}
            run.settle(tried, {i: error or PublishFailed("not sent") for i, error in errors.items()}, receivers)
            pause = self._pause(run, attempt, deadline - time.monotonic())
            if run.waiting:
                time.sleep(pause)
            attempt += 1

    def _pause(self, run: _Run, attempt: int, left: float) -> float:
        """Give up what is not tried again; how long the rest waits, outside the lane."""
        pause = 0.0
        chance = CHANCE.random()
        for index in run.heads():
            error = run.errors[index]
            decision = decide(attempt, error, left=left, config=self._config, chance=chance)
            if isinstance(decision, RetryAfter):
                pause = max(pause, decision.seconds)
            else:
                run.give_up(index, Sent(decision.remote, as_failure(error)))
        return pause


class _Run:
    """The messages of one call: which wait, which are done, and which are held back behind others."""

    def __init__(self, messages: Sequence[OutgoingMessage], fifo: bool, blocked: set[str | None]) -> None:
        self._messages = messages
        self._fifo = fifo
        self._blocked = blocked
        self.outcomes: dict[int, Sent] = {}
        self.errors: dict[int, Exception] = {}
        self.waiting = list(range(len(messages)))
        self._hold_back(-1)

    def messages_of(self, indices: Sequence[int]) -> list[OutgoingMessage]:
        return [self._messages[index] for index in indices]

    def settle(self, tried: Sequence[int], errors: dict[int, Exception], receivers: Mapping[int, int | None]) -> None:
        """Note what was sent; on FIFO a failed one that a later one of its group has overtaken stays unsent."""
        sent = [index for index in tried if index not in errors]
        self.outcomes.update({index: Sent("sent", receivers=receivers[index]) for index in sent})
        self.errors = errors
        self.waiting = [index for index in tried if index in errors]
        if not self._fifo:
            return
        last = {self._messages[index].group: index for index in sent}
        overtaken = [index for index in self.waiting if index < last.get(self._messages[index].group, -1)]
        # Last to first: giving one up holds back what waits behind it.
        for index in reversed(overtaken):
            group = self._messages[index].group
            failure = OutOfOrder(f"a later event of group {group!r} is already sent: {errors[index]}")
            failure.__cause__ = errors[index]
            self.give_up(index, Sent("failed", failure))

    def heads(self) -> list[int]:
        """Those that may be decided upon: on FIFO the first one of each group, since the others wait for it."""
        if not self._fifo:
            return list(self.waiting)
        first: dict[str | None, int] = {}
        for index in self.waiting:
            first.setdefault(self._messages[index].group, index)
        return list(first.values())

    def give_up(self, index: int, sent: Sent) -> None:
        """Settle a failed one, and on FIFO all that wait behind it."""
        self.outcomes[index] = sent
        self.waiting.remove(index)
        if self._fifo and not isinstance(sent.error, InvalidInput):
            self._blocked.add(self._messages[index].group)
            self._hold_back(index)

    def _hold_back(self, first: int) -> None:
        """Leave unsent what waits behind the first in a group that is blocked."""
        behind = [index for index in self.waiting if self._fifo and index > first]
        held = [index for index in behind if self._messages[index].group in self._blocked]
        for index in held:
            group = self._messages[index].group
            self.outcomes[index] = Sent("failed", NotSent(f"an earlier event of group {group!r} failed"))
        self.waiting = [index for index in self.waiting if index not in self.outcomes]


def as_failure(error: Exception) -> Exception:
    """The error as a publisher sees it: a bad message by itself, else `PublishFailed` with the driver's as cause."""
    if isinstance(error, InvalidInput | CircuitOpenError | PublishFailed):
        return error
    failure = NotSent(str(error)) if isinstance(error, HeldBack) else PublishFailed(str(error))
    failure.__cause__ = error.__cause__ or error
    return failure
