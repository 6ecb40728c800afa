"""The bus inside one process: handlers run on the publisher's thread."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from postroad.bus.result import EventHandler, HandlerFailure, PublishResult
from postroad.bus.subscribing import check_handler, check_type, register
from postroad.errors.root import describe
from postroad.events import EventRegistry
from postroad.queues.markers import legible
from postroad.receiving import asynchrony
from postroad.telemetry import get_logger


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
    get_logger("bus").warning(
        "bus_handler_failed", type=type(event).__qualname__, handler=asynchrony.name_of(handler), error=text
    )


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
        self.loop_thread = asynchrony.LoopThread()

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
        self.has_async_handlers |= asynchrony.is_async(handler)
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
        self.has_async_handlers |= asynchrony.is_async(handler)
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
        outcomes = [(handler, await asynchrony.call(handler, event)) for handler in handlers]
        errors = tuple(HandlerFailure(handler, error) for handler, error in outcomes if error is not None)
        for failure in errors:
            log_failure(event, failure.handler, failure.error)
        return PublishResult(event, handlers, errors)

    def finish(self, found: Any) -> None:
        """Run to its end what an async handler returned; anything else a handler returns is ignored."""
        if inspect.isawaitable(found):
            self.loop_thread.run(found)
