"""The two ends of a bus: where it sends, and the queue that it receives from."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from postroad.blobs import Blobs
from postroad.bus.config import BusConfig
from postroad.bus.groups import Names, add_types, ensure, made
from postroad.bus.sender import Send
from postroad.clock import Clock
from postroad.errors import ConfigurationError, NotPermitted, NotSupported, PostroadError
from postroad.ports import QueueTags, Store
from postroad.queues import MAX_RETENTION, Queue, QueueSpec
from postroad.topics import OverflowingTopic, Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """Where a bus sends."""

    name: str
    """The name of the bus in log lines and metrics."""
    send: Send
    fifo: bool = False
    limit: int | None = None
    """The largest message in bytes; None if larger ones are sent by reference."""
    needs_dedup_id: bool = False
    """Whether the transport refuses a FIFO message without a dedup id."""
    longest: float | None = None
    """The seconds within which the transport surely answers; None if that is unknown, 0 if it sends at once."""
    close: Callable[[], None] = lambda: None


def topic_outlet(topic: Topic, blobs: Blobs | None, config: BusConfig, clock: Clock, **more: Any) -> Outlet:
    """Return the outlet to a topic, with `more` of its fields; with blobs it sends large bodies by reference."""
    limit = limit_of(config, blobs, topic.traits.max_message_bytes)
    if blobs is not None and limit is None:
        topic = OverflowingTopic(topic, blobs, clock=clock, limit=config.max_message_bytes)
    return Outlet(name=topic.name, send=topic.publish, fifo=topic.traits.fifo, limit=limit, **more)


def limit_of(config: BusConfig, blobs: Blobs | None, transport: int) -> int | None:
    """Return the size above which a message is refused at once; None if it is sent by reference instead."""
    if blobs is not None and config.overflow == "blobs":
        return None
    return min(config.max_message_bytes or transport, transport)


class Inlet(Protocol):
    """The queue that a bus receives from."""

    @property
    def source(self) -> Queue:
        """The queue as it is now, after `open`."""
        ...

    def open(self) -> None:
        """Subscribe the queue; called once."""
        ...

    def admit(self, types: Collection[str] | None) -> None:
        """Receive events of these types, or of all; do nothing if the bus does not own the filter."""
        ...

    def allow(self, attempts: int, *, starts: bool) -> None:
        """Let the queue deliver a message so many times before it moves it to the dead letters itself.

        Raises:
            ConfigurationError: `starts`, and the queue has a lower limit, which the bus must not change.
        """
        ...

    def reopen(self, lost: Queue) -> bool:
        """Replace a queue that was removed; return False if the bus does not own it."""
        ...

    def close(self) -> None:
        """Remove a queue that belongs to this process only."""
        ...


class GivenQueue:
    """A queue that exists, subscribed to a topic if there is one."""

    def __init__(self, queue: Queue, topic: Topic | None = None) -> None:
        self.source = queue
        self._topic = topic

    def open(self) -> None:
        if self._topic is not None:
            # A process that may not subscribe the queue relies on one that may.
            with suppress(NotPermitted):
                self._topic.subscribe(self.source)

    def admit(self, types: Collection[str] | None) -> None:
        """The owner of the queue decides what it receives."""

    def allow(self, attempts: int, *, starts: bool) -> None:
        if starts:
            refuse_more_attempts(self.source, attempts)

    def reopen(self, lost: Queue) -> bool:
        return False

    def close(self) -> None:
        """The queue stays as it is."""


def refuse_more_attempts(queue: Queue, attempts: int, how: str = "") -> None:
    """Raise ConfigurationError if the queue moves messages to the dead letters after fewer receives.

    `how` is the command that raises its limit, if there is one.
    """
    most = queue.traits.max_receives
    if most is not None and most < attempts:
        raise ConfigurationError(
            f"max_attempts: {attempts} is more than max_receives of queue {queue.name!r}, which is {most}",
            field="max_attempts",
            remedy=f"Give a smaller number, or let the queue allow {attempts} receives{how and ': '}{how}.",
        )


QueueFilter = Mapping[str, tuple[str, ...]] | None

# In a FIFO queue the messages behind a failing one are received along with it, so their counts are higher.
_FIFO_LENIENCE = 5


class GroupQueue:
    """The lasting queue of a group, made together with the bus."""

    def __init__(
        self,
        store: Store,
        topic: Topic,
        names: Names,
        config: BusConfig,
        filter: QueueFilter,
        group: str,
        attempts: int = 1,
    ) -> None:
        name, dead = names.group(group), names.dead(group)
        ensure(store, dead_spec(dead, names, name))
        self.source, self._is_mine = made(store, _spec(name, dead, names, config, attempts))
        self._store, self._topic, self._names, self._group = store, topic, names, group
        # If a changed filter takes minutes to apply, events that arrive meanwhile are lost: there it is not changed.
        self._grows = filter is None and topic.traits.filters_at_once
        # A process that may not subscribe the queue relies on one that may.
        with suppress(NotPermitted):
            topic.subscribe(self.source, filter=filter, keep_filter=filter is None)

    def open(self) -> None:
        """The queue is subscribed since the bus was made."""

    def admit(self, types: Collection[str] | None) -> None:
        """Let the group receive these types, beside those of its other members."""
        if self._grows:
            with suppress(NotPermitted):
                add_types(self._store, self._topic, self.source, types)

    def allow(self, attempts: int, *, starts: bool) -> None:
        """Raise the limit of a queue that this bus has made; that of another stays as its maker wants it."""
        if self._is_mine:
            self.source = _allowing(self._store, self.source, self._names, attempts)
        elif starts:
            # Its limit may have been raised since this bus was made.
            self.source = self._store.queue(self.source.name)
            how = f"postroad bus group set {self._names.topic} {self._group} --max-receives {attempts}"
            refuse_more_attempts(self.source, attempts, how)

    def reopen(self, lost: Queue) -> bool:
        return False

    def close(self) -> None:
        """The group keeps its queue."""


class OwnQueue:
    """The queue of one process, renewed while the process lives and removed when it closes or is gone."""

    def __init__(
        self,
        store: Store,
        topic: Topic,
        names: Names,
        config: BusConfig,
        filter: QueueFilter,
        orphan_after: float,
        tags: QueueTags | None,
    ) -> None:
        self._store = store
        self._topic = topic
        self._names = names
        self._config = config
        self._filter = filter
        self._orphan_after = orphan_after
        self._tags = tags
        self._lock = threading.Lock()
        self._queue: Queue | None = None
        self._spec: QueueSpec | None = None
        self._renewed_at = 0.0

    @property
    def source(self) -> Queue:
        if self._queue is None:
            raise ConfigurationError("the bus has no queue yet", remedy="Start the receiver first.")
        return self._queue

    def open(self) -> None:
        with self._lock:
            self._make()

    def admit(self, types: Collection[str] | None) -> None:
        """The queue of one process keeps the filter that it was made with."""

    def allow(self, attempts: int, *, starts: bool) -> None:
        with self._lock:
            if self._queue is not None and self._spec is not None:
                self._queue = _allowing(self._store, self._queue, self._names, attempts)
                self._spec = replace(self._spec, max_receives=self._store.queue_spec(self._spec.name).max_receives)

    def reopen(self, lost: Queue) -> bool:
        with self._lock:
            # It was closed meanwhile, or another receiver of this bus was faster.
            if self._queue is not lost:
                return False
            # Under a new name: SQS refuses the old one for a minute.
            self._make()
        return True

    def close(self) -> None:
        with self._lock:
            queue, self._queue, self._spec = self._queue, None, None
        if queue is not None:
            self._remove(queue)

    def due(self) -> float | None:
        return None if self._queue is None else self._renewed_at + self._orphan_after / 2

    def run(self) -> None:
        """Renew the queue. If it is gone already, the next receive notices that."""
        with self._lock:
            spec = self._spec
            self._renewed_at = self._store.clock.monotonic()
        if spec is None:
            return
        with suppress(PostroadError):
            if spec.auto_delete_after is not None:
                self._store.update_queue(spec)
            elif self._tags is not None:
                self._tags.renew(spec.name, seconds=self._orphan_after)
                self._sweep(self._tags)

    def _make(self) -> None:
        name, dead = self._names.own(uuid.uuid4().hex[:12]), self._names.dead(None)
        ensure(self._store, dead_spec(dead, self._names))
        spec, queue = self._created(_spec(name, dead, self._names, self._config))
        try:
            if spec.auto_delete_after is None and self._tags is not None:
                self._tags.renew(name, seconds=self._orphan_after)
                self._sweep(self._tags)
            self._topic.subscribe(queue, filter=self._filter)
            self._queue, self._spec = queue, spec
        except BaseException:
            # After an error or an interruption the queue would stay behind, because nothing knows it yet.
            self._remove(queue)
            raise
        self._renewed_at = self._store.clock.monotonic()

    def _created(self, spec: QueueSpec) -> tuple[QueueSpec, Queue]:
        """Create the queue; the store removes it when its owner is gone, if it can."""
        owned = replace(spec, auto_delete_after=self._orphan_after)
        try:
            return owned, self._store.create_queue(owned)
        except NotSupported:
            return spec, self._store.create_queue(spec)

    def _sweep(self, tags: QueueTags) -> None:
        with suppress(PostroadError):
            for name in tags.abandoned(self._names.own_prefix, seconds=self._orphan_after):
                self._remove(self._store.queue(name))

    def _remove(self, queue: Queue) -> None:
        with suppress(PostroadError):
            self._topic.unsubscribe(queue)
        with suppress(PostroadError):
            self._store.delete_queue(queue.name)


def _spec(name: str, dead: str, names: Names, config: BusConfig, attempts: int = 1) -> QueueSpec:
    receives = _receives(names, max(config.max_receives, attempts))
    visibility = config.visibility_timeout_seconds
    return QueueSpec(name, fifo=names.fifo, visibility=visibility, dead_letter=dead, max_receives=receives)


def _receives(names: Names, attempts: int) -> int:
    return min(1_000, attempts * (_FIFO_LENIENCE if names.fifo else 1))


def _allowing(store: Store, queue: Queue, names: Names, attempts: int) -> Queue:
    """Return the queue after it was changed to allow so many attempts at a message."""
    receives = _receives(names, attempts)
    if (queue.traits.max_receives or receives) >= receives:
        return queue
    try:
        # One transaction reads and writes, if the store has any, so that members who start together lower nothing.
        with ExitStack() as stack:
            with suppress(NotSupported):
                stack.enter_context(store.transaction())
            spec = store.queue_spec(queue.name)
            if spec.max_receives < receives:
                store.update_queue(replace(spec, max_receives=receives))
    except NotPermitted:
        refuse_more_attempts(store.queue(queue.name), attempts)
    return store.queue(queue.name)


def dead_spec(name: str, names: Names, source: str | None = None) -> QueueSpec:
    """Return the queue for the dead letters of one queue, or of all own queues, whose names are not known before."""
    allowed: Literal["all"] | tuple[str, ...] = "all" if source is None else (source,)
    return QueueSpec(name, fifo=names.fifo, retention=MAX_RETENTION, redrive_allow=allowed)
