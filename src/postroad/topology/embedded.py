"""Topologies on the embedded engine and in memory: queues, topics, subscriptions and streams are real there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from postroad.errors import QueueNotFound, TopologyConflict
from postroad.items import Items
from postroad.queues import QueueSpec, QueueStats, QueueStore
from postroad.streams import Stream
from postroad.topics import Topic
from postroad.topology.alarms import dead_letter_queues, measured
from postroad.topology.declarations import AlarmDecl, QueueDecl, Resource, StreamDecl, SubscriptionDecl, TopicDecl
from postroad.topology.names import Key
from postroad.topology.plans import Look, Stray, keep_dead_letters
from postroad.topology.topology import Topology

_OWNERS = "postroad/topology/"
_NO_MESSAGES_LOST = "it holds messages"
_SKIPPED = {
    "table": "the embedded engine keeps its tables in its own file",
    "bucket": "the embedded engine keeps blobs beside its file",
    "bus": "the embedded engine has topics, not event buses",
    "rule": "the embedded engine runs schedules and dispatchers in `postroad up`",
    "function": "the embedded engine runs no functions; `postroad up` does their work",
    "alarm": "alarms are evaluated here by evaluate_alarms",
}


class TopicStore(Protocol):
    """The topics of an embedded ground."""

    def topic(self, name: str, *, fifo: bool = False) -> Topic: ...
    def topics(self) -> list[str]: ...
    def delete_topic(self, name: str) -> None: ...


class StreamStore(Protocol):
    """The streams of an embedded ground."""

    def stream(self, name: str, *, shards: int, retention: float) -> Stream: ...
    def settings(self, name: str) -> tuple[int, float] | None: ...
    def keep_for(self, name: str, retention: float) -> None: ...
    def delete_stream(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class EmbeddedStores:
    """What an embedded ground is made of."""

    queues: QueueStore
    topics: TopicStore
    streams: StreamStore
    items: Items
    transaction: Callable[[], AbstractContextManager[None]]


class EmbeddedSite:
    """One look at an embedded ground, and the changes that follow from it."""

    gathers_metrics = False

    def __init__(self, stores: EmbeddedStores) -> None:
        self._stores = stores
        self._owners = dict(_owners(stores.items))
        self._topics = set(stores.topics.topics())
        self._filters: dict[str, dict[str, Any]] = {}

    def look(self, topology: Topology, resource: Resource, *, code: str | None) -> Look:
        """See one resource, reading only; who owns it counts as a setting."""
        if resource.kind in _SKIPPED:
            return Look(resource, skip=_SKIPPED[resource.kind])
        have = self._have(resource)
        owner = self._owners.get((resource.kind, resource.name))
        want = {**_want(resource), "owner": topology.name if owner is None else owner}
        return Look(resource, want, None if have is None else {**have, "owner": owner})

    def strays(self, topology: Topology) -> Sequence[Stray]:
        """What this topology owns and does not declare."""
        owned = [key for key, owner in self._owners.items() if owner == topology.name]
        strays = [key for key in owned if topology.find(*key) is None and self._exists(key)]
        # What hangs between two things goes before them.
        strays.sort(key=lambda key: key[0] != "subscription")
        return keep_dead_letters([Stray(key, self._keep(key)) for key in strays], self._sources)

    def holds_items(self, resource: Resource) -> bool:
        """Nothing is ever replaced here."""
        return True

    def create(self, topology: Topology, look: Look) -> None:
        """Make the resource and remember its owner, in one commit where the store has one."""
        with self._stores.transaction():
            self._make(look.resource)
            self._own(look)

    def update(self, topology: Topology, look: Look, fields: Collection[str]) -> None:
        """Change these fields."""
        with self._stores.transaction():
            if set(fields) - {"owner"}:
                self._change(look.resource)
            if "owner" in fields:
                self._own(look)

    def replace(self, topology: Topology, look: Look) -> None:
        """Everything here is changed in place."""
        raise TopologyConflict(f"{look.resource.kind} {look.resource.name!r} is not replaced")

    def delete(self, key: Key) -> None:
        """Remove a stray, unless something arrived in it meanwhile."""
        with self._stores.transaction():
            if keep := self._keep(key):
                raise TopologyConflict(f"{key[0]} {key[1]!r} is not removed: {keep}")
            self._remove(key)
            self._stores.items.delete(_owner_key(key))

    def measure(self, topology: Topology, alarm: AlarmDecl) -> float | None:
        """The metric of an alarm as the queues' own numbers tell it."""
        if alarm.metric == "dead_letter_count":
            counts = [self._stats(name) for name in dead_letter_queues(topology)]
            return float(sum(stats.visible for stats in counts if stats is not None))
        return measured(alarm, self._stats(alarm.resource))

    def _sources(self, dead_letter: str) -> list[str]:
        return self._by_dead_letter.get(dead_letter, [])

    @cached_property
    def _by_dead_letter(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self._stores.queues.queues():
            if (dead_letter := self._stores.queues.queue_spec(name).dead_letter) is not None:
                found.setdefault(dead_letter, []).append(name)
        return found

    def _stats(self, name: str) -> QueueStats | None:
        try:
            return self._stores.queues.queue(name).stats()
        except QueueNotFound:
            return None

    def _have(self, resource: Resource) -> dict[str, Any] | None:
        if isinstance(resource, QueueDecl):
            try:
                return _settings(self._stores.queues.queue_spec(resource.name))
            except QueueNotFound:
                return None
        if isinstance(resource, TopicDecl):
            return {} if resource.name in self._topics else None
        if isinstance(resource, SubscriptionDecl):
            filters = self._filters_of(resource.topic)
            return {"filter": filters[resource.queue]} if resource.queue in filters else None
        found = self._stores.streams.settings(resource.name)
        return None if found is None else {"shards": found[0], "retention_hours": found[1] / 3600}

    def _filters_of(self, topic: str) -> dict[str, Any]:
        if topic not in self._filters and topic in self._topics:
            found = self._stores.topics.topic(topic, fifo=topic.endswith(".fifo")).subscriptions()
            self._filters[topic] = {each.queue: _filter(each.filter or {}) for each in found}
        return self._filters.get(topic, {})

    def _make(self, resource: Resource) -> None:
        if isinstance(resource, QueueDecl):
            self._stores.queues.create_queue(resource.spec)
        elif isinstance(resource, TopicDecl):
            self._stores.topics.topic(resource.name, fifo=resource.fifo)
        elif isinstance(resource, SubscriptionDecl):
            self._subscribe(resource)
        elif isinstance(resource, StreamDecl):
            self._stores.streams.stream(
                resource.name, shards=resource.shards, retention=resource.retention_hours * 3600
            )

    def _change(self, resource: Resource) -> None:
        if isinstance(resource, QueueDecl):
            self._stores.queues.update_queue(resource.spec)
        elif isinstance(resource, SubscriptionDecl):
            self._subscribe(resource)
        elif isinstance(resource, StreamDecl):
            seconds = resource.retention_hours * 3600
            # Opening it first refuses another number of shards, before anything is changed.
            self._stores.streams.stream(resource.name, shards=resource.shards, retention=seconds)
            self._stores.streams.keep_for(resource.name, seconds)

    def _subscribe(self, resource: SubscriptionDecl) -> None:
        topic = self._stores.topics.topic(resource.topic, fifo=resource.topic.endswith(".fifo"))
        topic.subscribe(self._stores.queues.queue(resource.queue), filter=resource.filter or None)

    def _own(self, look: Look) -> None:
        key = (look.resource.kind, look.resource.name)
        self._stores.items.put(_owner_key(key), str(look.want["owner"]).encode())

    def _exists(self, key: Key) -> bool:
        kind, name = key
        if kind == "queue":
            return self._stats(name) is not None
        if kind == "topic":
            return name in self._topics
        if kind == "subscription":
            topic, _, queue = name.partition("->")
            return queue in self._filters_of(topic)
        return self._stores.streams.settings(name) is not None

    def _keep(self, key: Key) -> str:
        stats = self._stats(key[1]) if key[0] == "queue" else None
        holds = stats is not None and stats.visible + stats.in_flight + stats.delayed > 0
        return _NO_MESSAGES_LOST if holds else ""

    def _remove(self, key: Key) -> None:
        kind, name = key
        if kind == "queue":
            self._stores.queues.delete_queue(name)
        elif kind == "topic":
            self._stores.topics.delete_topic(name)
        elif kind == "stream":
            self._stores.streams.delete_stream(name)
        else:
            topic, _, queue = name.partition("->")
            subscribed = self._stores.topics.topic(topic, fifo=topic.endswith(".fifo"))
            subscribed.unsubscribe(self._stores.queues.queue(queue))


def _want(resource: Resource) -> dict[str, Any]:
    if isinstance(resource, QueueDecl):
        return _settings(resource.spec)
    if isinstance(resource, SubscriptionDecl):
        return {"filter": _filter(resource.filter)}
    if isinstance(resource, StreamDecl):
        return {"shards": resource.shards, "retention_hours": resource.retention_hours}
    return {}


def _settings(spec: QueueSpec) -> dict[str, Any]:
    settings = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    return {name: value for name, value in settings.items() if name not in ("name", "fifo")}


def _filter(filter: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """The filter with the values of each name in one order, which means nothing."""
    return {name: sorted(values) for name, values in filter.items()}


def _owners(items: Items) -> Iterator[tuple[Key, str]]:
    cursor: str | None = None
    while True:
        page = items.scan(_OWNERS, limit=1_000, cursor=cursor)
        for item in page.items:
            kind, _, name = item.key.removeprefix(_OWNERS).partition("/")
            yield (kind, name), item.value.decode()
        cursor = page.cursor
        if cursor is None:
            return


def _owner_key(key: Key) -> str:
    return f"{_OWNERS}{key[0]}/{key[1]}"
