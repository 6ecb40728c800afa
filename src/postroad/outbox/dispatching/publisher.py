"""The publisher, whatever it is: its calls answer with one verdict for each message, and never raise."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol, runtime_checkable

import msgspec

from postroad import failpoints
from postroad.errors import (
    CircuitOpenError,
    ConfigurationError,
    HeldBack,
    InvalidInput,
    MessageTooLarge,
    NotPermitted,
    QueueNotFound,
    RateLimited,
    RowRejected,
    StorageFull,
    StreamNotFound,
    TargetUnavailable,
    Throttled,
    TopicNotFound,
)
from postroad.queues import OutgoingMessage
from postroad.telemetry import redact

_MOST_CHARACTERS = 500
_MOST_READ = 4_000
_OF_THE_TARGET = (
    TargetUnavailable,
    TopicNotFound,
    QueueNotFound,
    StreamNotFound,
    NotPermitted,
    Throttled,
    RateLimited,
    CircuitOpenError,
    ConfigurationError,
    StorageFull,
)


@dataclass(frozen=True, slots=True)
class Sent:
    """The target has it."""


@dataclass(frozen=True, slots=True)
class Tried:
    """It failed, or nobody knows: to be tried again under the same id."""

    error: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """It can never be published."""

    error: str


@dataclass(frozen=True, slots=True)
class TargetDown:
    """The target refuses everything for now, whatever the row."""

    error: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Untried:
    """It was not sent, and has to wait for an earlier one."""


Verdict = Sent | Tried | Rejected | TargetDown | Untried
SENT = Sent()
UNTRIED = Untried()


def judge(error: BaseException) -> Verdict:
    """What an error of the publisher means; an error that nobody knows leaves the outcome unknown."""
    if isinstance(error, HeldBack):
        return UNTRIED
    if isinstance(error, _OF_THE_TARGET):
        return TargetDown(described(error), _pause(getattr(error, "retry_after", None)))
    if isinstance(error, MessageTooLarge):
        return Rejected(described(error, "too-large"))
    if isinstance(error, RowRejected | InvalidInput):
        return Rejected(described(error, "rejected"))
    return Tried(described(error))


def described(error: BaseException, label: str | None = None) -> str:
    """The error in one line of at most 500 characters, without secrets, that begins with its class or the label."""
    text = redact(f"{label or type(error).__name__}: {error}"[:_MOST_READ])
    return "".join(character for character in text if character.isprintable())[:_MOST_CHARACTERS]


def _pause(asked: object) -> float | None:
    """The pause that a target asks for, where that is a time: a publisher of anybody's may say anything."""
    seconds = asked if isinstance(asked, int | float) else 0.0
    return seconds if 0 < seconds < math.inf else None


@runtime_checkable
class Publisher(Protocol):
    """A topic, or anything else that takes messages and answers for each with `ok` and `error`."""

    def publish(self, messages: Sequence[OutgoingMessage]) -> Sequence[Any]:
        """Publish the messages; one result for each."""
        ...


@runtime_checkable
class Sender(Protocol):
    """A queue."""

    def send(self, messages: Sequence[OutgoingMessage]) -> Sequence[Any]:
        """Send the messages; one result for each."""
        ...


class Outlet:
    """Where messages go. `atomic` says that a call publishes all of its messages or none."""

    def __init__(self, publisher: object) -> None:
        if isinstance(publisher, Publisher):
            self._publish = publisher.publish
        elif isinstance(publisher, Sender):
            self._publish = publisher.send
        else:
            raise ConfigurationError(
                f"publisher: {type(publisher).__name__} has neither publish nor send",
                field="publisher",
                remedy="Give a topic, a queue, or an object with publish(messages).",
            )
        traits = getattr(publisher, "traits", None)
        self._fifo = bool(getattr(traits, "fifo", True))
        self.atomic = bool(getattr(traits, "atomic_batch", False))

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[Verdict]:
        """Publish in one call; a refusal of all for the sake of one is repeated one by one, to find out which."""
        prepared = messages if self._fifo else [_plain(message) for message in messages]
        verdicts = self._call(prepared)
        if len(messages) > 1 and isinstance(verdicts, Rejected):
            return self._one_by_one(prepared)
        return [verdicts] * len(messages) if not isinstance(verdicts, list) else verdicts

    def _call(self, messages: Sequence[OutgoingMessage]) -> list[Verdict] | Verdict:
        """A verdict for each message, or one for all when the call raised."""
        try:
            results = list(self._publish(messages))
            failpoints.hit("outbox.after_publish")
        except BaseException as error:
            return judge(error)
        silent = Tried("OutcomeUnknown: the publisher gave no result for this message")
        verdicts = [_verdict(result) for result in results[: len(messages)]]
        return verdicts + [silent] * (len(messages) - len(verdicts))

    def _one_by_one(self, messages: Sequence[OutgoingMessage]) -> list[Verdict]:
        """Verdicts of calls of one message each; what comes behind a failed one of its group is not tried."""
        verdicts: list[Verdict] = []
        stopped: set[str | None] = set()
        for message in messages:
            verdict = UNTRIED if message.group in stopped else self._alone(message)
            verdicts.append(verdict)
            if not isinstance(verdict, Sent) and message.group is not None:
                stopped.add(message.group)
        return verdicts

    def _alone(self, message: OutgoingMessage) -> Verdict:
        verdict = self._call([message])
        return verdict[0] if isinstance(verdict, list) else verdict


def _verdict(result: Any) -> Verdict:
    if result.ok:
        return SENT
    if result.error is None:
        return Tried("PublishError: the publisher gave no reason")
    return judge(result.error)


def _plain(message: OutgoingMessage) -> OutgoingMessage:
    """Without what only FIFO takes."""
    return msgspec.structs.replace(message, group=None, dedup_id=None)


Work = Callable[[], None]


class Callers:
    """Up to `most` daemon threads, started as they are needed, that end when told to."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._lock = threading.Lock()

    def submit(self, work: Work) -> None:
        """Run the work on a thread; at most `most` at a time are submitted."""
        with self._lock:
            self._busy += 1
            if self._busy > len(self._threads) and len(self._threads) < self._most:
                thread = threading.Thread(target=self._run, name="postroad-outbox-publish", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._work.put(work)

    def close(self, *, timeout: float) -> None:
        """End the threads that are idle; those that are stuck in a call end after it."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._work.put(None)
        for thread in threads:
            thread.join(timeout)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            finally:
                with self._lock:
                    self._busy -= 1
