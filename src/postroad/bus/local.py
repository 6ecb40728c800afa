"""The bus inside one process: handlers run on the publisher's thread."""

from __future__ import annotations

import inspect
import logging
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from postroad.errors import describe
from postroad.events import EventRegistry, can_travel
from postroad.queues import legible
from postroad.receiving import LoopThread, in_thread, is_async, name_of
from postroad.telemetry import get_logger, redact

EventHandler = Callable[..., Any]
"""A plain function or an async one; it takes the event, and on a bus with an inbox the connection too."""

Remote = Literal["none", "sent", "filtered", "failed", "unknown"]
"""The outcome of sending the event to other processes; `unknown`: it may have been sent."""


class HandlerFailure(msgspec.Struct, frozen=True):
    """A handler that failed, and its error.

    Attributes:
        handler: The function that failed.
        error: What it raised.
    """

    handler: EventHandler
    error: Exception

    def __str__(self) -> str:
        return f"{self.handler!r} -> {self.error!r}"


class _Local(msgspec.Struct, frozen=True):
    event: object
    handlers_invoked: tuple[EventHandler, ...]
    errors: tuple[HandlerFailure, ...]


class PublishResult(_Local, frozen=True, kw_only=True):
    """Which handlers ran, which of them failed, and whether the event was sent to other processes.

    Attributes:
        event: The event itself.
        handlers_invoked: The handlers of this process that ran.
        errors: The handlers that failed; a failure of the transport is among them.
        event_id: The id of its envelope; None if it has none.
        remote: `sent`, `filtered` by the config, `failed`, `unknown` if it may have been sent, `none` without one.
        receivers: How many queues of other processes and groups got it; None if the transport does not report it.
    """

    event_id: UUID | None = None
    remote: Remote = "none"
    receivers: int | None = None

    @property
    def ok(self) -> bool:
        """Whether no handler failed and sending did not fail."""
        return not self.errors

    @property
    def handled_count(self) -> int:
        """How many handlers ran, including those that failed."""
        return len(self.handlers_invoked)

    def raise_if_errors(self) -> None:
        """Raise all failures together, if there are any."""
        if self.errors:
            name = type(self.event).__name__
            errors = [failure.error for failure in self.errors]
            raise ExceptionGroup(f"publishing {name} failed: {'; '.join(map(str, self.errors))}", errors)


def check_subscription(event_type: object, handler: object) -> None:
    """Refuse a type that is not a class, and a handler that cannot be called."""
    if not isinstance(event_type, type):
        raise TypeError(f"event_type: {event_type!r} is not a class; subscribe to the class of the event itself")
    if not callable(handler):
        raise TypeError(f"handler: {handler!r} cannot be called; pass a function that takes the event")


def register(registry: EventRegistry, event_type: type[object]) -> None:
    """Register the type, so that its events can be read from messages, unless its instances cannot be events."""
    if registry.known_name(event_type) is None and can_travel(event_type):
        registry.register(event_type)


@runtime_checkable
class EventBus(Protocol):
    """Publishes events to handlers, in this process and others."""

    def subscribe(self, event_type: type[object], handler: EventHandler) -> None:
        """Call `handler` for every event of exactly `event_type`, from the next publish on."""
        ...

    def unsubscribe(self, event_type: type[object], handler: EventHandler) -> bool:
        """Remove one subscription of `handler` to `event_type`; return whether there was one."""
        ...

    def publish(self, event: object) -> PublishResult:
        """Give `event` to every handler of its type, and return which of them ran and failed."""
        ...


def local_part(bus: EventBus) -> EventBus:
    """Return the bus that calls the handlers of this process and sends nothing."""
    local: EventBus = getattr(bus, "local_bus", bus)
    return local


def _log_failure(event: object, handler: EventHandler, error: Exception) -> None:
    text = legible(describe(error))
    get_logger("bus").warning("bus_handler_failed", type=type(event).__qualname__, handler=name_of(handler), error=text)
    log_traceback(error, handler=name_of(handler))


def log_traceback(error: Exception, **about: str) -> None:
    """Log the traceback of a handler's failure at the level DEBUG."""
    if logging.getLogger("postroad.bus").isEnabledFor(logging.DEBUG):
        lines = redact("".join(traceback.format_exception(error)))
        get_logger("bus").debug("bus_handler_traceback", traceback=lines, **about)


ControlBus = EventBus
TelemetryBus = EventBus


class InProcessEventBus:
    """Calls handlers by exact type, in the order of subscription, on the calling thread.

    Args:
        registry: Where `subscribe` registers types; by default nowhere, because nothing leaves the process.

    Example:
        bus = InProcessEventBus()
        bus.subscribe(OrderPlaced, charge)
        bus.publish(OrderPlaced("A-1")).raise_if_errors()
    """

    def __init__(self, *, registry: EventRegistry | None = None) -> None:
        self._registry = registry
        # These tuples are replaced and never changed, so a loop over one needs neither a lock nor a copy.
        self._handlers: dict[type, tuple[EventHandler, ...]] = {}
        self._any: tuple[EventHandler, ...] = ()
        self.has_async_handlers = False
        """Whether an async handler was ever subscribed."""
        self._changing = threading.Lock()
        self.loop_thread = LoopThread()

    @property
    def registry(self) -> EventRegistry | None:
        """Where `subscribe` registers types; None if nothing leaves the process."""
        return self._registry

    def subscribe(self, event_type: type[object], handler: EventHandler) -> None:
        """Call `handler` for every event of exactly `event_type`, from the next publish on."""
        check_subscription(event_type, handler)
        if self._registry is not None:
            register(self._registry, event_type)
        self.has_async_handlers |= is_async(handler)
        with self._changing:
            self._handlers[event_type] = (*self._handlers.get(event_type, ()), handler)

    def unsubscribe(self, event_type: type[object], handler: EventHandler) -> bool:
        """Remove one subscription of `handler` to `event_type`; return whether there was one."""
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
        """Call `handler` for every event, after those of its type, from the next publish on."""
        check_subscription(object, handler)
        self.has_async_handlers |= is_async(handler)
        with self._changing:
            self._any = (*self._any, handler)
        return handler

    @property
    def types(self) -> list[type] | None:
        """The types that have handlers; None if a handler takes every event."""
        return None if self._any else list(self._handlers)

    def handlers(self, event_type: type[object]) -> tuple[EventHandler, ...]:
        """Return the handlers of events of exactly `event_type`, in order."""
        return self._handlers.get(event_type, ()) + self._any

    def publish(self, event: object) -> PublishResult:
        """Run the handlers of `event` one after another; a failing one does not stop the others."""
        handlers = self._handlers.get(type(event), ()) + self._any
        errors: tuple[HandlerFailure, ...] = ()
        for handler in handlers:
            try:
                found = handler(event)
                if found is not None:
                    self.finish(found)
            except Exception as error:
                _log_failure(event, handler, error)
                errors = (*errors, HandlerFailure(handler, error))
        return PublishResult(event, handlers, errors)

    def publish_many(self, events: Iterable[object]) -> list[PublishResult]:
        """Publish one of `events` after another; a failure stops nothing."""
        return [self.publish(event) for event in events]

    async def apublish(self, event: object) -> PublishResult:
        """Publish `event` without blocking the loop: async handlers are awaited on it, others run in threads."""
        handlers = self.handlers(type(event))
        outcomes = [(handler, await _acall(handler, event)) for handler in handlers]
        errors = tuple(HandlerFailure(handler, error) for handler, error in outcomes if error is not None)
        for failure in errors:
            _log_failure(event, failure.handler, failure.error)
        return PublishResult(event, handlers, errors)

    def finish(self, found: Any) -> None:
        """Await `found` if an async handler returned it; any other return value is ignored."""
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
