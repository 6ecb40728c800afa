"""The bus on a topic of a backend: every process hears it, or one of each group."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Protocol

from postroad.bus.attributes import attributes_of
from postroad.bus.config import SQSEventBusConfig, checked_config
from postroad.bus.dispatch import Wanted
from postroad.bus.inbox import InboxHandlers
from postroad.bus.naming import Names, check_group, names_of
from postroad.bus.remote import Outlet, RemoteEventBus
from postroad.bus.stores import QueueTags, Store
from postroad.bus.topic_queues import GroupQueue, OwnQueue
from postroad.errors import ConfigurationError, InvalidInput
from postroad.events import Envelope, EventRegistry
from postroad.inbox import Inbox, Windows
from postroad.inbox.applying import Transaction
from postroad.queues import Delivery
from postroad.receiving import OwnDeadLetters
from postroad.topics import Topic
from postroad.topics.overflow import OverflowingTopic
from postroad.topics.rules import check_filter, lets_through


class OpenTopic(Protocol):
    """Opens a topic by name or ARN."""

    def __call__(self, name: str, *, fifo: bool) -> Topic: ...


class TopicEventBus(RemoteEventBus):
    """Made by `backend.bus(topic, group)`."""


def bus_for(
    store: Store,
    topic: str,
    group: str | None = None,
    *,
    fifo: bool = False,
    event_types: Collection[type] | None = None,
    attributes: Mapping[str, Collection[str]] | None = None,
    local: bool | None = None,
    orphan_after: float = 60.0,
    config: SQSEventBusConfig | None = None,
    tags: QueueTags | None = None,
    open_topic: OpenTopic | None = None,
    inbox: Inbox | None = None,
    transaction: Transaction | None = None,
    windows: Windows = Windows(),  # noqa: B008  # frozen
) -> TopicEventBus:
    """The bus of a topic: without a group every process gets every event, with one a member of the group does.

    `open_topic` opens the topic with a publish that makes each call once; None takes the store's own topics.
    """
    _check(group, orphan_after)
    names = names_of(topic, fifo=fifo)
    names.check(group)
    config = checked_config(config)
    handlers = None if inbox is None else _inbox_handlers(inbox, topic, group, local, transaction, windows)
    config = _dispatching(config, group, local)
    filter = _filter(store.registry, event_types, attributes)
    address = topic if topic.startswith("arn:") else names.topic
    bare = (
        store.topic(address, fifo=names.fifo, overflow="fail")
        if open_topic is None
        else open_topic(address, fifo=names.fifo)
    )
    inlet = (
        OwnQueue(store, bare, names, config, filter, orphan_after, tags)
        if group is None
        else GroupQueue(store, bare, names, config, filter, group)
    )
    own = isinstance(inlet, OwnQueue)
    return TopicEventBus(
        outlet=_outlet(store, bare, names, config),
        inlet=inlet,
        dead_letters=OwnDeadLetters(),
        config=config,
        registry=store.registry,
        clock=store.clock,
        unhandled="ack" if own and config.unhandled == "release" else config.unhandled,
        wanted=_wanted(filter),
        chores=[inlet] if isinstance(inlet, OwnQueue) else [],
        inbox=handlers,
    )


def _inbox_handlers(
    inbox: Inbox,
    topic: str,
    group: str | None,
    local: bool | None,
    transaction: Transaction | None,
    windows: Windows,
) -> InboxHandlers:
    if group is None:
        raise ConfigurationError(
            "group: is missing, and an inbox remembers what a group has handled",
            field="group",
            remedy="Give a group, as in backend.bus('orders', 'billing', inbox=inbox).",
        )
    if local:
        raise ConfigurationError(
            "local: handlers with an inbox run only on receipt, in a transaction",
            field="local",
            remedy="Leave `local` out.",
        )
    return InboxHandlers(inbox, f"{topic}/{group}", transaction=transaction, windows=windows)


def _check(group: object, orphan_after: object) -> None:
    if group is not None:
        check_group(group)
    if isinstance(orphan_after, bool) or not isinstance(orphan_after, int | float) or not 0 < orphan_after < math.inf:
        raise ConfigurationError(f"orphan_after: {orphan_after!r} is not a number of seconds", field="orphan_after")


def _dispatching(config: SQSEventBusConfig, group: str | None, local: bool | None) -> SQSEventBusConfig:
    """In a group a publisher does not handle its own event aside, so that the group handles it once."""
    dispatch = (config.local_dispatch and group is None) if local is None else local
    return replace(config, local_dispatch=dispatch)


def _filter(
    registry: EventRegistry,
    event_types: Collection[type] | None,
    attributes: Mapping[str, Collection[str]] | None,
) -> Mapping[str, tuple[str, ...]] | None:
    wanted: dict[str, Collection[str]] = dict(attributes or {})
    if event_types is not None:
        wanted["EventType"] = [registry.register(each) for each in _checked_types(event_types)]
    return check_filter(wanted if wanted or attributes is not None else None)


def _checked_types(event_types: object) -> Collection[type]:
    if isinstance(event_types, type | str) or not isinstance(event_types, Collection):
        raise _no_types(event_types)
    if not all(isinstance(each, type) for each in event_types):
        raise _no_types(event_types)
    return event_types


def _no_types(event_types: object) -> InvalidInput:
    return InvalidInput(
        f"event_types: {event_types!r} is not a collection of classes", field="event_types",
        remedy="Give the classes of the events in a list.",
    )  # fmt: skip


def _wanted(filter: Mapping[str, tuple[str, ...]] | None) -> Wanted:
    def wanted(delivery: Delivery, envelope: Envelope) -> bool:
        # Where the attributes disagree with the body, the body decides.
        return filter is None or lets_through(filter, {**delivery.attributes, **attributes_of(envelope)})

    return wanted


def _outlet(store: Store, bare: Topic, names: Names, config: SQSEventBusConfig) -> Outlet:
    blobs = store.blobs() if config.overflow == "blobs" else None
    limit = min(config.max_message_bytes or bare.traits.max_message_bytes, bare.traits.max_message_bytes)
    topic = bare if blobs is None else OverflowingTopic(bare, blobs, clock=store.clock, limit=config.max_message_bytes)
    return Outlet(
        name=names.topic,
        send=topic.publish,
        fifo=names.fifo,
        limit=limit if blobs is None else None,
        needs_dedup_id=True,
        # A store that publishes a batch whole shares commits among threads and joins the caller's transaction.
        longest=0 if bare.traits.atomic_batch else None,
    )
