"""The groups of a topic: the names of their queues, the types that each receives, and queues without an owner."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from postroad.errors import InvalidName, PostroadError, QueueExists, QueueNotFound
from postroad.ports import Store
from postroad.queues import Queue, QueueSpec, check_name
from postroad.topics import EVERYTHING, Filter, Topic

_WORD = re.compile(r"[A-Za-z0-9_-]+")
_OWN = "p-"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a topic and its queues."""

    base: str
    fifo: bool

    @property
    def topic(self) -> str:
        return self.base + self._suffix

    def dead(self, group: str | None) -> str:
        """Return the name of the dead letters of a group, or of all own queues."""
        middle, field = ("", "topic") if group is None else (f"--{group}", "group")
        return check_name(f"{self.base}{middle}--dead{self._suffix}", field=field)

    def group(self, group: str) -> str:
        return check_name(f"{self.base}--{group}{self._suffix}", field="group")

    def own(self, number: str) -> str:
        return check_name(f"{self.own_prefix}{number}{self._suffix}", field="topic")

    def check(self, group: str | None) -> None:
        """Refuse a topic or group whose queues would have names that are not valid."""
        self.dead(group)
        if group is None:
            self.own("0" * 12)

    @property
    def own_prefix(self) -> str:
        return f"{self.base}--{_OWN}"

    @property
    def _suffix(self) -> str:
        return ".fifo" if self.fifo else ""


def is_group(group: object) -> bool:
    if not isinstance(group, str) or _WORD.fullmatch(group) is None:
        return False
    return group not in ("archive", "dead") and not group.startswith(_OWN) and "--" not in group


def check_group(group: object) -> None:
    """Raise InvalidName for what cannot be the name of a group."""
    if not is_group(group):
        remedy = "Use letters, digits, '_' and single '-'; 'archive', 'dead' and 'p-…' are taken."
        raise InvalidName(f"group: {group!r} cannot name a group", field="group", remedy=remedy)


def names_of(topic: object, *, fifo: bool = False) -> Names:
    """Return the names of a topic that is given by its name or its ARN; a name that ends in `.fifo` is FIFO."""
    last = re.split("[:/]", topic)[-1] if isinstance(topic, str) and topic.startswith("arn:") else topic
    base = last.removesuffix(".fifo") if isinstance(last, str) else ""
    if not isinstance(last, str) or _WORD.fullmatch(base) is None:
        remedy = "Use letters, digits, '_' and '-', or the ARN of a topic; a name of a FIFO topic ends in '.fifo'."
        raise InvalidName(f"topic: {topic!r} is not a topic name", field="topic", remedy=remedy)
    return Names(base, fifo or last.endswith(".fifo"))


def open_topic(store: Store, topic: str, names: Names) -> Topic:
    """Return the topic, by its ARN if that was given, else by its name."""
    return store.topic(topic if topic.startswith("arn:") else names.topic, fifo=names.fifo)


EVENT_TYPE = "EventType"


def ensure(store: Store, spec: QueueSpec) -> Queue:
    """Return the queue of this name as it is; create it if it is missing."""
    return made(store, spec)[0]


def made(store: Store, spec: QueueSpec) -> tuple[Queue, bool]:
    """Return the queue of this name as it is, created if it was missing, and whether it was."""
    with suppress(QueueNotFound):
        return store.queue(spec.name), False
    with suppress(QueueExists):
        return store.create_queue(spec), True
    return store.queue(spec.name), False


def filter_of(topic: Topic, queue: str) -> Mapping[str, tuple[str, ...]] | None:
    """Return the filter of the queue's subscription; None if it has none, `{}` if it was set to everything."""
    return next((each.filter for each in topic.subscriptions() if each.queue == queue), None)


def add_types(store: Store, topic: Topic, queue: Queue, types: Collection[str] | None) -> None:
    """Let the group's queue receive these types, besides those that its other members handle; None means all.

    The filter grows in one transaction, so that members that start at the same time do not undo each other's change.
    """
    if _widened(filter_of(topic, queue.name), types) is None:
        return
    with store.transaction():
        wider = _widened(filter_of(topic, queue.name), types)
        if wider is not None:
            topic.subscribe(queue, filter=wider)


def _widened(current: Mapping[str, tuple[str, ...]] | None, types: Collection[str] | None) -> Filter | None:
    """Return the filter that also lets these types through; None if the current one does already."""
    if types is None:
        return None if current == {} else EVERYTHING
    if current is None:
        return {EVENT_TYPE: sorted(types)}
    known = current.get(EVENT_TYPE)
    if known is None or set(types) <= set(known):
        return None
    return {**current, EVENT_TYPE: sorted({*known, *types})}


@dataclass(frozen=True, slots=True)
class Group:
    """A group of a topic, as operators see it."""

    name: str
    queue: str
    types: tuple[str, ...] | None
    """The types that it receives; None for all."""


def groups_of(topic: Topic, names: Names) -> list[Group]:
    """Return the groups of a topic, by name."""
    prefix, suffix = f"{names.base}--", ".fifo" if names.fifo else ""
    found = []
    for each in topic.subscriptions():
        name = each.queue.removeprefix(prefix).removesuffix(suffix)
        if each.queue.startswith(prefix) and is_group(name):
            found.append(Group(name, each.queue, (each.filter or {}).get(EVENT_TYPE)))
    return found


def set_types(topic: Topic, queue: Queue, types: Collection[str] | None) -> None:
    """Let the group receive exactly these types from now on; None means all."""
    topic.subscribe(queue, filter=EVERYTHING if types is None else {EVENT_TYPE: sorted(types)})


def sweep(store: Store, topic: str, *, orphan_after: float = 60.0) -> list[str]:
    """Remove the own queues of this topic whose owners are gone, and return their names."""
    names = names_of(topic)
    port, tags = open_topic(store, topic, names), store.queue_tags()
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
