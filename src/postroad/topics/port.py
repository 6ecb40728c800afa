"""The topic: each subscribed queue gets its own copy of what is published."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

import msgspec

from postroad.queues import OutgoingMessage, Queue, SendResult

Filter = Mapping[str, Collection[str]]
EVERYTHING: Final[Filter] = MappingProxyType({})
"""A filter that lets everything through because somebody decided so, not because nobody has decided yet."""


class Subscription(msgspec.Struct, frozen=True):
    """A queue that gets a copy of what its filter lets through."""

    queue: str
    filter: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTraits:
    """What a topic promises."""

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
        """Copy each message to every queue whose filter matches its attributes."""
        ...

    def subscribe(self, queue: Queue, *, filter: Filter | None = None, keep_filter: bool = False) -> None:
        """Give the queue a copy from now on. Subscribing again replaces the filter, unless `keep_filter` is set."""
        ...

    def unsubscribe(self, queue: Queue) -> bool:
        """Stop the copies; what the queue holds stays. Says whether it was subscribed."""
        ...

    def subscriptions(self) -> list[Subscription]:
        """Who gets copies, by queue name."""
        ...
