"""A topic around a topic: bodies above its limit travel as blobs, one for all copies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from postroad.blobs import MAX_BLOB_BYTES, Blobs
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.queues import OutgoingMessage, OverflowingQueue, Pruning, Queue, References, SendResult, new_hex
from postroad.topics.port import Filter, Subscription, Topic, TopicTraits


class OverflowingTopic:
    """The topic `inner`, taking bodies up to the limit of blobs. Its queues are received from overflowing, too."""

    def __init__(
        self,
        topic: Topic,
        blobs: Blobs,
        *,
        clock: Clock = SYSTEM_CLOCK,
        new_id: Callable[[], str] = new_hex,
        pruning: Pruning | None = None,
        limit: int | None = None,
    ) -> None:
        self.inner = topic
        self._limit = limit
        self._references = References(blobs, clock, new_id)
        self._pruning = pruning or Pruning(blobs, clock)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def traits(self) -> TopicTraits:
        return dataclasses.replace(self.inner.traits, max_message_bytes=MAX_BLOB_BYTES)

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        """Copy each message to every queue whose filter matches its attributes."""
        limit = min(self.inner.traits.max_message_bytes, self._limit or self.inner.traits.max_message_bytes)
        results = self._references.send(messages, self.inner.publish, limit=limit)
        self._pruning.run_when_due()
        return results

    def subscribe(self, queue: Queue, *, filter: Filter | None = None, keep_filter: bool = False) -> None:
        """Give the queue a copy from now on. Subscribing again replaces the filter, unless `keep_filter` is set."""
        self.inner.subscribe(_bare(queue), filter=filter, keep_filter=keep_filter)

    def unsubscribe(self, queue: Queue) -> bool:
        """Stop the copies; what the queue holds stays. Says whether it was subscribed."""
        return self.inner.unsubscribe(_bare(queue))

    def subscriptions(self) -> list[Subscription]:
        """Who gets copies, by queue name."""
        return self.inner.subscriptions()


def _bare(queue: Queue) -> Queue:
    """The adapter's own queue, whose address its topic may need."""
    return queue.inner if isinstance(queue, OverflowingQueue) else queue
