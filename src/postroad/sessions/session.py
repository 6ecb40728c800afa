"""The session: typed slices of state that events on a bus change, the same in every process that receives them."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar
from uuid import UUID, uuid4

from postroad.bus import EventBus, InProcessEventBus, PublishResult
from postroad.events import Codec
from postroad.sessions.slices import Reducer, SliceAccessor, Values, checked_slice_class, is_dataclass_type
from postroad.sessions.state import Ledger, Slices, Snapshot, State, Subscription
from postroad.sessions.vocabulary import TELEMETRY, event_id_of, known, registry_of, session_id_of, utc_now

T = TypeVar("T")
Change = tuple[Subscription, Values, Values]
"""An observer that has not been called yet, with the old and the new values."""
Scope = Literal["all", "own"]


class Session:
    """State that follows events. Each reducer applies an event once, and one at a time.

    Args:
        bus: The bus whose events change it; by default one inside this process.
        session_id: Its id; by default a new one.
        parent: The session that it belongs to.
        tags: Names and values that describe it; snapshots carry them.
        created_at: When it began; by default now.
        scope: `all` applies every event of the bus, `own` only events that name this session or none.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `scope` is neither of the two, or `created_at` has no time zone.

    Example:
        session = Session(bus=backend.bus("orders"))
        session.install(Total, initial=Total)
        session.broadcast(OrderPlaced("A-1", amount=25))
        print(session[Total].latest())
    """

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
        _require(session_id is None or isinstance(session_id, UUID), "session_id: {!r} is not a UUID", session_id)
        if created_at is not None:
            _require(isinstance(created_at, datetime), "created_at: {!r} is not a datetime", created_at)
            if created_at.utcoffset() is None:
                raise ValueError(f"created_at: {created_at!r} has no time zone; use datetime.now(UTC)")
        _require(tags is None or isinstance(tags, Mapping), "tags: {!r} is not a mapping of text to text", tags)
        for name, value in (tags or {}).items():
            are_texts = all(isinstance(each, str) for each in (name, value))
            _require(are_texts, "tags: {!r}: {!r} is not text", name, value)
        if scope not in ("all", "own"):
            raise ValueError(f"scope: {scope!r} is neither 'all' nor 'own'")
        _require(parent is None or isinstance(parent, Session), "parent: {!r} is not a session", parent)
        why = "bus: {!r} is not a bus; it needs subscribe, unsubscribe and publish"
        _require(bus is None or isinstance(bus, EventBus), why, bus)
        self.session_id = uuid4() if session_id is None else session_id
        self.created_at = created_at or utc_now()
        self.tags: Mapping[str, str] = MappingProxyType(dict(tags or {}))
        self.scope: Scope = scope
        self.parent = parent
        self.event_bus: EventBus = InProcessEventBus() if bus is None else bus
        self._state = State(registry_of(self.event_bus))
        self._codec = Codec(self._state.registry)
        self._lock = threading.RLock()
        self._reducing = False
        self._closed = False
        self._subscribed: set[type] = set()
        self._observers: list[Subscription] = []
        self._changes: deque[Change] = deque()
        self._notifying = False
        self._children: list[Session] = []
        if parent is not None:
            parent._children.append(self)
        self._follow(*TELEMETRY)

    @property
    def children(self) -> tuple[Session, ...]:
        """The open sessions that have this one as parent."""
        return tuple(self._children)

    def __getitem__(self, slice_type: type[T]) -> SliceAccessor[T]:
        _require(is_dataclass_type(slice_type), "{!r} is not a dataclass; slices hold dataclasses", slice_type)
        return SliceAccessor(self, slice_type)

    def install(self, cls: type[T], *, initial: Callable[[], T] | None = None) -> None:
        """Apply events to a slice with the `@reducer` methods of its class.

        Args:
            cls: A frozen dataclass.
            initial: Makes the first state when it is needed; without it reducers wait until the slice has a value.
        """
        checked_slice_class(cls)
        why = "initial: {!r} cannot be called; pass what makes the first state"
        _require(initial is None or callable(initial), why, initial)
        with self._lock:
            events = self._state.install(cls, initial)
        self._follow(*events)

    def broadcast(self, event: T) -> PublishResult[T]:
        """Publish `event`; this session applies it once, other sessions when they receive it."""
        _check_event(event)
        if self._closed:
            raise RuntimeError("the session is closed")
        self._follow(type(event))
        return self.event_bus.publish(event)

    def reduce(self, event: object) -> None:
        """Apply `event` here only. The error of a reducer is raised after all others have run."""
        _check_event(event)
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

        Args:
            slice_type: The class of the slice.
            fn: The observer.
        """
        why = "slice_type: {!r} is not a dataclass; slices hold dataclasses"
        _require(is_dataclass_type(slice_type), why, slice_type)
        _require(callable(fn), "fn: {!r} cannot be called; pass fn(old, new)", fn)
        subscription = Subscription(slice_type, fn, self._leave)
        with self._lock:
            self._observers.append(subscription)
        return subscription

    def snapshot(self, *, include_all: bool = False) -> Snapshot:
        """Return the slices and the steps taken, without those of telemetry unless `include_all`."""
        with self._lock:
            slices = {
                known(cls, self._state.registry): values
                for cls, values in self._state.slices.all().items()
                if include_all or cls not in TELEMETRY
            }
            left_out = set() if include_all else {known(cls, self._state.registry) for cls in TELEMETRY}
            applied = self._state.ledger.entries(without=left_out)
        return Snapshot(self.session_id, utc_now(), self.tags, slices, applied, self._codec)

    def restore(self, snapshot: Snapshot | str) -> None:
        """Replace all slices by those of `snapshot`. An error leaves everything as it was."""
        found = snapshot if isinstance(snapshot, Snapshot) else Snapshot.from_json(snapshot)
        slices = found.read(self._codec)
        with self._changing() as state:
            state.slices, state.ledger = Slices(slices), Ledger(found.applied)

    def reset(self) -> None:
        """Empty every slice and forget which events were applied; reducers and observers stay."""
        with self._changing() as state:
            state.slices, state.ledger = Slices(), Ledger()

    def clone(self, *, bus: EventBus) -> Session:
        """Return a session on another `bus` with the same id, tags, parent, reducers and state."""
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
        made._follow(*heard)
        return made

    def close(self) -> None:
        """Stop following the bus; the state can still be read. Closing twice changes nothing."""
        with self._lock:
            self._closed = True
            heard, self._subscribed = self._subscribed, set()
            if self.parent is not None and self in self.parent._children:
                self.parent._children.remove(self)
        for event_type in heard:
            self.event_bus.unsubscribe(event_type, self.reduce)

    def values_of(self, slice_type: type) -> Values:
        """Return the values of the slice `slice_type`."""
        settled = self._state.slices.settled(slice_type)
        if settled is not None:
            return settled
        with self._lock:
            return self._state.slices.get(slice_type)

    def change_slice(self, slice_type: type, change: Callable[[Values], Values]) -> None:
        """Replace the values of the slice `slice_type` by what `change` (values) returns."""
        known(slice_type, self._state.registry)
        with self._changing() as state:
            state.slices.put(slice_type, change(state.slices.get(slice_type)))

    def register_reducer(self, event_type: type, slice_type: type, reduce: Reducer[Any]) -> None:
        """Let the function `reduce` change the slice `slice_type` for each event of `event_type`."""
        _require(isinstance(event_type, type), "{!r} is not a class", event_type)
        _require(callable(reduce), "{!r} cannot be called", reduce)
        with self._lock:
            self._state.register(event_type, slice_type, reduce)
        self._follow(event_type)

    def _follow(self, *event_types: type) -> None:
        for event_type in event_types:
            with self._lock:
                if event_type in self._subscribed or self._closed:
                    continue
                self._subscribed.add(event_type)
            self.event_bus.subscribe(event_type, self.reduce)
            if self._closed:
                # `close` may have removed the subscription before it was made.
                self.event_bus.unsubscribe(event_type, self.reduce)

    @contextmanager
    def _changing(self) -> Iterator[State]:
        """Change the state as one step; observers are called afterwards, without the lock."""
        with self._lock:
            if self._reducing:
                raise RuntimeError("a reducer only computes the next state; change the session from an observer")
            observers = list(self._observers)
            before = [self._state.slices.get(observer.slice_type) for observer in observers]
            self._reducing = True
            try:
                yield self._state
            finally:
                self._reducing = False
            for observer, old in zip(observers, before, strict=True):
                new = self._state.slices.get(observer.slice_type)
                if old is not new and (old or new):
                    self._changes.append((observer, old, new))
        self._notify()

    def _notify(self) -> None:
        """Call the observers, one change after another, unless another thread is doing that already."""
        with self._lock:
            if self._notifying:
                return
            self._notifying = True
        try:
            while (change := self._next_change()) is not None:
                observer, old, new = change
                observer.notify(old, new)
        except BaseException:
            # After an interruption the next change calls the rest.
            self._notifying = False
            raise

    def _next_change(self) -> Change | None:
        """Return the oldest change whose observer was not called; None ends the calling."""
        with self._lock:
            while self._changes:
                change = self._changes.popleft()
                if change[0] in self._observers:
                    return change
            self._notifying = False
            return None

    def _leave(self, subscription: Subscription) -> None:
        with self._lock:
            self._observers = [other for other in self._observers if other is not subscription]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _require(ok: bool, text: str, *values: object) -> None:
    if not ok:
        raise TypeError(text.format(*values))


def _check_event(event: object) -> None:
    if isinstance(event, type) or not dataclasses.is_dataclass(event):
        raise TypeError(f"event: {event!r} is not an instance of a dataclass")
