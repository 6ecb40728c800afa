"""The sender of a bus: retries within one time limit, and no silent change of the order within a group."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from postroad.backoff import CHANCE
from postroad.bus.config import BusConfig
from postroad.bus.endpoints import Outlet, Send
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

_MOST = 10
_IDLE_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _Call:
    """One caller, woken when all of its entries are done."""

    left: int
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True, eq=False)
class _Entry:
    """A message that is being sent, and the caller who waits for it."""

    message: OutgoingMessage
    call: _Call
    state: Literal["waiting", "in flight", "done"] = "waiting"
    result: SendResult | None = None


class GroupCommit:
    """One send at a time, without a timer; messages that wait are sent together, and each caller has its own timeout.

    If nothing else is being sent, the caller sends on its own thread, provided that the transport answers within
    `longest` seconds and the caller can wait for that long; a thread sends for all others. With `longest=0` every
    caller sends for itself: the transport groups commits itself, and a send joins its caller's transaction.
    """

    def __init__(self, send: Send, *, longest: float | None) -> None:
        self._send = send
        self._longest = longest
        self._in_flight = False
        self._changed = threading.Condition()
        self._waiting: deque[_Entry] = deque()
        self._running = False
        self._closed = False

    def send(self, messages: Sequence[OutgoingMessage], *, timeout: float) -> list[SendResult]:
        """Return the outcome of each message; one whose send did not begin in time was not sent and never will be."""
        if self._closed:
            return [_failed(ConfigurationError("the bus is closed", remedy="Make another bus.")) for _ in messages]
        if self._longest == 0:
            return self._sent(messages)
        call = _Call(len(messages))
        entries = [_Entry(message, call) for message in messages]
        with self._changed:
            free = not self._in_flight and not self._waiting and len(messages) <= _MOST
            leads = free and self._longest is not None and self._longest <= timeout
            if leads:
                self._in_flight = True
            else:
                self._waiting.extend(entries)
                self._start()
        if not leads:
            call.done.wait(max(0.0, timeout))
            return self._outcomes(entries)
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
        self._changed.notify_all()
        if not self._running:
            self._running = True
            threading.Thread(target=self._run, name="postroad-publish", daemon=True).start()

    def _outcomes(self, entries: Sequence[_Entry]) -> list[SendResult]:
        with self._changed:
            late = {id(entry) for entry in entries if entry.state == "waiting"}
            if late:
                self._waiting = deque(entry for entry in self._waiting if id(entry) not in late)
            unsent = _failed(Unavailable("not sent: its turn did not come in time"))
            unknown = _failed(OutcomeUnknown("no answer in time; the message may have been sent"))
            return [entry.result or (unsent if id(entry) in late else unknown) for entry in entries]

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
        """Return the next entries; none if there was nothing to do for a while, and the thread ends."""
        with self._changed:
            self._changed.wait_for(lambda: (self._waiting or self._closed) and not self._in_flight, _IDLE_SECONDS)
            free = 0 if self._in_flight else min(_MOST, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(free)]
            for entry in batch:
                entry.state = "in flight"
            # A caller that sends meanwhile starts the thread again for the messages behind it.
            self._running = bool(batch)
            self._in_flight = self._in_flight or self._running
            return batch

    def _sent(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        try:
            return self._send(messages)
        except InvalidInput as error:
            if len(messages) == 1:
                return [_failed(error)]
            # The whole call was refused because of one of them: each is sent alone.
            return [result for message in messages for result in self._sent([message])]
        except Exception as error:
            return [_failed(error) for _ in messages]


def _failed(error: Exception) -> SendResult:
    return SendResult(ok=False, error=error)


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Send again after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not send again: it failed for good."""

    remote: Remote


def decide(attempt: int, error: Exception, *, left: float, config: BusConfig, chance: float) -> RetryAfter | GiveUp:
    """Return what follows a failed attempt; `left` is the rest of the time limit, `chance` a number from 0 to 1.

    A retry that could not start within the limit is not made.
    """
    remote: Remote = "unknown" if isinstance(error, OutcomeUnknown) else "failed"
    may_pass = isinstance(error, TransportError) and not isinstance(error, NotPermitted | CircuitOpenError)
    if attempt > config.publish_retries or not may_pass:
        return GiveUp(remote)
    pause = config.publish_retry_delay_seconds * 2 ** (attempt - 1) * (0.5 + chance / 2)
    return RetryAfter(pause) if pause < left else GiveUp(remote)


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of one message."""

    remote: Remote
    error: Exception | None = None
    receivers: int | None = None
    """How many queues got it; None if the transport does not report it."""


class Sender:
    """Sends the messages of one bus."""

    def __init__(self, outlet: Outlet, config: BusConfig, breaker: CircuitBreaker | None) -> None:
        self._outlet, self._config, self._breaker = outlet, config, breaker
        self._commits = GroupCommit(outlet.send, longest=outlet.longest)
        self.close = self._commits.close

    def send(self, messages: Sequence[OutgoingMessage], blocked: set[str | None]) -> list[Sent]:
        """Return the outcome of each message; groups with a message that failed for good are blocked and not sent."""
        run = _Run(messages, self._outlet.fifo, blocked)
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
                text = f"the circuit breaker of bus {self._outlet.name!r} is open: try again in {retry_after:.1f} s"
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
            messages = [run.messages[index] for index in tried]
            results = self._commits.send(messages, timeout=deadline - time.monotonic())
            run.settle(dict(zip(tried, results, strict=True)))
            pause = self._pause(run, attempt, deadline - time.monotonic())
            if run.waiting:
                time.sleep(pause)
            attempt += 1

    def _pause(self, run: _Run, attempt: int, left: float) -> float:
        """Give up the messages that are not tried again, and return how long the rest waits."""
        pause, chance = 0.0, CHANCE.random()
        for index in run.heads():
            error = run.errors[index]
            decision = decide(attempt, error, left=left, config=self._config, chance=chance)
            if isinstance(decision, RetryAfter):
                pause = max(pause, decision.seconds)
            else:
                run.give_up(index, Sent(decision.remote, as_failure(run.doubted(index, error))))
        return pause


class _Run:
    """The messages of one call: those that wait, those that are done, and those held back behind others."""

    def __init__(self, messages: Sequence[OutgoingMessage], fifo: bool, blocked: set[str | None]) -> None:
        self.messages = messages
        self._fifo = fifo
        self._blocked = blocked
        self.outcomes: dict[int, Sent] = {}
        self.errors: dict[int, Exception] = {}
        self._uncertain: set[int] = set()
        """The messages of which an attempt had no answer: no later failure makes it certain that they were not sent."""
        self.waiting = list(range(len(messages)))
        self._hold_back(-1)

    def settle(self, results: Mapping[int, SendResult]) -> None:
        """Note what was sent; on FIFO a failed message that a later one of its group has overtaken stays unsent."""
        sent = {index: Sent("sent", receivers=result.receivers) for index, result in results.items() if result.ok}
        self.outcomes |= sent
        self.errors = {i: result.error or PublishFailed("not sent") for i, result in results.items() if not result.ok}
        self._uncertain |= {index for index, error in self.errors.items() if isinstance(error, OutcomeUnknown)}
        self.waiting = list(self.errors)
        if not self._fifo:
            return
        last = {self.messages[index].group: index for index in sent}
        overtaken = [index for index in self.waiting if index < last.get(self.messages[index].group, -1)]
        # From last to first, because giving one up holds back those behind it.
        for index in reversed(overtaken):
            group, error = self.messages[index].group, self.errors[index]
            failure = OutOfOrder(f"a later event of group {group!r} is already sent: {error}")
            failure.__cause__ = error
            self.give_up(index, Sent("failed", failure))

    def doubted(self, index: int, error: Exception) -> Exception:
        """Return why a message may not have been sent: `OutcomeUnknown` if an earlier attempt had no answer."""
        if index not in self._uncertain or isinstance(error, OutcomeUnknown):
            return error
        unknown = OutcomeUnknown(f"an earlier attempt may have been sent; the last one failed: {error}")
        unknown.__cause__ = error
        return unknown

    def heads(self) -> list[int]:
        """Return the messages to decide about: on FIFO the first of each group, because the others wait for it."""
        if not self._fifo:
            return list(self.waiting)
        return list({self.messages[index].group: index for index in reversed(self.waiting)}.values())

    def give_up(self, index: int, sent: Sent) -> None:
        """Settle a failed message, and on FIFO all that wait behind it."""
        self.outcomes[index] = replace(sent, remote="unknown") if index in self._uncertain else sent
        self.waiting.remove(index)
        if self._fifo and not isinstance(sent.error, InvalidInput):
            self._blocked.add(self.messages[index].group)
            self._hold_back(index)

    def _hold_back(self, first: int) -> None:
        """Do not send messages behind the first one in a group that is blocked."""
        if not self._fifo or not self._blocked:
            return
        for index in tuple(self.waiting):
            group = self.messages[index].group
            if index > first and group in self._blocked:
                self.outcomes[index] = Sent("failed", NotSent(f"an earlier event of group {group!r} failed"))
                self.waiting.remove(index)


def as_failure(error: Exception) -> Exception:
    """Return the error for the publisher: `PublishFailed` with the cause, or that of a bad message itself."""
    if isinstance(error, InvalidInput | CircuitOpenError | PublishFailed):
        return error
    failure = NotSent(str(error)) if isinstance(error, HeldBack) else PublishFailed(str(error))
    failure.__cause__ = error.__cause__ or error
    return failure
