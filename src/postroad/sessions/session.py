"""The session: typed slices of state that events on a bus change, the same in every process that hears them."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self, TypeVar
from uuid import UUID, uuid4

from postroad.bus import EventBus, InProcessEventBus, PublishResult
from postroad.events import Codec
from postroad.sessions.slices import (
    Reducer,
    SliceAccessor,
    Values,
    checked_slice_class,
    is_dataclass_type,
    slice_of_step,
)
from postroad.sessions.snapshots import Snapshot
from postroad.sessions.state import Ledger, Slices, State
from postroad.sessions.telemetry import TELEMETRY, Subscription, utc_now
from postroad.sessions.vocabulary import event_id_of, known, registry_of, session_id_of

T = TypeVar("T")
Change = tuple[Subscription, Values, Values]
"""An observer with the old and the new values that it has not been told of yet."""
Scope = Literal["all", "own"]


class Session:
    """State that follows events. Each reducer applies an event once; reductions never interleave."""

    def __init__(
        self,
        *,
        bus: EventBus | None = None,
        session_id: UUID | None = None,
        parent: Session | None = None,
        tags: Mapping[str, str] | None = None,
        created_at: datetime | None = None,
        scope: Scope = "all",
    ) -> None:
        self.session_id = _checked_id(session_id)
        self.created_at = _checked_moment(created_at)
        self.tags: Mapping[str, str] = MappingProxyType(_checked_tags(tags))
        self.scope: Scope = _checked_scope(scope)
        self.parent = _checked_parent(parent)
        self.event_bus: EventBus = _checked_bus(bus)
        self._state = State(registry_of(self.event_bus))
        self._codec = Codec(self._state.registry)
        self._lock = threading.RLock()
        self._reducing = False
        self._closed = False
        self._subscribed: set[type] = set()
        self._observers: list[Subscription] = []
        self._untold: deque[Change] = deque()
        self._telling = False
        self._children: list[Session] = []
        if parent is not None:
            parent._children.append(self)
        self._hear(*TELEMETRY)

    @property
    def children(self) -> tuple[Session, ...]:
        """The sessions that have this one as parent and are not closed."""
        return tuple(self._children)

    def __getitem__(self, slice_type: type[T]) -> SliceAccessor[T]:
        if not is_dataclass_type(slice_type):
            raise TypeError(f"{slice_type!r} is not a dataclass; slices hold dataclasses")
        return SliceAccessor(self, slice_type)

    def install(self, cls: type[T], *, initial: Callable[[], T] | None = None) -> None:
        """Let the class's `@reducer` methods follow their events; `initial` makes the first state when it is needed."""
        checked_slice_class(cls)
        if initial is not None and not callable(initial):
            raise TypeError(f"initial: {initial!r} cannot be called; pass what makes the first state")
        with self._lock:
            events = self._state.install(cls, initial)
        self._hear(*events)

    def broadcast(self, event: object) -> PublishResult:
        """Publish the event once; this session reduces it once, others when it reaches them."""
        _refuse_what_is_no_dataclass(event)
        if self._closed:
            raise RuntimeError("the session is closed")
        self._hear(type(event))
        return self.event_bus.publish(event)

    def reduce(self, event: object) -> None:
        """Apply the event here only. What a reducer raises is raised again after all others have run."""
        _refuse_what_is_no_dataclass(event)
        if self.scope == "own" and session_id_of(event) not in (None, str(self.session_id)):
            return
        with self._changing() as state:
            failures = state.apply(event, event_id_of(event))
        if len(failures) > 1:
            raise ExceptionGroup(f"reducers failed on {type(event).__qualname__}", failures)
        if failures:
            raise failures[0]

    def observe(self, slice_type: type[T], fn: Callable[[tuple[T, ...], tuple[T, ...]], object]) -> Subscription:
        """Call `fn(old, new)` after each change of the slice, in the order of the changes.

        The call is made on the thread that changed the slice, or on another one that is still calling observers
        because of an earlier change.
        """
        if not is_dataclass_type(slice_type):
            raise TypeError(f"slice_type: {slice_type!r} is not a dataclass; slices hold dataclasses")
        if not callable(fn):
            raise TypeError(f"fn: {fn!r} cannot be called; pass fn(old, new)")
        subscription = Subscription(slice_type, fn, self._leave)
        with self._lock:
            self._observers.append(subscription)
        return subscription

    def snapshot(self, *, include_all: bool = False) -> Snapshot:
        """The slices as they are now, without those of telemetry unless `include_all`, and the steps taken."""
        with self._lock:
            slices = {
                known(cls, self._state.registry): values
                for cls, values in self._state.slices.all().items()
                if include_all or cls not in TELEMETRY
            }
            left_out = set() if include_all else {known(cls, self._state.registry) for cls in TELEMETRY}
            applied = self._state.ledger.entries(lambda step: slice_of_step(step) not in left_out)
        return Snapshot(self.session_id, utc_now(), self.tags, slices, applied, self._codec)

    def restore(self, snapshot: Snapshot | str) -> None:
        """Hold exactly the slices of the snapshot; all others are emptied. An error leaves everything as it was."""
        found = snapshot if isinstance(snapshot, Snapshot) else Snapshot.from_json(snapshot)
        slices = found.read(self._codec)
        with self._changing() as state:
            state.slices, state.ledger = Slices(slices), Ledger(found.applied)

    def reset(self) -> None:
        """Empty every slice and forget which events were applied; reducers and observers stay."""
        with self._changing() as state:
            state.slices, state.ledger = Slices(), Ledger()

    def clone(self, *, bus: EventBus) -> Session:
        """A session on another bus with the same id, tags, parent, reducers and state."""
        made = Session(
            bus=bus,
            session_id=self.session_id,
            parent=self.parent,
            tags=self.tags,
            created_at=self.created_at,
            scope=self.scope,
        )
        with self._lock:
            made._state.slices = Slices(self._state.slices.all())
            made._state.ledger = Ledger(self._state.ledger.entries())
            made._state.reductions = {event: list(found) for event, found in self._state.reductions.items()}
            heard = tuple(self._subscribed)
        made._hear(*heard)
        return made

    def close(self) -> None:
        """Hear the bus no more; what the session holds can still be read. Closing twice changes nothing."""
        with self._lock:
            self._closed = True
            heard, self._subscribed = self._subscribed, set()
        for event_type in heard:
            self.event_bus.unsubscribe(event_type, self.reduce)
        if self.parent is not None and self in self.parent._children:
            self.parent._children.remove(self)

    def values_of(self, slice_type: type) -> Values:
        """The values of a slice."""
        settled = self._state.slices.settled(slice_type)
        if settled is not None:
            return settled
        with self._lock:
            return self._state.slices.get(slice_type)

    def change_slice(self, slice_type: type, change: Callable[[Values], Values]) -> None:
        """Put `change(values)` in the place of a slice's values."""
        known(slice_type, self._state.registry)
        with self._changing() as state:
            state.slices.put(slice_type, change(state.slices.get(slice_type)))

    def register_reducer(self, event_type: type, slice_type: type, reduce: Reducer[Any]) -> None:
        """Take a reducer given as a function."""
        if not isinstance(event_type, type):
            raise TypeError(f"{event_type!r} is not a class")
        if not callable(reduce):
            raise TypeError(f"{reduce!r} cannot be called")
        with self._lock:
            self._state.register(event_type, slice_type, reduce)
        self._hear(event_type)

    def _hear(self, *event_types: type) -> None:
        for event_type in event_types:
            with self._lock:
                if event_type in self._subscribed or self._closed:
                    continue
                self._subscribed.add(event_type)
            self.event_bus.subscribe(event_type, self.reduce)

    @contextmanager
    def _changing(self) -> Iterator[State]:
        """Change the state as one step; observers are told afterwards, when the lock is free again."""
        with self._lock:
            if self._reducing:
                raise RuntimeError("a reducer only computes the next state; change the session from an observer")
            observers = list(self._observers)
            before = self._observed(observers)
            self._reducing = True
            try:
                yield self._state
            finally:
                self._reducing = False
            after = self._observed(observers)
            for observer, old, new in zip(observers, before, after, strict=True):
                if old is not new and (old or new):
                    self._untold.append((observer, old, new))
        self._tell()

    def _tell(self) -> None:
        """Call the observers, one change after another; a thread that finds another one at it leaves the rest to it."""
        with self._lock:
            if self._telling:
                return
            self._telling = True
        try:
            while (change := self._next_change()) is not None:
                observer, old, new = change
                observer.tell(old, new)
        except BaseException:
            # An interruption: the next change brings the rest along.
            self._telling = False
            raise

    def _next_change(self) -> Change | None:
        """Return the oldest change that a present observer was not told of; with None the telling is over."""
        with self._lock:
            while self._untold:
                change = self._untold.popleft()
                if change[0] in self._observers:
                    return change
            self._telling = False
            return None

    def _observed(self, observers: list[Subscription]) -> list[Values]:
        return [self._state.slices.get(observer.slice_type) for observer in observers]

    def _leave(self, subscription: Subscription) -> None:
        with self._lock:
            self._observers = [other for other in self._observers if other is not subscription]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _refuse_what_is_no_dataclass(event: object) -> None:
    if isinstance(event, type) or not dataclasses.is_dataclass(event):
        raise TypeError(f"event: {event!r} is not an instance of a dataclass")


def _checked_id(session_id: UUID | None) -> UUID:
    if session_id is None:
        return uuid4()
    if not isinstance(session_id, UUID):
        raise TypeError(f"session_id: {session_id!r} is not a UUID")
    return session_id


def _checked_moment(moment: datetime | None) -> datetime:
    if moment is not None and not isinstance(moment, datetime):
        raise TypeError(f"created_at: {moment!r} is not a datetime")
    if moment is not None and moment.utcoffset() is None:
        raise ValueError(f"created_at: {moment!r} has no time zone; use datetime.now(UTC)")
    return moment or utc_now()


def _checked_tags(tags: Mapping[Any, Any] | None) -> dict[str, str]:
    if tags is not None and not isinstance(tags, Mapping):
        raise TypeError(f"tags: {tags!r} is not a mapping of text to text")
    for name, value in (tags or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"tags: {name!r}: {value!r} is not text")
    return dict(tags or {})


def _checked_parent(parent: Session | None) -> Session | None:
    if parent is not None and not isinstance(parent, Session):
        raise TypeError(f"parent: {parent!r} is not a session")
    return parent


def _checked_bus(bus: EventBus | None) -> EventBus:
    if bus is None:
        return InProcessEventBus()
    if not isinstance(bus, EventBus):
        raise TypeError(f"bus: {bus!r} is not a bus; it needs subscribe, unsubscribe and publish")
    return bus


def _checked_scope(scope: Scope) -> Scope:
    if scope not in ("all", "own"):
        raise ValueError(f"scope: {scope!r} is neither 'all' nor 'own'")
    return scope
