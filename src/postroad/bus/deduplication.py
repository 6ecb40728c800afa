"""Recognising an event that comes again."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Hashable
from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta

from postroad.arguments import check
from postroad.bus.local import EventBus, local_part
from postroad.bus.recent import RecentKeys
from postroad.bus.result import EventHandler, PublishResult
from postroad.bus.subscribing import check_handler
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, DuplicateInProgress
from postroad.events import EventRegistry
from postroad.receiving import context_of

_Window = Annotated[float, Meta(ge=0, description="a number of seconds of 0 or more")]
_Entries = Annotated[int, Meta(ge=1, description="a whole number of 1 or more")]


class DeduplicationCache:
    """Remembers keys for a while, the oldest forgotten first. Threads may share it."""

    def __init__(self, window_seconds: float = 300.0, max_entries: int = 100_000, clock: Clock | None = None) -> None:
        check(window_seconds, _Window, "window_seconds", ConfigurationError)
        check(max_entries, _Entries, "max_entries", ConfigurationError)
        self._window = window_seconds
        self._monotonic = (clock or SYSTEM_CLOCK).monotonic
        self._lock = threading.Lock()
        self._seen = RecentKeys(max_entries)
        self._running: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._seen)

    def seen(self, key: Hashable) -> bool:
        """Whether the key was marked within the window."""
        with self._lock:
            return self._is_seen(key)

    def mark_seen(self, key: Hashable) -> None:
        """Remember the key from now on."""
        with self._lock:
            self._running.discard(key)
            now = self._monotonic()
            self._seen.expire(now)
            self._seen.add(key, now + self._window)

    def begin(self, key: Hashable) -> bool:
        """Claim the key; False when it is seen or somebody else has claimed it."""
        with self._lock:
            if key in self._running or self._is_seen(key):
                return False
            self._running.add(key)
            return True

    def forget(self, key: Hashable) -> None:
        """Give up the claim and the memory of the key."""
        with self._lock:
            self._running.discard(key)
            self._seen.discard(key)

    def _is_seen(self, key: Hashable) -> bool:
        self._seen.expire(self._monotonic())
        return key in self._seen


class DeduplicatingEventBus:
    """A bus around a bus: each handler sees an event id once, until it fails."""

    def __init__(self, *, inner: EventBus, cache: DeduplicationCache) -> None:
        self._inner = inner
        self._cache = cache
        self._lock = threading.Lock()
        self._wrapped: list[tuple[type[object], EventHandler, EventHandler]] = []

    @property
    def local_bus(self) -> EventBus:
        """The part of the inner bus that calls handlers here and sends nothing."""
        return local_part(self._inner)

    @property
    def registry(self) -> EventRegistry | None:
        """The types that the inner bus reads and writes."""
        return getattr(self._inner, "registry", None)

    @property
    def is_receiving_here(self) -> bool:
        """Whether the caller is a handler that the inner bus's receiver waits for."""
        return getattr(self._inner, "is_receiving_here", False)

    def subscribe(self, event_type: type[object], handler: EventHandler) -> None:
        """Call the handler once for each event id of this type."""
        check_handler(handler)
        wrapper = _Once(handler, self._cache)
        self._inner.subscribe(event_type, wrapper)
        with self._lock:
            self._wrapped.append((event_type, handler, wrapper))

    def unsubscribe(self, event_type: type[object], handler: EventHandler) -> bool:
        """Remove one subscription of the handler, given as it was subscribed."""
        with self._lock:
            found = next((each for each in self._wrapped if each[0] is event_type and each[1] == handler), None)
            if found is None:
                return False
            self._wrapped.remove(found)
        return self._inner.unsubscribe(event_type, found[2])

    def publish(self, event: object) -> PublishResult:
        """Publish on the inner bus."""
        return self._inner.publish(event)


class _Once:
    """Runs a handler unless it has handled the event's id before."""

    def __init__(self, handler: EventHandler, cache: DeduplicationCache) -> None:
        self._handler = handler
        self._cache = cache
        self._name: Hashable = handler if _is_hashable(handler) else id(handler)

    def __repr__(self) -> str:
        return repr(self._handler)

    def __call__(self, event: object) -> Any:
        event_id = _id_of(event)
        if event_id is None:
            return self._handler(event)
        key = (self._name, event_id)
        if not self._cache.begin(key):
            return self._again(key)
        try:
            found = self._handler(event)
        except BaseException:
            self._cache.forget(key)
            raise
        if inspect.isawaitable(found):
            return self._finish(found, key)
        self._cache.mark_seen(key)
        return found

    async def _finish(self, found: Awaitable[Any], key: Hashable) -> Any:
        try:
            result = await found
        except BaseException:
            self._cache.forget(key)
            raise
        self._cache.mark_seen(key)
        return result

    def _again(self, key: tuple[Hashable, UUID | str]) -> None:
        if not self._cache.seen(key):
            raise DuplicateInProgress(f"event {key[1]} is being handled by {self._handler!r}")


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _id_of(event: object) -> UUID | str | None:
    context = context_of(event)
    if context is not None:
        # Whoever replays an archive wants its events handled again.
        return None if context.replayed else context.envelope.event_id
    own = getattr(event, "event_id", None)
    return own if isinstance(own, UUID | str) else None
