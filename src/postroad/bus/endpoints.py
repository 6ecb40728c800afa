"""The two ends of a bus: where it sends, and the queue that it receives from."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from postroad.blobs import Blobs
from postroad.bus.config import BusConfig
from postroad.bus.groups import EVENT_TYPE, Names, add_types, ensure, filter_of, made
from postroad.clock import Clock
from postroad.errors import ConfigurationError, NotPermitted, NotSupported, PostroadError
from postroad.ports import Store
from postroad.queues import MAX_RETENTION, OutgoingMessage, Queue, QueueSpec, SendResult
from postroad.receiving import Chore
from postroad.topics import OverflowingTopic, Topic

Send = Callable[[Sequence[OutgoingMessage]], list[SendResult]]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Inlet:
    """The queue that a bus receives from, and what the bus may do with it; by default it only receives."""

    queue: Callable[[], Queue]
    """Returns the queue as it is now, after `open`."""
    open: Callable[[], None] = lambda: None
    """Subscribes the queue; called once."""
    admit: Callable[[Collection[str] | None], None] = lambda types: None
    """Lets the queue receive events of these types, or of all."""
    is_shared: Callable[[str, bool], bool] = lambda event_type, is_known: False
    """Called as `is_shared(event_type, is_known)`: returns whether other members of the group handle a type."""
    allow: Callable[..., None] = lambda attempts, *, starts: None
    """Called as `allow(attempts, starts=…)`: lets the queue deliver a message so many times before it moves it to the
    dead letters itself. If the receiver starts and the bus must not change the limit, it raises ConfigurationError."""
    reopen: Callable[[Queue], bool] = lambda lost: False
    """Replaces a queue that was removed; returns False if the bus does not own it."""
    close: Callable[[], None] = lambda: None
    """Removes a queue that belongs to this process only."""
    chores: Sequence[Chore] = ()
    """Done by the receiver's housekeeping thread."""


def given_queue(queue: Queue, topic: Topic | None = None) -> Inlet:
    """Return the inlet of a queue that exists and belongs to others; it is subscribed to the topic if there is one."""

    def subscribe() -> None:
        if topic is not None:
            # A process that may not subscribe the queue relies on one that may.
            with suppress(NotPermitted):
                topic.subscribe(queue)

    def allow(attempts: int, *, starts: bool) -> None:
        if starts:
            refuse_more_attempts(queue, attempts)

    return Inlet(queue=lambda: queue, open=subscribe, allow=allow)


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
# Where a question about the filter is a request, and a changed filter takes minutes to apply.
_LOOK_AGAIN_SECONDS = 60.0


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
        self._found: QueueFilter = None
        self._found_at = -math.inf
        queue = partial(getattr, self, "source")
        self.inlet = Inlet(queue=queue, admit=self._admit, is_shared=self._is_shared, allow=self._allow)

    def _admit(self, types: Collection[str] | None) -> None:
        """Let the group receive these types, beside those of its other members."""
        if self._grows:
            with suppress(NotPermitted):
                add_types(self._store, self._topic, self.source, types)

    def _is_shared(self, event_type: str, is_known: bool) -> bool:
        """Return whether the group asked for this type: then another member handles it, as during a rolling deploy.

        A group that asked for all types asked for those that this process knows.
        """
        now = self._store.clock.monotonic()
        is_fresh = not self._topic.traits.filters_at_once and now - self._found_at <= _LOOK_AGAIN_SECONDS
        was_asked_for = event_type in (self._found or {}).get(EVENT_TYPE, ())
        # An unknown type that nobody asked for is rejected at once, so an old "no" does not do.
        if not (is_fresh and (is_known or was_asked_for)):
            found: QueueFilter = None
            # A known type that nobody here handles is only released, which must not fail.
            with suppress(PostroadError if is_known else NotPermitted):
                found = filter_of(self._topic, self.source.name)
            self._found, self._found_at = found, now
        found = self._found
        return event_type in (found or {}).get(EVENT_TYPE, ()) or (is_known and found == {})

    def _allow(self, attempts: int, *, starts: bool) -> None:
        """Raise the limit of a queue that this bus has made; that of another stays as its maker wants it."""
        if self._is_mine:
            self.source = _allowing(self._store, self.source, self._names, attempts)
        elif starts:
            # Its limit may have been raised since this bus was made.
            self.source = self._store.queue(self.source.name)
            how = f"postroad bus group set {self._names.topic} {self._group} --max-receives {attempts}"
            refuse_more_attempts(self.source, attempts, how)


@dataclass(slots=True, eq=False)
class OwnQueue:
    """The queue of one process, renewed while the process lives and removed when it closes or is gone."""

    store: Store
    topic: Topic
    names: Names
    config: BusConfig
    filter: QueueFilter
    orphan_after: float
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _made: tuple[Queue, QueueSpec] | None = field(init=False, default=None)
    _renewed_at: float = field(init=False, default=0.0)

    @property
    def inlet(self) -> Inlet:
        return Inlet(
            queue=self._queue, open=self._open, allow=self._allow, reopen=self._reopen, close=self._close, chores=[self]
        )

    def _queue(self) -> Queue:
        if self._made is None:
            raise ConfigurationError("the bus has no queue yet", remedy="Start the receiver first.")
        return self._made[0]

    def _open(self) -> None:
        with self._lock:
            self._make()

    def _allow(self, attempts: int, *, starts: bool) -> None:
        with self._lock:
            if self._made is not None:
                queue, spec = self._made
                queue = _allowing(self.store, queue, self.names, attempts)
                self._made = queue, replace(spec, max_receives=self.store.queue_spec(spec.name).max_receives)

    def _reopen(self, lost: Queue) -> bool:
        with self._lock:
            # It was closed meanwhile, or another receiver of this bus was faster.
            if self._made is None or self._made[0] is not lost:
                return False
            # Under a new name: SQS refuses the old one for a minute.
            self._make()
        return True

    def _close(self) -> None:
        with self._lock:
            mine, self._made = self._made, None
        if mine is not None:
            self._remove(mine[0])

    def due(self) -> float | None:
        return None if self._made is None else self._renewed_at + self.orphan_after / 2

    def run(self) -> None:
        """Renew the queue. If it is gone already, the next receive notices that."""
        with self._lock:
            mine = self._made
            self._renewed_at = self.store.clock.monotonic()
        if mine is not None:
            with suppress(PostroadError):
                self._renew(mine[1])

    def _renew(self, spec: QueueSpec) -> None:
        """Show the store that the owner lives; where it does not look itself, remove queues whose owners are gone."""
        if spec.auto_delete_after is not None:
            self.store.update_queue(spec)
        elif (tags := self.store.queue_tags()) is not None:
            tags.renew(spec.name, seconds=self.orphan_after)
            with suppress(PostroadError):
                for name in tags.abandoned(self.names.own_prefix, seconds=self.orphan_after):
                    self._remove(self.store.queue(name))

    def _make(self) -> None:
        name, dead = self.names.own(uuid.uuid4().hex[:12]), self.names.dead(None)
        ensure(self.store, dead_spec(dead, self.names))
        spec, queue = self._created(_spec(name, dead, self.names, self.config))
        try:
            if spec.auto_delete_after is None:
                self._renew(spec)
            self.topic.subscribe(queue, filter=self.filter)
            self._made = queue, spec
        except BaseException:
            # After an error or an interruption the queue would stay behind, because nothing knows it yet.
            self._remove(queue)
            raise
        self._renewed_at = self.store.clock.monotonic()

    def _created(self, spec: QueueSpec) -> tuple[QueueSpec, Queue]:
        """Create the queue; the store removes it when its owner is gone, if it can."""
        owned = replace(spec, auto_delete_after=self.orphan_after)
        try:
            return owned, self.store.create_queue(owned)
        except NotSupported:
            return spec, self.store.create_queue(spec)

    def _remove(self, queue: Queue) -> None:
        with suppress(PostroadError):
            self.topic.unsubscribe(queue)
        with suppress(PostroadError):
            self.store.delete_queue(queue.name)


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
