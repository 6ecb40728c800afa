"""The bus on a topic of a backend: every process gets each event, or one process of each group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self

from msgspec import Meta

from postroad.arguments import FINITE, check
from postroad.bus.config import BusConfig, checked_config
from postroad.bus.dispatch import InboxHandlers
from postroad.bus.endpoints import GroupQueue, OwnQueue, topic_outlet
from postroad.bus.groups import check_group, names_of
from postroad.bus.publisher import attributes_of
from postroad.bus.remote import RemoteEventBus
from postroad.errors import ConfigurationError, InvalidInput
from postroad.events import Envelope, EventRegistry
from postroad.inbox import Inbox, Transaction, Windows
from postroad.ports import Store
from postroad.queues import Delivery
from postroad.receiving import OwnDeadLetters
from postroad.topics import Topic, check_filter, lets_through

_OrphanAfter = Annotated[float, Meta(gt=0, le=FINITE, description="a number of seconds")]


class Bus(RemoteEventBus):
    """The bus of a topic: without a group every process gets every event, with one a member of the group does.

    `backend.bus(…)` returns one that is ready to use. A bus that you make yourself takes handlers at once and is bound
    to a backend later: by `bind(backend)`, or by `postroad.run(bus)`, which connects, binds and receives.

    Args:
        topic: Its name, or its ARN on AWS.
        group: The group that shares the events; without one every process gets every event.
        fifo: Whether events of one key stay in order.
        event_types: The classes that the group receives; by default those that its members handle. On AWS name them.
        attributes: For each message attribute the values that the group receives; by default all.
        local: Whether handlers of this process run during `publish`; by default only without a group.
        orphan_after: Seconds after which the queue of a process that died is removed; for buses without a group.
        config: All other settings; by default those of the environment.
        inbox: Makes effects happen once: each handler is called as `handler(event, connection)` inside the
            transaction that writes its row in the inbox. This needs a group.
        transaction: Opens the application's own transactions, for an inbox without connections of its own.
        windows: How long an event may be delivered again; the inbox must remember it for longer.

    Raises:
        ConfigurationError: An argument is out of bounds, or the arguments do not fit together.
        InvalidName: The topic or the group has a name that their queues could not have.

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
        config: BusConfig | None = None,
        inbox: Inbox | None = None,
        transaction: Transaction | None = None,
        windows: Windows = Windows(),  # noqa: B008  # frozen
    ) -> None:
        if group is not None:
            check_group(group)
        check(orphan_after, _OrphanAfter, "orphan_after", ConfigurationError)
        names_of(topic, fifo=fifo).check(group)
        config = checked_config(config)
        # Only the member of the group that receives the event handles it, so that the group handles it once.
        dispatch = (config.local_dispatch and group is None) if local is None else local
        self._topic, self._group, self._fifo, self._orphan_after = topic, group, fifo, orphan_after
        self._event_types, self._attributes = event_types, attributes
        self._declared_config = replace(config, local_dispatch=dispatch)
        handlers = None if inbox is None else _inbox_handlers(inbox, topic, group, local, transaction, windows)
        self._declare(handlers)

    @property
    def topic(self) -> str:
        """The topic as it was given: its name or its ARN."""
        return self._topic

    @property
    def group_queue(self) -> str | None:
        """The name of the queue of its group; None if it has no group."""
        return None if self._group is None else names_of(self._topic, fifo=self._fifo).group(self._group)

    @property
    def handler_names(self) -> list[str]:
        """The names of its handlers, sorted."""
        return sorted({each.name for each in self._subscribed})

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # Python calls this only for attributes that are missing; a bound bus has them all.
            if name.startswith("__") or self.is_bound:
                raise AttributeError(name)
            why = f"the bus {self.topic!r} has no store yet"
            raise ConfigurationError(why, remedy="Call bind(backend) first, or run it with postroad.run(bus).")

    def set_concurrency(self, concurrency: int) -> None:
        """Let `concurrency` handlers run at the same time, instead of the number in the config.

        Raises:
            ConfigurationError: The bus is bound already, or the number is out of bounds.
        """
        if self.is_bound:
            why = f"concurrency: the bus {self.topic!r} is bound already"
            raise ConfigurationError(why, field="concurrency", remedy="Give it in the config of the bus.")
        self._declared_config = replace(self._declared_config, concurrency=concurrency)

    def bind(self, backend: Any) -> Self:
        """Give the bus its store and return the bus, with the handlers that it has by now.

        Args:
            backend: What `postroad.connect` returns; the bus is closed together with it.

        Raises:
            ConfigurationError: It is bound already.
        """
        backend.bind(self)
        return self

    def connect(self, store: Store, open_topic: Callable[..., Topic]) -> None:
        """Make topic and queue in `store`; `open_topic` opens a topic that never retries."""
        if self.is_bound:
            raise ConfigurationError(
                f"the bus {self.topic!r} is bound already", remedy="Make another bus for another backend."
            )
        names, config = names_of(self._topic, fifo=self._fifo), self._declared_config
        filter = _filter(store.registry, self._event_types, self._attributes)
        address = self._topic if self._topic.startswith("arn:") else names.topic
        bare = open_topic(address, fifo=names.fifo)
        unhandled = config.unhandled
        if self._group is None:
            inlet = OwnQueue(store, bare, names, config, filter, self._orphan_after).inlet
            unhandled = "ack" if unhandled == "release" else unhandled
        else:
            attempts = max((each.limits.max_attempts or 1 for each in self._subscribed), default=1)
            inlet = GroupQueue(store, bare, names, config, filter, self._group, attempts).inlet
        # A store with atomic batches shares commits among threads and joins the caller's transaction.
        longest = 0 if bare.traits.atomic_batch else None
        super().__init__(
            outlet=topic_outlet(bare, store.blobs(), config, store.clock, needs_dedup_id=True, longest=longest),
            inlet=inlet,
            dead_letters=OwnDeadLetters(),
            config=config,
            registry=store.registry,
            clock=store.clock,
            unhandled=unhandled,
            wanted=None if filter is None else partial(_wanted, filter),
        )
        self._telemetry.queue = self.group_queue or self.name
        if self._group is not None and filter is None and not bare.traits.filters_at_once:
            self._telemetry.unhandled_remedy = (
                f"Name the types that the group handles: `postroad bus group set {self._topic} {self._group} "
                "--types A,B`, or event_types= of the bus."
            )


TopicEventBus = Bus


def _inbox_handlers(
    inbox: Inbox, topic: str, group: str | None, local: bool | None, transaction: Transaction | None, windows: Windows
) -> InboxHandlers:
    if group is None:
        raise ConfigurationError(
            "group: is missing, and an inbox remembers what a group has handled",
            field="group",
            remedy="Give a group, as in backend.bus('orders', 'billing', inbox=inbox).",
        )
    if local:
        why = "local: handlers with an inbox run only on receipt, in a transaction"
        raise ConfigurationError(why, field="local", remedy="Leave `local` out.")
    return InboxHandlers(inbox, f"{topic}/{group}", transaction=transaction, windows=windows)


def _filter(
    registry: EventRegistry, event_types: Collection[type] | None, attributes: Mapping[str, Collection[str]] | None
) -> Mapping[str, tuple[str, ...]] | None:
    wanted: dict[str, Collection[str]] = dict(attributes or {})
    if event_types is not None:
        given: object = event_types
        is_collection = isinstance(given, Collection) and not isinstance(given, type | str)
        if not is_collection or not all(isinstance(each, type) for each in event_types):
            why = f"event_types: {event_types!r} is not a collection of classes"
            raise InvalidInput(why, field="event_types", remedy="Give the classes of the events in a list.")
        wanted["EventType"] = [registry.register(each) for each in event_types]
    return check_filter(wanted if wanted or attributes is not None else None)


def _wanted(filter: Mapping[str, tuple[str, ...]], delivery: Delivery, envelope: Envelope) -> bool:
    # If the attributes disagree with the body, the body decides.
    return lets_through(filter, {**delivery.attributes, **attributes_of(envelope)})
