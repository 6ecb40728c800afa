"""Publishers that record what they were asked to publish, and fail as they are told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from postroad import OutgoingMessage, SendResult
from postroad.outbox import DomainEvent


@dataclass(frozen=True, slots=True)
class Traits:
    atomic_batch: bool = False
    fifo: bool = True


@dataclass(slots=True)
class Recorder:
    """Takes every message unless `fail` gives an error for it; `refuse` raises for the whole call."""

    fail: Callable[[OutgoingMessage], Exception | None] = lambda message: None
    refuse: Callable[[Sequence[OutgoingMessage]], Exception | None] = lambda messages: None
    traits: Traits = Traits()
    calls: list[list[OutgoingMessage]] = field(default_factory=list)
    published: list[OutgoingMessage] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        with self.lock:
            self.calls.append(list(messages))
        if (error := self.refuse(messages)) is not None:
            raise error
        results = [self._result(message) for message in messages]
        with self.lock:
            self.published += [message for message, result in zip(messages, results, strict=True) if result.ok]
        return results

    def events(self) -> list[DomainEvent]:
        """The events that were published, in order."""
        return [DomainEvent.from_json(message.body) for message in self.published]

    def numbers(self, lane: str = "tr_1") -> list[int]:
        """The numbers in the payloads of one lane, in the order of publication."""
        return [event.payload["n"] for event in self.events() if event.key["transferId"] == lane]

    def _result(self, message: OutgoingMessage) -> SendResult:
        error = self.fail(message)
        return SendResult(ok=error is None, error=error)


def number_of(message: OutgoingMessage) -> int:
    """The number in the payload."""
    return int(DomainEvent.from_json(message.body).payload["n"])


def failing(*numbers: int, error: Exception | None = None) -> Callable[[OutgoingMessage], Exception | None]:
    """Fails messages with these numbers, for ever."""
    return lambda message: (error or TimeoutError("no answer")) if number_of(message) in numbers else None


def failing_times(number: int, times: int, error: Exception) -> Callable[[OutgoingMessage], Exception | None]:
    """Fails one message so many times."""
    left = [times]

    def fail(message: OutgoingMessage) -> Exception | None:
        if number_of(message) != number or not left[0]:
            return None
        left[0] -= 1
        return error

    return fail
