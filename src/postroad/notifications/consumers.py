"""The two consumers of the chat pipeline: what each does with a message, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from postroad.backoff import CHANCE
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import ConfigurationError, InvalidNotification, StorageFull, TransportError
from postroad.notifications.identity import push_id_of
from postroad.notifications.messages import OfflineMessage, PushNotification
from postroad.notifications.offline import OfflineProcessor
from postroad.notifications.push import PushProcessor
from postroad.notifications.verdicts import Ack, Again, Bury, Patience, Verdict, judge_push
from postroad.queues import Delivery, Queue, QueueSpec
from postroad.queues.burying import describe
from postroad.queues.tally import Tally

_Received = tuple[Delivery, OfflineMessage]
_OF_THE_DATABASE: Final = (TransportError, ConfigurationError, StorageFull)


class Queues(Protocol):
    """The backend, as far as a worker needs it."""

    @property
    def url(self) -> str: ...

    def queue(self, name: str) -> Queue:
        """The queue of this name."""
        ...

    def queue_spec(self, name: str) -> QueueSpec:
        """Its settings."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConsumer:
    """Stores what users missed."""

    processor: OfflineProcessor
    patience: Patience
    tally: Tally

    def __call__(self, deliveries: Sequence[Delivery]) -> list[Verdict]:
        """Store the messages with their pushes: together, or each by itself when that fails."""
        read = [_read(delivery) for delivery in deliveries]
        stored = iter(self._stored([each for each in read if not isinstance(each, Bury)]))
        return [each if isinstance(each, Bury) else next(stored) for each in read]

    def _stored(self, messages: Sequence[_Received]) -> list[Verdict]:
        try:
            return self._told(self.processor.handle_all([message for _, message in messages]))
        except Exception as error:
            if len(messages) == 1:
                return [_failed(error, messages[0][0], self.patience)]
        return self._one_by_one(messages)

    def _one_by_one(self, messages: Sequence[_Received]) -> list[Verdict]:
        verdicts: list[Verdict] = []
        for index, each in enumerate(messages):
            verdicts += self._stored([each])
            last = verdicts[-1]
            if isinstance(last, Again) and last.database:
                # It will fail the others, too, and each would wait for it.
                return verdicts + [last] * (len(messages) - index - 1)
        return verdicts

    def _told(self, outcomes: Sequence[str]) -> list[Verdict]:
        for outcome in outcomes:
            self.tally.add("stored" if outcome == "stored" else "duplicates")
        return [Ack(outcome) for outcome in outcomes]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumer:
    """Sends pushes."""

    processor: PushProcessor
    patience: Patience
    tally: Tally

    def __call__(self, deliveries: Sequence[Delivery]) -> list[Verdict]:
        """Send the pushes to the devices that have not got them."""
        return [self._sent(delivery) for delivery in deliveries]

    def _sent(self, delivery: Delivery) -> Verdict:
        try:
            push = PushNotification.from_json(delivery.body)
        except InvalidNotification as error:
            return Bury("invalid", describe(error))
        try:
            attempt = self.processor.attempt(push, push_id=push_id_of(delivery.body, delivery.attributes))
        except Exception as error:
            return _failed(error, delivery, self.patience)
        self.tally.add("sent", attempt.sent)
        self.tally.add("dropped", attempt.dropped)
        return judge_push(
            attempt, self.patience, receive_count=delivery.receive_count, made_at=push.timestamp,
            now=SYSTEM_CLOCK.now(), chance=CHANCE.random(),
        )  # fmt: skip


def _read(delivery: Delivery) -> _Received | Bury:
    try:
        return delivery, OfflineMessage.from_json(delivery.body)
    except InvalidNotification as error:
        return Bury("invalid", describe(error))


def patience_for(backend: Queues, queue: Queue, delays: tuple[float, ...]) -> Patience:
    """How patient a consumer of this queue is."""
    retention = backend.queue_spec(queue.name).retention
    return Patience(delays=delays, max_receives=queue.traits.max_receives, retention=retention)


def _failed(error: Exception, delivery: Delivery, patience: Patience) -> Verdict:
    """The database comes back, and its outage buries nothing; what else fails is tried as often as a push."""
    of_the_database = isinstance(error, _OF_THE_DATABASE)
    if patience.is_last(delivery.receive_count) and not of_the_database:
        return Bury("handler_failed", describe(error))
    return Again(describe(error), patience.pause(delivery.receive_count, CHANCE.random()), database=of_the_database)
