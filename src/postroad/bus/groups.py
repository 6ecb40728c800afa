"""Groups of a topic: the queue of each, and the types that it receives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from postroad.bus.naming import Names, is_group
from postroad.errors import QueueExists, QueueNotFound
from postroad.ports import Store
from postroad.queues import Queue, QueueSpec
from postroad.topics import EVERYTHING, Filter, Topic

EVENT_TYPE = "EventType"


def ensure(store: Store, spec: QueueSpec) -> Queue:
    """The queue of this name as it is, made only when it is missing."""
    try:
        return store.queue(spec.name)
    except QueueNotFound:
        pass
    try:
        return store.create_queue(spec)
    except QueueExists:
        return store.queue(spec.name)


def filter_of(topic: Topic, queue: str) -> Mapping[str, tuple[str, ...]] | None:
    """Return the filter of the queue's subscription; None when it has none, `{}` when everything was decided on."""
    return next((each.filter for each in topic.subscriptions() if each.queue == queue), None)


def add_types(store: Store, topic: Topic, queue: Queue, types: Collection[str] | None) -> None:
    """Let the group's queue receive these types too, beside those that its other members handle; None means all.

    The filter grows in one transaction, so that members that start at the same time take nothing from each other.
    """
    if _widened(filter_of(topic, queue.name), types) is None:
        return
    with store.transaction():
        wider = _widened(filter_of(topic, queue.name), types)
        if wider is not None:
            topic.subscribe(queue, filter=wider)


def _widened(current: Mapping[str, tuple[str, ...]] | None, types: Collection[str] | None) -> Filter | None:
    """Return the filter that also lets these types through; None when the current one does already."""
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
