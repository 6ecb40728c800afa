"""Sending with retries inside one budget, without ever changing the order of a group silently."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from postroad.backoff import CHANCE
from postroad.bus.config import SQSEventBusConfig
from postroad.bus.lane import Lane
from postroad.bus.local import Remote
from postroad.bus.retrying import RetryAfter, decide
from postroad.errors import CircuitOpenError, HeldBack, InvalidInput, NotSent, OutOfOrder, PublishFailed
from postroad.queues import OutgoingMessage
from postroad.receiving import CircuitBreaker


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
        self, lane: Lane, config: SQSEventBusConfig, breaker: CircuitBreaker, *, name: str, fifo: bool
    ) -> None:
        self._lane = lane
        self._config = config
        self._breaker = breaker
        self._fifo = fifo
        self._name = name

    def send(self, messages: Sequence[OutgoingMessage], blocked: set[str | None]) -> list[Sent]:
        """What became of each message; groups of which one failed for good are added to `blocked` and not sent."""
        run = _Run(messages, self._fifo, blocked)
        self._admit(run)
        admitted = list(run.waiting)
        try:
            self._try(run)
        finally:
            # Each of them holds a place at the breaker, and gives it back even when an interruption ends the call.
            for index in admitted:
                self._count(run.outcomes.get(index))
        return [run.outcomes[index] for index in range(len(messages))]

    def _admit(self, run: _Run) -> None:
        for index in tuple(run.waiting):
            # One that waits behind a refused one of its group asks for no place.
            if index in run.waiting and (retry_after := self._breaker.admit()) is not None:
                text = f"the circuit breaker of bus {self._name!r} is open: try again in {retry_after:.1f} s"
                run.give_up(index, Sent("failed", CircuitOpenError(text, retry_after=retry_after)))

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

    def _count(self, sent: Sent | None) -> None:
        if sent is None or isinstance(sent.error, InvalidInput | NotSent | OutOfOrder):
            self._breaker.undecided()
        elif sent.error is None:
            self._breaker.succeeded()
        else:
            self._breaker.failed()


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
