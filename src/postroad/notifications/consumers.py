"""The two consumers of the chat pipeline: what each does with a message, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from postroad.backoff import CHANCE
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import ConfigurationError, InvalidNotification, StorageFull, TransportError, describe
from postroad.notifications.devices import push_id_of
from postroad.notifications.messages import OfflineMessage, PushNotification
from postroad.notifications.offline import OfflineProcessor
from postroad.notifications.push import PushProcessor
from postroad.notifications.retries import RetryPolicy, decide_push, rejected
from postroad.ports import Store
from postroad.queues import Delivery, Queue
from postroad.receiving import Ack, Counts, Outcome, Reject, Retry

_Received = tuple[Delivery, OfflineMessage]
DATABASE: Final = "database"
"""What a retry is about when the database is at fault, which will fail the next message too."""
_OF_THE_DATABASE: Final = (TransportError, ConfigurationError, StorageFull)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConsumer:
    """Stores what users missed."""

    processor: OfflineProcessor
    retries: RetryPolicy
    tally: Counts

    def __call__(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """Store the messages with their pushes: together, or each by itself when that fails."""
        read = [_read(delivery) for delivery in deliveries]
        stored = iter(self._stored([each for each in read if not isinstance(each, Reject)]))
        return [each if isinstance(each, Reject) else next(stored) for each in read]

    def _stored(self, messages: Sequence[_Received]) -> list[Outcome]:
        try:
            return self._told(self.processor.handle_all([message for _, message in messages]))
        except Exception as error:
            if len(messages) == 1:
                return [_failed(error, messages[0][0], self.retries)]
        return self._one_by_one(messages)

    def _one_by_one(self, messages: Sequence[_Received]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for index, each in enumerate(messages):
            outcomes += self._stored([each])
            last = outcomes[-1]
            if isinstance(last, Retry) and last.about is DATABASE:
                # It will fail the others, too, and each would wait for it.
                return outcomes + [last] * (len(messages) - index - 1)
        return outcomes

    def _told(self, outcomes: Sequence[str]) -> list[Outcome]:
        for outcome in outcomes:
            self.tally.add("stored" if outcome == "stored" else "duplicates")
        return [Ack(label=outcome) for outcome in outcomes]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumer:
    """Sends pushes."""

    processor: PushProcessor
    retries: RetryPolicy
    tally: Counts

    def __call__(self, delivery: Delivery) -> Outcome:
        """Send the push to the devices that have not got it."""
        try:
            push = PushNotification.from_json(delivery.body)
        except InvalidNotification as error:
            return rejected("invalid", describe(error))
        try:
            attempt = self.processor.attempt(push, push_id=push_id_of(delivery.body, delivery.attributes))
        except Exception as error:
            return _failed(error, delivery, self.retries)
        self.tally.add("sent", attempt.sent)
        self.tally.add("dropped", attempt.dropped)
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


def retries_for(backend: Store, queue: Queue, delays: tuple[float, ...]) -> RetryPolicy:
    """Return how often a consumer of this queue tries, and how long it waits in between."""
    retention = backend.queue_spec(queue.name).retention
    return RetryPolicy(delays=delays, max_receives=queue.traits.max_receives, retention=retention)


def _failed(error: Exception, delivery: Delivery, retries: RetryPolicy) -> Outcome:
    """The database comes back, and its outage rejects nothing; what else fails is tried as often as a push."""
    of_the_database = isinstance(error, _OF_THE_DATABASE)
    if retries.is_last(delivery.receive_count) and not of_the_database:
        return rejected("handler_failed", describe(error))
    pause = retries.pause(delivery.receive_count, CHANCE.random())
    return Retry(pause, describe(error), about=DATABASE if of_the_database else None)
