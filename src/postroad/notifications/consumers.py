"""The two consumers of the chat pipeline: what each does with a message, and when it tries again or gives up."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from postroad.backoff import CHANCE
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import ConfigurationError, InvalidNotification, RowRejected, StorageFull, TransportError, describe
from postroad.events import DomainEvent
from postroad.notifications.devices import PUSH_ID, Platform, TokenResult, push_id_of, push_id_of_event
from postroad.notifications.messages import PUSH, OfflineMessage, PushNotification
from postroad.notifications.offline import OfflineProcessor
from postroad.notifications.push import Attempt, PushProcessor
from postroad.queues import Delivery, OutgoingMessage
from postroad.receiving import Ack, Counts, Defer, Outcome, Reject, Retry, explain, log_traceback
from postroad.telemetry import counted, counter, get_logger

_standard = logging.getLogger("postroad.notifications")
_log = get_logger("notifications")
_LEAST_DELAY, _MOST_DELAY = 1.0, 900.0
_MOST_RELEASE = 43_200.0
_STALE_BEFORE_END = 3_600.0
# Without a queue of dead letters a rejected message stays in its queue: nothing is deleted unseen.
_NOT_REJECTED_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a message is tried, and how long it waits in between."""

    delays: tuple[float, ...]
    max_receives: int | None
    """After how many receives the queue itself gives up a message."""
    retention: float
    """Seconds for which the queue keeps a message."""

    def is_last(self, receive_count: int) -> bool:
        return receive_count >= min(self.max_receives or len(self.delays) + 1, len(self.delays) + 1)

    def pause(self, receive_count: int, chance: float, asked: float = 0.0) -> float:
        """Return the seconds before the next try, give or take a fifth; more if the provider asked for more."""
        delay = self.delays[min(receive_count, len(self.delays)) - 1] if self.delays else 0.0
        return min(max(delay * (0.8 + 0.4 * chance), asked), _MOST_RELEASE)

    def is_stale(self, made_at: datetime, now: datetime) -> bool:
        most = max(self.retention - _STALE_BEFORE_END, self.retention / 2)
        return (now - made_at).total_seconds() > most


def rejected(reason: str, error: str) -> Reject:
    return Reject(reason, error, after=_NOT_REJECTED_SECONDS)


def decide_push(
    attempt: Attempt, retries: RetryPolicy, *, receive_count: int, made_at: datetime, now: datetime, chance: float
) -> Outcome:
    """Decide by the devices that have not got the push: wait for a provider, give up, or try again."""
    if attempt.untried:
        return Retry(0.0, "WorkerStopped: the worker stops", label="interrupted")
    waits = list(attempt.waits)
    if any(result.outcome == "auth" for _, result in attempt.failures):
        # Our own key, account or topic is wrong: the push waits until that is corrected, and uses up no receive.
        waits.append(retries.pause(1, chance))
    if waits:
        if retries.is_stale(made_at, now):
            return rejected("stale", f"PushStale: waited for its provider too long, {_open(attempt)}")
        return Defer(min(max(*waits, _LEAST_DELAY), _MOST_DELAY))
    # Not earlier: if one device is refused for good, the others get their push first.
    permanent = [each for each in attempt.failures if each[1].outcome == "permanent"]
    if permanent:
        return rejected("permanent", _said(permanent, attempt))
    if not attempt.failures:
        return Ack(label="pushed")
    if retries.is_last(receive_count):
        return rejected("retries_exhausted", _said(attempt.failures, attempt))
    asked = max(result.retry_after or 0.0 for _, result in attempt.failures)
    return Retry(retries.pause(receive_count, chance, asked), _said(attempt.failures, attempt))


def _said(failures: list[tuple[Platform, TokenResult]], attempt: Attempt) -> str:
    platform, result = failures[0]
    status = "gave no answer" if result.status is None else f"answered {result.status}"
    return f"PushFailed: {platform} {status} ({result.reason or result.outcome}), {_open(attempt)}"


def _open(attempt: Attempt) -> str:
    count = len(attempt.failures) + len(attempt.waits) + attempt.untried
    return f"{counted(count, 'token')} open"


_Received = tuple[Delivery, OfflineMessage]
DATABASE: Final = "database"
"""What a retry is about if the database failed, which will fail the next message too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConsumer:
    """Stores messages for offline users."""

    processor: OfflineProcessor
    retries: RetryPolicy
    counts: Counts

    def __call__(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """Store the messages with their pushes: together, or one by one if that fails."""
        read = [_read(delivery) for delivery in deliveries]
        stored = iter(self._stored([each for each in read if not isinstance(each, Reject)]))
        return [each if isinstance(each, Reject) else next(stored) for each in read]

    def _stored(self, messages: Sequence[_Received]) -> list[Outcome]:
        try:
            stored = self.processor.handle_all([message for _, message in messages])
        except Exception as error:
            if len(messages) == 1:
                return [_failed(error, messages[0][0], self.retries)]
            return self._one_by_one(messages)
        for outcome in stored:
            self.counts.add("stored" if outcome == "stored" else "duplicates")
        return [Ack(label=outcome) for outcome in stored]

    def _one_by_one(self, messages: Sequence[_Received]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for index, each in enumerate(messages):
            outcomes += self._stored([each])
            last = outcomes[-1]
            if isinstance(last, Retry) and last.about is DATABASE:
                # The database will fail the others too, and each would wait for it.
                return outcomes + [last] * (len(messages) - index - 1)
        return outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumer:
    """Sends pushes."""

    processor: PushProcessor
    retries: RetryPolicy
    counts: Counts

    def __call__(self, delivery: Delivery) -> Outcome:
        """Send the push to the devices that have not got it, and decide what to do with the message."""
        try:
            push = PushNotification.from_json(delivery.body)
        except InvalidNotification as error:
            return rejected("invalid", describe(error))
        try:
            attempt = self.processor.attempt(push, push_id=push_id_of(delivery.body, delivery.attributes))
        except Exception as error:
            return _failed(error, delivery, self.retries)
        self.counts.add("sent", attempt.sent)
        self.counts.add("dropped", attempt.dropped)
        return decide_push(
            attempt,
            self.retries,
            receive_count=delivery.receive_count,
            made_at=push.timestamp,
            now=SYSTEM_CLOCK.now(),
            chance=CHANCE.random(),
        )


def _read(delivery: Delivery) -> _Received | Reject:
    try:
        return delivery, OfflineMessage.from_json(delivery.body)
    except InvalidNotification as error:
        return rejected("invalid", describe(error))


def _failed(error: Exception, delivery: Delivery, retries: RetryPolicy) -> Outcome:
    """Retry while the database is down, however often; give up on other failures after the last try."""
    log_traceback(error, message_id=delivery.message_id)
    is_database = isinstance(error, TransportError | ConfigurationError | StorageFull)
    if retries.is_last(delivery.receive_count) and not is_database:
        return rejected("handler_failed", explain(error))
    pause = retries.pause(delivery.receive_count, CHANCE.random())
    return Retry(pause, explain(error), about=DATABASE if is_database else None)


def push_message(event: DomainEvent) -> OutgoingMessage:
    """Return the message of a recorded push, under the same id however often it is sent."""
    if event.type != PUSH:
        raise RowRejected(f"{event.type!r} is no push; the outbox of notifications holds pushes only")
    try:
        # The database may have changed the order of the keys.
        push = PushNotification.from_json(msgspec.json.encode(event.payload))
    except InvalidNotification as error:
        raise RowRejected(str(error)) from error
    return OutgoingMessage(push.to_json(), {PUSH_ID: push_id_of_event(event.event_id)})


_FAILURES = {
    "ack_failed": "notification_settle_failed",
    "heartbeat_failed": "notification_settle_failed",
    "settle_failed": "notification_settle_failed",
    "chore_failed": "notification_chore_failed",
    "receive_failed": "notification_paused",
}
"""The log line of each failure around a message."""
_COUNTED: Final = {"retried": "retried", "deferred": "deferred", "rejected": "dead_lettered"}
"""The counter of what the receiver did with a message that is not done."""


class EventLog:
    """The log lines and counters of the consumer of one queue."""

    def __init__(self, queue: str, handler: str, counts: Counts) -> None:
        self._queue, self._handler, self._counts = queue, handler, counts

    def observe(self, what: str, delivery: Delivery | None, /, **fields: Any) -> None:
        about = {"queue": self._queue} if delivery is None else self._about(delivery)
        if what in ("retried", "rejected"):
            about |= {"error": fields["error"], "attempt": fields["attempt"], "handler": self._handler}
            about["duration_ms"] = fields["duration_ms"]
        outcome = fields["label"] if what == "acked" else _COUNTED.get(what)
        if outcome is not None:
            counter("notifications").labels(self._queue, outcome).inc()
        if what in _COUNTED:
            self._counts.add(_COUNTED[what])
        if what == "acked":
            if _standard.isEnabledFor(logging.INFO):
                _log.info("notification_settled", outcome=outcome, **about)
        elif what == "retried":
            _log.warning("notification_retried", retry_in_seconds=round(fields["after"], 3), **about)
        elif what == "deferred":
            _log.info("notification_deferred", after_seconds=round(fields["after"], 3), **about)
        elif what == "rejected":
            _log.warning("notification_dead_lettered", reason=fields["reason"], **about)
        elif what == "released":
            for each in fields["deliveries"]:
                _log.info("notification_released", **self._about(each))
        elif what == "stop_timed_out":
            _log.warning("notification_stop_timed_out", messages=fields["messages"], **about)
        elif what in _FAILURES:
            _log.warning(_FAILURES[what], error=describe(fields["error"]), **about)

    def _about(self, delivery: Delivery) -> dict[str, object]:
        return {"queue": self._queue, "message_id": delivery.message_id, "receives": delivery.receive_count}
