"""Topologies on the embedded engine and in memory, which have queues, topics, subscriptions and streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from postroad.errors import QueueNotFound, TopologyConflict
from postroad.items import Items
from postroad.queues import QueueSpec, QueueStats
from postroad.topics import Topic
from postroad.topology.alarms import dead_letter_queues
from postroad.topology.declarations import AlarmDecl, QueueDecl, Resource, StreamDecl, SubscriptionDecl, TopicDecl
from postroad.topology.names import Key
from postroad.topology.plans import Look, Stray, keep_dead_letters
from postroad.topology.topology import Topology

if TYPE_CHECKING:
    from postroad.queues import SQLiteQueues
    from postroad.streams import SQLiteStreams
    from postroad.topics import SQLiteTopics

_OWNERS = "postroad/topology/"
_SKIPPED = {
    "table": "the embedded engine keeps its tables in its own file",
    "bucket": "the embedded engine keeps blobs beside its file",
    "bus": "the embedded engine has topics, not event buses",
    "rule": "the embedded engine runs schedules and dispatchers in `postroad up`",
    "function": "the embedded engine runs no functions; `postroad up` does their work",
    "alarm": "alarms are evaluated here by `postroad topology alarms`",
}


class EmbeddedSite:
    """The state of one embedded store, and the changes to it. The owner of a resource counts as one of its settings."""

    gathers_metrics = False

    def __init__(
        self,
        queues: SQLiteQueues,
        topics: SQLiteTopics,
        streams: SQLiteStreams,
        items: Items,
        transaction: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._queues = queues
        self._topics = topics
        self._streams = streams
        self._items = items
        self._transaction = transaction
        self._owners = dict(_owners(items))
        self._topic_names = set(topics.topics())
        self._filters: dict[str, dict[str, Any]] = {}

    def look(self, topology: Topology, resource: Resource, *, code: str | None) -> Look:
        if resource.kind in _SKIPPED:
            return Look(resource, skip=_SKIPPED[resource.kind])
        have = self._have(resource.kind, resource.name)
        owner = self._owners.get((resource.kind, resource.name))
        want = {**_want(resource), "owner": topology.name if owner is None else owner}
        return Look(resource, want, None if have is None else {**have, "owner": owner})

    def strays(self, topology: Topology) -> Sequence[Stray]:
        owned = [key for key, owner in self._owners.items() if owner == topology.name]
        strays = [key for key in owned if topology.find(*key) is None and self._have(*key) is not None]
        # A subscription is removed before its topic and its queue.
        strays.sort(key=lambda key: key[0] != "subscription")
        kept = [Stray(key, self._keep(key)) for key in strays]
        return keep_dead_letters(kept, self._queues.sources)

    def holds_items(self, resource: Resource) -> bool:
        """Return True: nothing is ever replaced here."""
        return True

    def create(self, look: Look) -> None:
        """Make the resource and store its owner in one transaction."""
        resource = look.resource
        with self._transaction():
            if isinstance(resource, QueueDecl):
                self._queues.create_queue(resource.spec)
            elif isinstance(resource, TopicDecl):
                self._topics.topic(resource.name, fifo=resource.fifo)
            elif isinstance(resource, SubscriptionDecl):
                self._subscribe(resource)
            elif isinstance(resource, StreamDecl):
                self._streams.stream(resource.name, shards=resource.shards, retention=resource.retention_hours * 3600)
            self._own(look)

    def update(self, look: Look, fields: Collection[str]) -> None:
        """Change the settings that differ, and the owner if it is one of the fields."""
        resource = look.resource
        with self._transaction():
            if set(fields) - {"owner"}:
                if isinstance(resource, QueueDecl):
                    self._queues.update_queue(resource.spec)
                elif isinstance(resource, SubscriptionDecl):
                    self._subscribe(resource)
                elif isinstance(resource, StreamDecl):
                    seconds = resource.retention_hours * 3600
                    # Opening it first refuses another number of shards, before anything is changed.
                    self._streams.stream(resource.name, shards=resource.shards, retention=seconds)
                    self._streams.keep_for(resource.name, seconds)
            if "owner" in fields:
                self._own(look)

    def delete(self, key: Key) -> None:
        """Remove a stray, unless a message has arrived in it."""
        kind, name = key
        with self._transaction():
            if keep := self._keep(key):
                raise TopologyConflict(f"{kind} {name!r} is not removed: {keep}")
            if kind == "queue":
                self._queues.delete_queue(name)
            elif kind == "topic":
                self._topics.delete_topic(name)
            elif kind == "stream":
                self._streams.delete_stream(name)
            else:
                topic, _, queue = name.partition("->")
                self._topic(topic).unsubscribe(self._queues.queue(queue))
            self._items.delete(f"{_OWNERS}{kind}/{name}")

    def measure(self, topology: Topology, alarm: AlarmDecl) -> float | None:
        """Return the metric of an alarm, computed from the counters of the queues."""
        if alarm.metric == "dead_letter_count":
            counts = [self._stats(name) for name in dead_letter_queues(topology)]
            return float(sum(stats.visible for stats in counts if stats is not None))
        stats = self._stats(alarm.resource)
        if stats is None:
            return None
        is_empty = stats.visible + stats.in_flight + stats.delayed == 0
        value = {
            "ApproximateNumberOfMessagesVisible": stats.visible,
            "ApproximateNumberOfMessagesNotVisible": stats.in_flight,
            "ApproximateNumberOfMessagesDelayed": stats.delayed,
            "ApproximateAgeOfOldestMessage": 0 if is_empty else stats.oldest_age_seconds,
        }.get(alarm.metric)
        return None if value is None else float(value)

    def _stats(self, name: str) -> QueueStats | None:
        try:
            return self._queues.queue(name).stats()
        except QueueNotFound:
            return None

    def _topic(self, name: str) -> Topic:
        return self._topics.topic(name, fifo=name.endswith(".fifo"))

    def _have(self, kind: str, name: str) -> dict[str, Any] | None:
        if kind == "queue":
            try:
                return _settings(self._queues.queue_spec(name))
            except QueueNotFound:
                return None
        if kind == "topic":
            return {} if name in self._topic_names else None
        if kind == "subscription":
            topic, _, queue = name.partition("->")
            if topic not in self._filters and topic in self._topic_names:
                subscribed = self._topic(topic).subscriptions()
                self._filters[topic] = {each.queue: _filter(each.filter or {}) for each in subscribed}
            filters = self._filters.get(topic, {})
            return {"filter": filters[queue]} if queue in filters else None
        found = self._streams.settings(name)
        return None if found is None else {"shards": found[0], "retention_hours": found[1] / 3600}

    def _subscribe(self, resource: SubscriptionDecl) -> None:
        queue = self._queues.queue(resource.queue)
        self._topic(resource.topic).subscribe(queue, filter=resource.filter or None)

    def _own(self, look: Look) -> None:
        key = f"{_OWNERS}{look.resource.kind}/{look.resource.name}"
        self._items.put(key, str(look.want["owner"]).encode())

    def _keep(self, key: Key) -> str:
        stats = self._stats(key[1]) if key[0] == "queue" else None
        holds = stats is not None and stats.visible + stats.in_flight + stats.delayed > 0
        return "it holds messages" if holds else ""


def _want(resource: Resource) -> dict[str, Any]:
    if isinstance(resource, QueueDecl):
        return _settings(resource.spec)
    if isinstance(resource, SubscriptionDecl):
        return {"filter": _filter(resource.filter)}
    if isinstance(resource, StreamDecl):
        return {"shards": resource.shards, "retention_hours": resource.retention_hours}
    return {}


def _settings(spec: QueueSpec) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(spec).items() if name not in ("name", "fifo")}


def _filter(filter: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Return the filter with sorted values, because their order means nothing."""
    return {name: sorted(values) for name, values in filter.items()}


def _owners(items: Items) -> Iterator[tuple[Key, str]]:
    cursor: str | None = None
    while True:
        page = items.scan(_OWNERS, limit=1_000, cursor=cursor)
        for item in page.items:
            kind, _, name = item.key.removeprefix(_OWNERS).partition("/")
            yield (kind, name), item.value.decode()
        if (cursor := page.cursor) is None:
            return
