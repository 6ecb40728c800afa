"""The bus on a topic of a backend: every process hears it, or one of each group."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

from postroad.bus.config import SQSEventBusConfig, checked_config
from postroad.bus.dispatch import InboxHandlers, Wanted
from postroad.bus.endpoints import GroupQueue, Outlet, OwnQueue
from postroad.bus.groups import Names, check_group, names_of
from postroad.bus.publisher import attributes_of
from postroad.bus.remote import RemoteEventBus
from postroad.errors import ConfigurationError, InvalidInput
from postroad.events import Envelope, EventRegistry
from postroad.inbox import Inbox, Transaction, Windows
from postroad.ports import QueueTags, Store
from postroad.queues import Delivery
from postroad.receiving import OwnDeadLetters
from postroad.topics import OverflowingTopic, Topic, check_filter, lets_through


class OpenTopic(Protocol):
    """Opens a topic by name or ARN."""

    def __call__(self, name: str, *, fifo: bool) -> Topic: ...


class Bus(RemoteEventBus):
    """The bus of a topic: without a group every process gets every event, with one a member of the group does.

    `backend.bus(…)` makes one that is ready. One that is made by itself takes handlers at once, and is bound to a
    backend later: by `bind(backend)`, or by `postroad.run(bus)`, which connects, binds and receives.

    Args:
        topic: Its name, or its ARN on AWS.
        group: The group that shares the events; without one every process gets every event.
        fifo: Whether events of one key stay in order.
        event_types: The classes that the group receives; by default those that its members handle.
        attributes: Values of message attributes that the group receives.
        local: Whether handlers of this process run during `publish`; by default only without a group.
        orphan_after: Seconds after which the queue of a process that died is removed; for buses without a group.
        config: Everything else.
        inbox: Makes effects happen once: each handler is called as `handler(event, connection)` inside the
            transaction that writes its row in the inbox. Needs a group.
        transaction: Opens the application's own transactions, for an inbox without connections of its own.
        windows: How long an event may come again, which the inbox must outlast.

    Raises:
        ConfigurationError: Arguments that do not go together.

    Example:
        orders = postroad.Bus("orders", group="billing")

        @orders.on(OrderPlaced)
        def charge(event: OrderPlaced) -> None: ...

        postroad.run(orders)
    """

    def __init__(
        self,
        topic: str,
        group: str | None = None,
        *,
        fifo: bool = False,
        event_types: Collection[type] | None = None,
        attributes: Mapping[str, Collection[str]] | None = None,
        local: bool | None = None,
        orphan_after: float = 60.0,
        config: SQSEventBusConfig | None = None,
        inbox: Inbox | None = None,
        transaction: Transaction | None = None,
        windows: Windows = Windows(),  # noqa: B008  # frozen
    ) -> None:
        _check(group, orphan_after)
        names_of(topic, fifo=fifo).check(group)
        self._declared = _Declared(
            topic=topic,
            group=group,
            fifo=fifo,
            event_types=event_types,
            attributes=attributes,
            config=_dispatching(checked_config(config), group, local),
            orphan_after=orphan_after,
        )
        handlers = None if inbox is None else _inbox_handlers(inbox, topic, group, local, transaction, windows)
        self._declare(handlers)

    @property
    def is_bound(self) -> bool:
        """Whether it has a store."""
        return "name" in vars(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # Only asked for what is not there: everything else is, once the bus is bound.
            if name.startswith("__") or self.is_bound:
                raise AttributeError(name)
            raise ConfigurationError(
                f"the bus {self._declared.topic!r} has no store yet",
                remedy="Call bind(backend) first, or run it with postroad.run(bus).",
            )

    def set_concurrency(self, concurrency: int) -> None:
        """Run so many handlers at the same time, instead of what the config says.

        Raises:
            ConfigurationError: The bus is bound already, or the number is out of its bounds.
        """
        if self.is_bound:
            raise ConfigurationError(
                f"concurrency: the bus {self._declared.topic!r} is bound already",
                field="concurrency",
                remedy="Give it in the config of the bus.",
            )
        self._declared = replace(self._declared, config=replace(self._declared.config, concurrency=concurrency))

    def bind(self, backend: Bindable) -> Self:
        """Give the bus its store, with the handlers that it has by now, and return it.

        Raises:
            ConfigurationError: It is bound already.
        """
        if self.is_bound:
            raise ConfigurationError(
                f"the bus {self._declared.topic!r} is bound already", remedy="Make another bus for another backend."
            )
        backend.bind(self)
        return self

    def connect(self, store: Store, *, tags: QueueTags | None = None, open_topic: OpenTopic | None = None) -> None:
        """Make topic and queue in the store. `open_topic` opens the topic with a publish that makes each call once."""
        declared = self._declared
        names, config = names_of(declared.topic, fifo=declared.fifo), declared.config
        filter = _filter(store.registry, declared.event_types, declared.attributes)
        address = declared.topic if declared.topic.startswith("arn:") else names.topic
        bare = (
            store.topic(address, fifo=names.fifo, overflow="fail")
            if open_topic is None
            else open_topic(address, fifo=names.fifo)
        )
        inlet = (
            OwnQueue(store, bare, names, config, filter, declared.orphan_after, tags)
            if declared.group is None
            else GroupQueue(store, bare, names, config, filter, declared.group)
        )
        own = isinstance(inlet, OwnQueue)
        self._connect(
            outlet=_outlet(store, bare, names, config),
            inlet=inlet,
            dead_letters=OwnDeadLetters(),
            config=config,
            registry=store.registry,
            clock=store.clock,
            unhandled="ack" if own and config.unhandled == "release" else config.unhandled,
            wanted=_wanted(filter),
            chores=[inlet] if isinstance(inlet, OwnQueue) else [],
        )
        if declared.group is not None and filter is None and not bare.traits.filters_at_once:
            self._teller.unhandled_remedy = (
                f"Name the types that the group handles: `postroad bus group set {declared.topic} {declared.group} "
                "--types A,B`, or event_types= of the bus."
            )


TopicEventBus = Bus


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """What is known about a bus before it has a store."""

    topic: str
    group: str | None
    fifo: bool
    event_types: Collection[type] | None
    attributes: Mapping[str, Collection[str]] | None
    config: SQSEventBusConfig
    orphan_after: float


class Bindable(Protocol):
    """A backend, as far as a bus needs one to be bound."""

    def bind(self, bus: Bus) -> None:
        """Connect the bus to the store, and close it together with the backend."""
        ...


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
        f"event_types: {event_types!r} is not a collection of classes",
        field="event_types",
        remedy="Give the classes of the events in a list.",
    )


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
