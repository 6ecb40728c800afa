"""Removing the queues of processes that are gone."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from postroad.bus.groups import QueueTags, Store
from postroad.bus.naming import names_of
from postroad.errors import PostroadError


class SweptStore(Store, Protocol):
    """What sweeping asks of a backend."""

    def queues(self) -> list[str]: ...
    def queue_tags(self) -> QueueTags | None: ...


def sweep(store: SweptStore, topic: str, *, orphan_after: float = 60.0) -> list[str]:
    """Remove the own queues of this topic whose owners are gone, and no others; their names."""
    names = names_of(topic)
    port = store.topic(topic if topic.startswith("arn:") else names.topic, fifo=names.fifo)
    tags = store.queue_tags()
    if tags is None:
        owned = {each.queue for each in port.subscriptions() if each.queue.startswith(names.own_prefix)}
        # The store removes abandoned queues before it lists the others.
        return sorted(owned - set(store.queues()))
    gone = tags.abandoned(names.own_prefix, seconds=orphan_after)
    for name in gone:
        queue = store.queue(name)
        with suppress(PostroadError):
            port.unsubscribe(queue)
        store.delete_queue(name)
    return sorted(gone)
