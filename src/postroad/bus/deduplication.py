"""What a bus remembers of events, within limits, so that none is handled twice."""

from __future__ import annotations

import inspect
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta

from postroad.arguments import Count, check
from postroad.bus.config import BusConfig
from postroad.bus.local import E, EventBus, PublishResult, check_subscription, local_part
from postroad.bus.subscriptions import EventHandler, Subscription
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, DuplicateInProgress
from postroad.events import EventRegistry
from postroad.receiving import HANDLER_FAILED, context_of, key_of

_Window = Annotated[float, Meta(ge=0, description="a number of seconds of 0 or more")]


class RecentKeys:
    """A limited number of keys, each until its time; the oldest are forgotten first.

    This is a set and a queue of marks instead of an ordered dict, because a dict grows by the keys that it lost.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: set[Hashable] = set()
        self._line: deque[Hashable] = deque()
        self._times: deque[float] = deque()
        self._void: Counter[Hashable] = Counter()
        """How many marks of a key, its oldest ones, are void because it was forgotten or marked again."""

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Hashable, until: float) -> None:
        """Keep the key until then; times never decrease from one call to the next."""
        self.discard(key)
        self._keys.add(key)
        self._line.append(key)
        self._times.append(until)
        while len(self._keys) > self._most:
            self._drop_first()
        if len(self._line) > 2 * self._most:
            alive = [(each, at) for each, at in zip(self._line, self._times, strict=True) if not self._is_void(each)]
            self._line = deque(each for each, _ in alive)
            self._times = deque(at for _, at in alive)

    def discard(self, key: Hashable) -> None:
        if key in self._keys:
            self._keys.remove(key)
            self._void[key] += 1

    def expire(self, now: float) -> None:
        while self._times and self._times[0] <= now:
            self._drop_first()

    def _drop_first(self) -> None:
        key = self._line.popleft()
        self._times.popleft()
        if not self._is_void(key):
            self._keys.remove(key)

    def _is_void(self, key: Hashable) -> bool:
        """Return whether the oldest mark of the key is void, and forget that mark."""
        left = self._void.get(key)
        if left is None:
            return False
        if left == 1:
            del self._void[key]
        else:
            self._void[key] = left - 1
        return True


class DeduplicationCache:
    """Remembers keys for a while; the oldest are forgotten first. Threads may share it.

    Args:
        window_seconds: How long a key is remembered. Make it longer than an event may be delivered again.
        max_entries: How many keys are remembered at most. Raise it for a bus with more events than that in the window.
        clock: Another clock, for tests.

    Raises:
        ConfigurationError: An argument is out of bounds.
    """

    def __init__(self, window_seconds: float = 300.0, max_entries: int = 100_000, clock: Clock | None = None) -> None:
        check(window_seconds, _Window, "window_seconds", ConfigurationError)
        check(max_entries, Count, "max_entries", ConfigurationError)
        self._window = window_seconds
        self._monotonic = (clock or SYSTEM_CLOCK).monotonic
        self._lock = threading.Lock()
        self._seen = RecentKeys(max_entries)
        self._running: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._seen)

    def seen(self, key: Hashable) -> bool:
        """Return whether `key` was marked within the window."""
        with self._lock:
            return self._is_seen(key)

    def mark_seen(self, key: Hashable) -> None:
        """Remember `key` from now on."""
        with self._lock:
            self._running.discard(key)
            now = self._monotonic()
            self._seen.expire(now)
            self._seen.add(key, now + self._window)

    def begin(self, key: Hashable) -> bool:
        """Claim `key`; return False if it was seen or is claimed already."""
        with self._lock:
            if key in self._running or self._is_seen(key):
                return False
            self._running.add(key)
            return True

    def forget(self, key: Hashable) -> None:
        """Give up the claim and the memory of `key`."""
        with self._lock:
            self._running.discard(key)
            self._seen.discard(key)

    def _is_seen(self, key: Hashable) -> bool:
        self._seen.expire(self._monotonic())
        return key in self._seen


class DeduplicatingEventBus:
    """Wraps a bus so that each handler gets an event id once; after a failure it gets it again.

    Args:
        inner: The bus that publishes and receives.
        cache: What the handlers have seen; buses may share one.

    Example:
        bus = DeduplicatingEventBus(inner=backend.bus("orders", "billing"), cache=DeduplicationCache())
        bus.subscribe(OrderPlaced, charge)
    """

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

    def subscribe(self, event_type: type[E], handler: Callable[[E], Any]) -> None:
        """Call `handler` once for each event id of exactly `event_type`."""
        check_subscription(event_type, handler)
        wrapper = _Once(handler, self._cache)
        self._inner.subscribe(event_type, wrapper)
        with self._lock:
            self._wrapped.append((event_type, handler, wrapper))

    def unsubscribe(self, event_type: type[E], handler: Callable[[E], Any]) -> bool:
        """Remove one subscription of `handler` to `event_type`; return whether there was one."""
        with self._lock:
            found = next((each for each in self._wrapped if each[0] is event_type and each[1] == handler), None)
            if found is None:
                return False
            self._wrapped.remove(found)
        return self._inner.unsubscribe(event_type, found[2])

    def publish(self, event: E) -> PublishResult[E]:
        """Publish `event` on the inner bus."""
        return self._inner.publish(event)


class _Once:
    """Runs a handler unless it has handled the event's id before."""

    def __init__(self, handler: EventHandler, cache: DeduplicationCache) -> None:
        self._handler = handler
        self._cache = cache
        self._name = key_of(handler)

    def __repr__(self) -> str:
        return repr(self._handler)

    def __call__(self, event: object) -> Any:
        event_id = _id_of(event)
        if event_id is None:
            return self._handler(event)
        key = (self._name, event_id)
        if not self._cache.begin(key):
            if self._cache.seen(key):
                return None
            raise DuplicateInProgress(f"event {event_id} is being handled by {self._handler!r}")
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


def _id_of(event: object) -> UUID | str | None:
    context = context_of(event)
    if context is not None:
        # A replay of an archive is meant to handle its events again.
        return None if context.replayed else context.envelope.event_id
    own = getattr(event, "event_id", None)
    return own if isinstance(own, UUID | str) else None


# An own event may come back after the longest retention of a queue.
_ECHO_SECONDS = 1_209_600.0
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Done:
    """A handler that need not run again: without an error it succeeded, else it has given up."""

    handler: EventHandler
    error: str | None = None
    reason: str = HANDLER_FAILED
    """The reason of the dead letter."""
    name: str = ""
    """The handler's name in log lines."""


class Memory:
    """The ids of events that are done, and for those that come again the handlers that need not run again."""

    def __init__(self, config: BusConfig, clock: Clock) -> None:
        self.published = DeduplicationCache(_ECHO_SECONDS, clock=clock)
        self.handled = DeduplicationCache(config.deduplication_window_seconds, clock=clock)
        self._window = config.deduplication_window_seconds
        self._monotonic = clock.monotonic
        self._lock = threading.Lock()
        self._done: dict[UUID, tuple[float, tuple[Done, ...]]] = {}

    def note_done(self, event_id: UUID, done: Sequence[Done]) -> None:
        """Remember which handlers need not run again when the event comes back."""
        with self._lock:
            _, before = self._done.pop(event_id, (0.0, ()))
            self._done[event_id] = (self._monotonic() + self._window, (*before, *done))
            while len(self._done) > _MOST:
                del self._done[next(iter(self._done))]

    def forget(self, event_id: UUID) -> None:
        """Forget the handlers of an event that is done as a whole."""
        with self._lock:
            self._done.pop(event_id, None)

    def forget_given_up(self, event_id: UUID) -> None:
        """Give new attempts to the handlers that gave up on the event: it is a dead letter and may be redriven."""
        with self._lock:
            if event_id in self._done:
                until, done = self._done[event_id]
                self._done[event_id] = until, tuple(each for each in done if each.error is None)

    def remaining(self, event_id: UUID, subscriptions: Sequence[Subscription]) -> tuple[list[Subscription], list[Done]]:
        """Return the handlers that still have to run, and those that gave up."""
        left, given_up = list(subscriptions), []
        with self._lock:
            until, done = self._done.get(event_id, (0.0, ()))
        for each in done if until > self._monotonic() else ():
            found = next((one for one in left if one.handler == each.handler), None)
            if found is not None:
                left.remove(found)
                if each.error is not None:
                    given_up.append(each)
        return left, given_up
