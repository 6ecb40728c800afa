"""The bus inside one process: handlers run on the publisher's thread."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable
from uuid import UUID

import msgspec

from postroad.bus.subscriptions import EventHandler, Middleware, Subscription, check_middleware, outcome
from postroad.errors import describe
from postroad.events import EventRegistry, can_travel
from postroad.queues import legible
from postroad.receiving import LoopThread, in_thread, log_traceback, name_of
from postroad.telemetry import get_logger

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


E = TypeVar("E")
Handler = TypeVar("Handler", bound=EventHandler)
Published = TypeVar("Published", covariant=True)


class _Local(msgspec.Struct, Generic[Published], frozen=True):
    event: Published
    handlers_invoked: tuple[EventHandler, ...]
    errors: tuple[HandlerFailure, ...]


class PublishResult(_Local[Published], frozen=True, kw_only=True):
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

    def subscribe(self, event_type: type[E], handler: Callable[[E], Any]) -> None:
        """Call `handler` for every event of exactly `event_type`, from the next publish on."""
        ...

    def unsubscribe(self, event_type: type[E], handler: Callable[[E], Any]) -> bool:
        """Remove one subscription of `handler` to `event_type`; return whether there was one."""
        ...

    def publish(self, event: E) -> PublishResult[E]:
        """Give `event` to every handler of its type, and return which of them ran and failed."""
        ...


def local_part(bus: EventBus) -> EventBus:
    """Return the bus that calls the handlers of this process and sends nothing."""
    local: EventBus = getattr(bus, "local_bus", bus)
    return local


def _failure(event: object, subscription: Subscription, error: Exception) -> HandlerFailure:
    kind, name, text = type(event).__qualname__, subscription.name, legible(describe(error))
    get_logger("bus").warning("bus_handler_failed", type=kind, handler=name, error=text)
    log_traceback(error, part="bus", line="bus_handler_traceback", handler=name)
    return HandlerFailure(subscription.handler, error)


# A plain tuple, which Python unpacks several times faster than a named one.
_Row = tuple[tuple[EventHandler, ...], tuple[EventHandler, ...], tuple[Subscription, ...]]
"""The handlers of one type in order: as they were given, as they are called, and all that is known of them."""
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
        self._declared: dict[type, tuple[Subscription, ...]] = {}
        self._any: tuple[Subscription, ...] = ()
        self._registered: dict[type, None] = {}
        """The classes among which subscriptions with `takes_subclasses` find theirs."""
        self._middleware: tuple[Middleware, ...] = ()
        # Rows are replaced and never changed, so a loop over one needs neither a lock nor a copy.
        self._rows: dict[type, _Row] = {}
        self._other: _Row = ((), (), ())
        self.changes = 0
        """Grows with every change of the handlers."""
        self.adapts = True
        """Whether plain handlers may run in threads inside async middleware."""
        self.has_async_handlers = False
        """Whether an async handler was ever subscribed."""
        self._changing = threading.Lock()
        self.loop_thread = LoopThread()

    @property
    def registry(self) -> EventRegistry | None:
        """Where `subscribe` registers types; None if nothing leaves the process."""
        return self._registry

    def subscribe(self, event_type: type[E], handler: Callable[[E], Any]) -> None:
        """Call `handler` for every event of exactly `event_type`, from the next publish on."""
        check_subscription(event_type, handler)
        if self._registry is not None:
            register(self._registry, event_type)
        self.add(Subscription(handler=handler, name=name_of(handler)), [event_type])

    def add(self, subscription: Subscription, event_types: Sequence[type] | None) -> None:
        """Add `subscription` to events of `event_types`, or of every type if None, from the next publish on."""
        with self._changing:
            subscription.call, subscription.is_async = subscription.within(self._middleware, adapts=self.adapts)
            self.has_async_handlers |= subscription.is_async
            if event_types is None:
                self._any = (*self._any, subscription)
            for each in dict.fromkeys(event_types or ()):
                self._declared[each] = (*self._declared.get(each, ()), subscription)
            self._arrange(event_types if not subscription.takes_subclasses else None)

    def unsubscribe(self, event_type: type[E], handler: Callable[[E], Any]) -> bool:
        """Remove one subscription of `handler` to `event_type`; return whether there was one."""
        with self._changing:
            known = self._declared.get(event_type, ())
            found = next((each for each in known if each.handler == handler), None)
            if found is None:
                return False
            self._declared[event_type] = tuple(each for each in known if each is not found)
            if not self._declared[event_type]:
                del self._declared[event_type]
            self._arrange([event_type] if not found.takes_subclasses else None)
        return True

    def on_any(self, handler: Handler) -> Handler:
        """Call `handler` for every event, after those of its type, from the next publish on."""
        check_subscription(object, handler)
        self.add(Subscription(handler=handler, name=name_of(handler)), None)
        return handler

    def use(self, *middleware: Middleware) -> None:
        """Put middleware around each handler, those that are subscribed already and those to come.

        Args:
            middleware: Functions that take a handler and return another one, the outermost first. Inside those that
                were given before.

        Raises:
            ConfigurationError: One of them returns no handler; nothing is changed.
        """
        check_middleware(middleware)
        with self._changing:
            chain = (*self._middleware, *middleware)
            calls = [(each, each.within(chain, adapts=self.adapts)) for each in self._all()]
            self._middleware = chain
            for each, (call, asynchronous) in calls:
                each.call, each.is_async = call, asynchronous
                self.has_async_handlers |= asynchronous
            self._arrange(None)

    def take_subclasses(self, registered: Iterable[type]) -> None:
        """Give subscriptions with `takes_subclasses` the subclasses among `registered`, from the next publish on."""
        with self._changing:
            self._registered = dict.fromkeys(registered)
            self._arrange(None)

    @property
    def types(self) -> list[type] | None:
        """The types that have handlers; None if a handler takes every event."""
        return None if self._any else list(self._rows)

    @property
    def subscribed(self) -> list[Subscription]:
        """All subscriptions."""
        with self._changing:
            return self._all()

    def sharing(self, event_types: Sequence[type] | None) -> list[Subscription]:
        """Return the subscriptions that get some events of `event_types`, or of any type if None."""
        with self._changing:
            if event_types is None:
                return self._all()
            found = [
                one
                for each, many in self._declared.items()
                for one in many
                if any(issubclass(each, given) or issubclass(given, each) for given in event_types)
            ]
            return list(dict.fromkeys((*found, *self._any)))

    def declared(self, subscription: Subscription) -> list[type]:
        """Return the types that `subscription` was made for, without the subclasses that it also takes."""
        with self._changing:
            return [each for each, found in self._declared.items() if subscription in found]

    def subscriptions(self, event_type: type[object]) -> tuple[Subscription, ...]:
        """Return the subscriptions to events of `event_type`, in order."""
        return self._rows.get(event_type, self._other)[2]

    def publish(self, event: E) -> PublishResult[E]:
        """Run the handlers of `event` one after another; a failing one does not stop the others."""
        # A try block and an index cost less than `get` and names for all three. Only a type without handlers raises.
        try:
            row = self._rows[type(event)]
        except KeyError:
            row = self._other
        errors: tuple[HandlerFailure, ...] = ()
        for call in row[1]:
            try:
                found = call(event)
                if found is not None:
                    self.finish(found)
            except Exception as error:
                errors = (*errors, _failure(event, row[2][row[1].index(call)], error))
        return PublishResult(event, row[0], errors)

    def publish_many(self, events: Iterable[E]) -> list[PublishResult[E]]:
        """Publish one of `events` after another; a failure stops nothing."""
        return [self.publish(event) for event in events]

    async def apublish(self, event: E) -> PublishResult[E]:
        """Publish `event` without blocking the loop: async handlers are awaited on it, others run in threads."""
        handlers, _, subscriptions = self._rows.get(type(event), self._other)
        errors: tuple[HandlerFailure, ...] = ()
        for each in subscriptions:
            error = await self._acall(each, event)
            if error is not None:
                errors = (*errors, _failure(event, each, error))
        return PublishResult(event, handlers, errors)

    def finish(self, found: Any) -> None:
        """Await `found` if an async handler returned it; any other return value is ignored."""
        if inspect.isawaitable(found):
            self.loop_thread.run(found)

    async def _acall(self, subscription: Subscription, event: object) -> Exception | None:
        """Await the handler, or call it in a thread, and return its error."""
        try:
            if subscription.is_async:
                found, error = subscription.call(event), None
            else:
                found, error = await in_thread(outcome, subscription.call, event)
            if error is not None:
                return error
            if inspect.isawaitable(found):
                await self.loop_thread.arun(found)
        except Exception as error:
            return error
        return None

    def _all(self) -> list[Subscription]:
        found = [each for many in self._declared.values() for each in many]
        return list(dict.fromkeys((*found, *self._any)))

    def _arrange(self, event_types: Sequence[type] | None) -> None:
        """Make the rows of these types anew, or all of them."""
        self.changes += 1
        if event_types is not None:
            for each in event_types:
                if found := self._of(each):
                    self._rows[each] = _row((*found, *self._any))
                else:
                    self._rows.pop(each, None)
            return
        bases = tuple(each for each, found in self._declared.items() if any(one.takes_subclasses for one in found))
        derived = [each for each in self._registered if issubclass(each, bases)]
        self._other = _row(self._any)
        self._rows = {each: _row((*self._of(each), *self._any)) for each in (*self._declared, *derived)}

    def _of(self, event_type: type) -> list[Subscription]:
        found = dict.fromkeys(self._declared.get(event_type, ()))
        if event_type in self._registered:
            bases = [each for each in self._declared if issubclass(event_type, each)]
            found |= dict.fromkeys(one for base in bases for one in self._declared[base] if one.takes_subclasses)
        return sorted(found, key=lambda each: each.number)


def _row(subscriptions: Sequence[Subscription]) -> _Row:
    handlers = tuple(each.handler for each in subscriptions)
    # Most handlers are called as they were given, and one tuple is faster to reach than two equal ones.
    same = all(each.call is each.handler for each in subscriptions)
    return handlers, handlers if same else tuple(each.call for each in subscriptions), tuple(subscriptions)
