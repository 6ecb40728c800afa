"""The topic: each subscribed queue gets its own copy of what is published; with the checks that every adapter makes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

import msgspec

from postroad.blobs import MAX_BLOB_BYTES, Blobs
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, InvalidInput, InvalidMessage, InvalidName, TopicNotFound
from postroad.queues import (
    OutgoingMessage,
    OverflowingQueue,
    Pruning,
    Queue,
    QueueSpec,
    References,
    SendResult,
    check_messages,
    new_hex,
)
from postroad.settings import nearest

Filter = Mapping[str, Collection[str]]
Values = Mapping[str, tuple[str, ...]]
EVERYTHING: Final[Filter] = MappingProxyType({})
"""A filter that lets everything through by decision; None means that nobody has decided yet."""
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")
_STANDARD = QueueSpec("topic")
_FIFO = QueueSpec("topic.fifo", fifo=True)


class Subscription(msgspec.Struct, frozen=True):
    """A queue that gets a copy of what its filter lets through.

    Attributes:
        queue: The name of the queue.
        filter: Accepted values by attribute; None for everything.
    """

    queue: str
    filter: Values | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTraits:
    """What a topic promises.

    Attributes:
        fifo: Whether messages of a group stay in order.
        durable: Whether what was published survives a power cut.
        max_message_bytes: The size of the largest message.
    """

    fifo: bool
    durable: bool
    atomic_batch: bool
    """A batch is published whole or not at all, to all queues at once."""
    filters_at_once: bool
    """A changed filter holds for the next publish."""
    max_message_bytes: int

    @property
    def ordered(self) -> bool:
        """Order holds within a group, into FIFO queues."""
        return self.fifo

    @property
    def deduplicates(self) -> bool:
        """A repeated dedup id within five minutes is recognised."""
        return self.fifo


@runtime_checkable
class Topic(Protocol):
    """A name to publish under. Every rule of `TopicConformance` holds unless the traits say otherwise."""

    @property
    def name(self) -> str: ...
    @property
    def traits(self) -> TopicTraits: ...

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        """Copy each of `messages` to every queue whose filter matches its attributes."""
        ...

    def subscribe(self, queue: Queue, *, filter: Filter | None = None, keep_filter: bool = False) -> None:
        """Give the queue a copy of each message from now on; again, replace its filter unless `keep_filter` is set.

        Args:
            queue: A queue of the same backend. A FIFO queue needs a FIFO topic.
            filter: The values allowed for each attribute; None lets every message through.
            keep_filter: Leave the filter of an existing subscription as it is.
        """
        ...

    def unsubscribe(self, queue: Queue) -> bool:
        """Stop the copies to `queue`, and return whether it was subscribed; what it holds stays."""
        ...

    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions in the order of the queues' names."""
        ...


class OverflowingTopic:
    """The topic `inner`, with bodies up to the limit of blobs, one blob for all copies.

    Receive from its queues through `OverflowingQueue`, which also explains the arguments.
    """

    def __init__(
        self,
        topic: Topic,
        blobs: Blobs,
        *,
        clock: Clock = SYSTEM_CLOCK,
        pruning: Pruning | None = None,
        limit: int | None = None,
    ) -> None:
        self.inner = topic
        self.name, self.subscriptions = topic.name, topic.subscriptions
        self._limit = limit
        self._references = References(blobs, clock, new_hex, pruning or Pruning(blobs, clock))

    @property
    def traits(self) -> TopicTraits:
        return dataclasses.replace(self.inner.traits, max_message_bytes=MAX_BLOB_BYTES)

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        most = self.inner.traits.max_message_bytes
        return self._references.send(messages, self.inner.publish, limit=min(most, self._limit or most))

    def subscribe(self, queue: Queue, *, filter: Filter | None = None, keep_filter: bool = False) -> None:
        self.inner.subscribe(_bare(queue), filter=filter, keep_filter=keep_filter)

    def unsubscribe(self, queue: Queue) -> bool:
        return self.inner.unsubscribe(_bare(queue))


def _bare(queue: Queue) -> Queue:
    """Return the adapter's own queue, since a topic may need its address."""
    return queue.inner if isinstance(queue, OverflowingQueue) else queue


def check_topic_name(name: object, *, fifo: bool) -> str:
    """Refuse a topic name that SNS would refuse."""
    if not isinstance(name, str) or not 1 <= len(name) <= 256 or _NAME.fullmatch(name) is None:
        remedy = "Use 1 to 256 letters, digits, '-' or '_', with '.fifo' at the end exactly when it is FIFO."
        raise InvalidName(f"name: {name!r} is not a topic name", field="name", remedy=remedy)
    if name.endswith(".fifo") is not fifo:
        remedy = "End the name of a FIFO topic, and of no other, with '.fifo'."
        raise InvalidName(f"topic name {name!r} and fifo={fifo} disagree", field="name", remedy=remedy)
    return name


def no_topic(name: str, names: Collection[str]) -> TopicNotFound:
    return TopicNotFound(f'topic "{name}" does not exist', field="topic", nearest=nearest(name, names))


def is_arn(name: object) -> bool:
    return isinstance(name, str) and name.startswith("arn:")


def check_published(messages: Sequence[OutgoingMessage], *, fifo: bool, limit: int) -> list[bytes]:
    """Return the bodies as bytes, or refuse the whole batch naming the entry and the field."""
    bodies = check_messages(_FIFO if fifo else _STANDARD, messages, limit=limit)
    for index, message in enumerate(messages):
        if message.delay:
            field = "delay" if len(messages) == 1 else f"messages[{index}].delay"
            raise InvalidMessage(f"{field}: a topic cannot delay messages; give the queue a delay", field=field)
    return bodies


def check_queue(queue: object) -> str:
    """Return the queue's name, or refuse what is not a queue, such as a name alone."""
    name = getattr(queue, "name", None)
    if not isinstance(name, str):
        text = f"queue: {type(queue).__name__} is not a Queue"
        raise InvalidInput(text, field="queue", remedy="Pass backend.queue(name).")
    return name


def check_subscriber(topic: str, *, fifo: bool, queue: object) -> None:
    """Refuse a queue whose order the topic could not keep."""
    name = check_queue(queue)
    if name.endswith(".fifo") and not fifo:
        text = f"queue: {name!r} is FIFO, but topic {topic!r} keeps no order"
        remedy = "Subscribe a standard queue, or publish to a FIFO topic."
        raise ConfigurationError(text, field="queue", remedy=remedy)


def check_filter(filter: Filter | None) -> Values | None:
    """Return the filter with its values as tuples, or refuse it naming the attribute."""
    given: object = filter
    if given is None:
        return None
    if given is EVERYTHING:
        return {}
    if not isinstance(given, Mapping) or not given:
        raise InvalidInput(f"filter: {filter!r} is not a mapping of attribute names to values", field="filter")
    return {name: _values(name, values) for name, values in given.items()}


def _values(name: object, values: object) -> tuple[str, ...]:
    # A text is a collection too, but nobody means its letters.
    given = tuple(values) if isinstance(values, Collection) and not isinstance(values, str | bytes) else ()
    if not isinstance(name, str) or not name or not given or not all(isinstance(each, str) for each in given):
        field = f"filter.{name}"
        raise InvalidInput(f"{field}: {values!r} is not a collection of one or more texts", field=field)
    return given


def lets_through(filter: Values | None, attributes: Mapping[str, str]) -> bool:
    """Return whether every attribute that the filter names has one of its values."""
    return filter is None or all(attributes.get(name) in values for name, values in filter.items())
