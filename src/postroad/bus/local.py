"""The bus inside one process: handlers run on the publisher's thread."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from postroad.errors import describe
from postroad.events import EventRegistry, can_travel
from postroad.queues import legible
from postroad.receiving import LoopThread, in_thread, is_async, name_of
from postroad.telemetry import get_logger

EventHandler = Callable[..., Any]
"""A plain function or an async one; it takes the event, and on a bus with an inbox the connection too."""

Remote = Literal["none", "sent", "filtered", "failed", "unknown"]
"""What became of the copy for other processes; `unknown`: it may have been sent."""


class HandlerFailure(msgspec.Struct, frozen=True):
    """A handler that raised, and what it raised."""

    handler: EventHandler
    error: Exception

    def __str__(self) -> str:
        return f"{self.handler!r} -> {self.error!r}"


class _Local(msgspec.Struct, frozen=True):
    event: object
    handlers_invoked: tuple[EventHandler, ...]
    errors: tuple[HandlerFailure, ...]


class PublishResult(_Local, frozen=True, kw_only=True):
    """Which handlers ran, which of them failed, and whether the event left the process."""

    event_id: UUID | None = None
    remote: Remote = "none"
    receivers: int | None = None
    """How many queues of other processes and groups got the event; None where the transport cannot tell."""

    @property
    def ok(self) -> bool:
        """Whether no handler failed and nothing went wrong on the way out."""
        return not self.errors

    @property
    def handled_count(self) -> int:
        """How many handlers ran, the failing ones included."""
        return len(self.handlers_invoked)

    def raise_if_errors(self) -> None:
        """Raise all failures together, if there are any."""
        if self.errors:
            name = type(self.event).__name__
            errors = [failure.error for failure in self.errors]
            raise ExceptionGroup(f"publishing {name} failed: {'; '.join(map(str, self.errors))}", errors)


def check_type(event_type: object) -> None:
    """Refuse what is not a class."""
    if not isinstance(event_type, type):
        raise TypeError(f"event_type: {event_type!r} is not a class; subscribe to the class of the event itself")


def check_handler(handler: object) -> None:
    """Refuse what cannot be called."""
    if not callable(handler):
        raise TypeError(f"handler: {handler!r} cannot be called; pass a function that takes the event")


def register(registry: EventRegistry, event_type: type[object]) -> None:
    """Let events of this type be read from messages; what is no event stays known to this process only."""
    if can_travel(event_type) and registry.known_name(event_type) is None:
        registry.register(event_type)


@runtime_checkable
class EventBus(Protocol):
    """What publishes events to handlers, wherever these are."""

    def subscribe(self, event_type: type[object], handler: EventHandler) -> None:
        """Call the handler for every event of exactly this type, from the next publish on."""
        ...

    def unsubscribe(self, event_type: type[object], handler: EventHandler) -> bool:
        """Remove one subscription of the handler; says whether there was one."""
        ...

    def publish(self, event: object) -> PublishResult:
        """Give the event to everybody who subscribed to its type, and say what became of it."""
        ...


@runtime_checkable
class HasLocalPart(Protocol):
    """A bus that reaches further than this process."""

    @property
    def local_bus(self) -> EventBus:
        """The bus that calls its handlers in this process."""
        ...


def local_part(bus: EventBus) -> EventBus:
    """The bus that calls the handlers here and sends nothing."""
    return bus.local_bus if isinstance(bus, HasLocalPart) else bus


def log_failure(event: object, handler: EventHandler, error: Exception) -> None:
    """Write down that a handler failed during `publish`."""
    text = legible(describe(error))
    get_logger("bus").warning("bus_handler_failed", type=type(event).__qualname__, handler=name_of(handler), error=text)


ControlBus = EventBus
TelemetryBus = EventBus


class InProcessEventBus:
    """Calls handlers by exact type, in the order of subscription, on the calling thread."""

    def __init__(self, *, registry: EventRegistry | None = None) -> None:
        self._registry = registry
        # Tuples that are replaced and never changed: whoever runs over one needs neither a lock nor a copy.
        self._handlers: dict[type, tuple[EventHandler, ...]] = {}
        self._any: tuple[EventHandler, ...] = ()
        self.has_async_handlers = False
        """Whether an async handler was ever subscribed."""
        self._changing = threading.Lock()
        self.loop_thread = LoopThread()

    @property
    def registry(self) -> EventRegistry | None:
        """Where subscribing registers types; None when nothing leaves the process."""
        return self._registry

    def subscribe(self, event_type: type[object], handler: EventHandler) -> None:
        """Call the handler for every event of exactly this type, from the next publish on."""
        check_type(event_type)
        check_handler(handler)
        if self._registry is not None:
            register(self._registry, event_type)
        self.has_async_handlers |= is_async(handler)
        with self._changing:
            self._handlers[event_type] = (*self._handlers.get(event_type, ()), handler)

    def unsubscribe(self, event_type: type[object], handler: EventHandler) -> bool:
        """Remove one subscription of the handler; says whether there was one."""
        with self._changing:
            left = list(self._handlers.get(event_type, ()))
            if handler not in left:
                return False
            left.remove(handler)
            if left:
                self._handlers[event_type] = tuple(left)
            else:
                del self._handlers[event_type]
        return True

    def on_any(self, handler: EventHandler) -> EventHandler:
        """Call the handler for every event, after those of its type, from the next publish on."""
        check_handler(handler)
        self.has_async_handlers |= is_async(handler)
        with self._changing:
            self._any = (*self._any, handler)
        return handler

    @property
    def types(self) -> list[type] | None:
        """The types that somebody handles; None when somebody handles every event."""
        return None if self._any else list(self._handlers)

    def handlers(self, event_type: type[object]) -> tuple[EventHandler, ...]:
        """Who is called for events of this type, in order."""
        return self._handlers.get(event_type, ()) + self._any

    def publish(self, event: object) -> PublishResult:
        """Run the handlers one after another; a failing one does not stop the others."""
        handlers = self._handlers.get(type(event), ()) + self._any
        errors: tuple[HandlerFailure, ...] = ()
        for handler in handlers:
            try:
                found = handler(event)
                if found is not None:
                    self.finish(found)
            except Exception as error:
                log_failure(event, handler, error)
                errors = (*errors, HandlerFailure(handler, error))
        return PublishResult(event, handlers, errors)

    def publish_many(self, events: Iterable[object]) -> list[PublishResult]:
        """Publish one event after another; a failure stops nothing."""
        return [self.publish(event) for event in events]

    async def apublish(self, event: object) -> PublishResult:
        """Publish without blocking the loop: async handlers are awaited on it, others run in threads."""
        handlers = self.handlers(type(event))
        outcomes = [(handler, await _acall(handler, event)) for handler in handlers]
        errors = tuple(HandlerFailure(handler, error) for handler, error in outcomes if error is not None)
        for failure in errors:
            log_failure(event, failure.handler, failure.error)
        return PublishResult(event, handlers, errors)

    def finish(self, found: Any) -> None:
        """Run to its end what an async handler returned; anything else a handler returns is ignored."""
        if inspect.isawaitable(found):
            self.loop_thread.run(found)


async def _acall(handler: EventHandler, event: object) -> Exception | None:
    """Await the handler on this loop, or call it in a thread, and return its error."""
    try:
        if is_async(handler):
            await handler(event)
        else:
            # The error comes back as a value, because a future cannot carry StopIteration.
            found, error = await in_thread(_call, handler, event)
            if error is not None:
                return error
            if inspect.isawaitable(found):
                await found
    except Exception as error:
        return error
    return None


def _call(handler: EventHandler, event: object) -> tuple[Any, Exception | None]:
    try:
        return handler(event), None
    except Exception as error:
        return None, error
