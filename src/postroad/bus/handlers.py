"""What a bus offers to those who handle its events: `subscribe`, `on`, `on_any`, `use` and `events`."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from inspect import isabstract
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from postroad.bus import subscriptions
from postroad.bus.config import HandlerLimits
from postroad.bus.dispatch import InboxHandlers
from postroad.bus.endpoints import Inlet
from postroad.bus.iteration import Iteration, iterate
from postroad.bus.local import E, EventBus, Handler, InProcessEventBus, check_subscription, register
from postroad.bus.subscriptions import EventHandler, HandlerOptions, Middleware, Subscribe, Subscription
from postroad.errors import ConfigurationError
from postroad.events import EventRegistry, default_registry
from postroad.receiving import Receiver, name_of

if TYPE_CHECKING:
    from postroad.bus.remote import RemoteEventBus

F = TypeVar("F")
G = TypeVar("G")
_STOP_SECONDS = 5.0


class HandlingBus:
    """The part of a bus that takes handlers; it can be used before the bus has a transport."""

    _inlet: Inlet | None
    _receiver: Receiver | None

    def _declare(self, inbox: InboxHandlers | None, local_bus: EventBus | None = None) -> None:
        """Take handlers from now on; nothing can be published or received yet."""
        self._local: EventBus = InProcessEventBus() if local_bus is None else local_bus
        if isinstance(self._local, InProcessEventBus) and inbox is not None:
            # The connection of a plain handler stays on its thread.
            self._local.adapts = False
        self._registry = default_registry
        self._inbox = inbox
        self._inlet = self._receiver = None
        self._admitted: frozenset[str] | None = frozenset()
        self._taken: tuple[int, int] | None = None
        """How many changes and classes there were when the types of the handlers were last found."""
        self._iterations: dict[Iteration, Sequence[type]] = {}
        self._runs_for_loops = False
        """Whether the receiver was started for an `async for`, and ends with the last of them."""
        self._lifecycle = threading.Lock()
        self._opened = self._closed = False
        self._pid = os.getpid()

    @property
    def registry(self) -> EventRegistry:
        """The types that this bus reads and writes."""
        return self._registry

    @property
    def is_bound(self) -> bool:
        """Whether it has a transport; a bus that was only declared has none."""
        return "name" in vars(self)

    @property
    def local_bus(self) -> EventBus:
        """The bus that calls the handlers of this process, on publish and on receipt."""
        return self._local

    @overload
    def subscribe(self, event_type: type[E], handler: Callable[[E], Any]) -> None: ...
    @overload
    def subscribe(self, event_type: type[E], handler: Callable[[E, Any], Any]) -> None: ...
    def subscribe(self, event_type: type[Any], handler: EventHandler) -> None:
        """Call `handler` for every event of exactly `event_type`, published here or received."""
        check_subscription(event_type, handler)
        self._subscribe(Subscription(handler=handler, name=name_of(handler)), [event_type])

    @overload
    def on(self, a: type[E], /, **options: Unpack[HandlerOptions]) -> Subscribe[E]: ...
    @overload
    def on(self, a: type[E], b: type[F], /, **options: Unpack[HandlerOptions]) -> Subscribe[E | F]: ...
    @overload
    def on(self, a: type[E], b: type[F], c: type[G], /, **options: Unpack[HandlerOptions]) -> Subscribe[E | F | G]: ...
    @overload
    def on(
        self,
        a: type[Any],
        b: type[Any],
        c: type[Any],
        d: type[Any],
        /,
        *more: type[Any],
        **options: Unpack[HandlerOptions],
    ) -> Subscribe[Any]: ...
    def on(
        self,
        *event_types: type[Any],
        name: str | None = None,
        max_attempts: int | None = None,
        retry_delays: Sequence[float] | None = None,
        timeout: float | None = None,
    ) -> Subscribe[Any]:
        """Return a decorator that subscribes a handler.

        An event with several handlers is one message: it is delivered again while one of its failed handlers has
        attempts left, after the longest of their delays. Handlers that succeeded or gave up are not called again. When
        no handler needs it any more and one gave up, it becomes a dead letter. A handler that raises
        `postroad.NonRetryable` gives up at once; `postroad.Retryable(…, after=60)` says when to try again.

        Args:
            event_types: The classes of the events that it handles, and those of their subclasses that are registered
                when the receiver starts.
            name: Its name in logs and in the inbox of the bus; by default `module.qualname`. With an inbox it must
                stay the same for as long as an event may be delivered again.
            max_attempts: The failed attempts after which it gives up; by default `max_receives` of the config.
            retry_delays: Seconds before each next attempt, of which the last one repeats; by default
                `retry_delays_seconds` of the config.
            timeout: Seconds after which an attempt is cancelled and has failed, for async handlers; by default none.

        Raises:
            ConfigurationError: An argument is out of bounds, the handler does not take the event (and with an inbox the
                connection), another one has this name, `timeout` is given for a plain function, or the bus already
                receives from a queue that moves messages to the dead letters after fewer than `max_attempts` receives.
                Nothing is subscribed.

        Example:
            @orders.on(OrderPlaced, max_attempts=5, retry_delays=(1, 5, 30))
            def bill(event: OrderPlaced) -> None: ...
        """
        subscriptions.check_types(event_types)
        if name is not None:
            subscriptions.check_handler_name(name)
        limits = HandlerLimits(max_attempts, retry_delays, timeout)

        def subscribe(handler: Handler) -> Handler:
            subscriptions.check_handler(handler, with_connection=self._inbox is not None)
            declared = Subscription(
                handler=handler,
                name=name_of(handler) if name is None else name,
                naming="default" if name is None else "given",
                limits=limits,
                takes_subclasses=True,
            )
            self._subscribe(declared, event_types)
            return handler

        return subscribe

    def _subscribe(self, subscription: Subscription, event_types: Sequence[type] | None) -> None:
        """Add a handler of these types, or of every event."""
        self._check_process()
        local = self._local
        if not isinstance(local, InProcessEventBus):
            self._subscribe_elsewhere(local, subscription, event_types)
            return
        # Not while the receiver starts: the types of its handlers would have been admitted already.
        with self._lifecycle:
            running = self._receiver is not None and self._receiver.is_running
            if subscription.naming != "unchecked":
                subscriptions.check_declared(subscription, local.subscribed)
            if self._inbox is not None:
                self._inbox.add(subscription, local.sharing(event_types))
            self._allow(subscription.limits, starts=running)
            self._register(subscription, event_types or ())
            if running and subscription.takes_subclasses:
                _check_known(event_types or (), self._registry.classes())
            local.add(subscription, event_types)
            if running:
                local.take_subclasses(self._registry.classes())
                self._admit()

    def _register(self, subscription: Subscription, event_types: Iterable[type]) -> None:
        """Register types, so that their events can be read; an abstract base has events only in its subclasses."""
        for each in event_types:
            if not (subscription.takes_subclasses and isabstract(each)):
                register(self._registry, each)

    def _subscribe_elsewhere(self, bus: EventBus, subscription: Subscription, types: Sequence[type] | None) -> None:
        """Subscribe with a bus that calls its handlers itself, and knows nothing of names and limits."""
        if types is None or subscription.limits != HandlerLimits():
            raise _no_handlers_of_its_own()
        for each in types:
            register(self._registry, each)
            bus.subscribe(each, subscription.handler)

    def _allow(self, limits: HandlerLimits, *, starts: bool) -> None:
        """Let the queue deliver an event as often as the handler has attempts; at a start it must."""
        if self._inlet is not None and limits.max_attempts is not None:
            self._inlet.allow(limits.max_attempts, starts=starts)

    @property
    def has_handlers(self) -> bool:
        """Whether a handler is subscribed, as far as the bus can know."""
        return not isinstance(self._local, InProcessEventBus) or bool(self._local.subscribed)

    def on_any(self, handler: Handler) -> Handler:
        """Call `handler` for every event that can be read, after those of its type.

        Raises:
            ConfigurationError: The handler does not take the event, or another bus calls the handlers of this one.
        """
        subscriptions.check_handler(handler, with_connection=self._inbox is not None)
        self._subscribe(Subscription(handler=handler, name=name_of(handler)), None)
        return handler

    def use(self, *middleware: Middleware) -> None:
        """Put middleware around each handler, those that are subscribed already and those to come.

        Args:
            middleware: Functions that take a handler and return another one, the outermost first. They wrap plain and
                async handlers; `postroad.current_context()` has the envelope, and with an inbox handlers take the
                connection as second argument. A plain handler inside an async middleware runs in a thread.

        Raises:
            ConfigurationError: One of them returns no handler; nothing is changed.

        Example:
            def timing(handler):
                @functools.wraps(handler)
                async def timed(*arguments):
                    started = time.perf_counter()
                    try:
                        return await handler(*arguments)
                    finally:
                        print(handler.__name__, time.perf_counter() - started)

                return timed

            orders.use(timing)
        """
        self._check_process()
        if not isinstance(self._local, InProcessEventBus):
            raise _no_handlers_of_its_own()
        self._local.use(*middleware)

    @overload
    def events(self, a: type[E], /) -> AsyncGenerator[E, None]: ...
    @overload
    def events(self, a: type[E], b: type[F], /) -> AsyncGenerator[E | F, None]: ...
    @overload
    def events(self, a: type[Any], b: type[Any], c: type[Any], /, *more: type[Any]) -> AsyncGenerator[Any, None]: ...
    def events(self, *event_types: type[Any]) -> AsyncGenerator[Any, None]:
        """Return the events of these types for `async for`, received as by `on`.

        An event is acked when the next one is asked for. When the loop is left by `break` or an exception, it is
        released and delivered again. The receiver is started if it does not run, and stopped at the end. A bus that is
        stopped or closed elsewhere ends the loop; inside of it, `break` first, because closing waits for its event.

        Args:
            event_types: The classes of the events, as for `on`.

        Raises:
            ConfigurationError: There are no types, or the bus has an inbox, whose transaction a loop cannot share.

        Example:
            async for event in orders.events(OrderPlaced):
                await charge(event)
        """
        subscriptions.check_types(event_types)
        if self._inbox is not None:
            raise ConfigurationError(
                "inbox: a loop over events is not part of the transaction of the inbox",
                field="inbox",
                remedy="Handle the events in a function that `on` subscribes, or use a bus without an inbox.",
            )
        return iterate(cast("RemoteEventBus", self), event_types)

    def join(self, iteration: Iteration, event_types: Sequence[type]) -> bool:
        """Deliver events of `event_types` to `iteration`, a loop; return whether the receiver has to start for it."""
        handler = Subscription(handler=iteration.handle, name="events", takes_subclasses=True)
        self._subscribe(handler, event_types)
        self._iterations[iteration] = event_types
        starts = self._receiver is None or not self._receiver.is_running
        self._runs_for_loops |= starts
        return starts

    def leave(self, iteration: Iteration) -> Callable[[], object] | None:
        """Deliver no more events to `iteration`, a loop that was left.

        If the receiver ran only for such loops, it receives no more; return the function that waits for its end.
        """
        for each in dict.fromkeys(self._iterations.pop(iteration, ())):
            self._local.unsubscribe(each, iteration.handle)
        if not self._runs_for_loops or self._iterations or self._receiver is None:
            return None
        self._runs_for_loops = False
        return partial(self._receiver.halt(), _STOP_SECONDS)

    def _admit(self) -> None:
        """Let the group receive the types that have handlers here."""
        if self._inlet is None:
            return
        types = self._local.types if isinstance(self._local, InProcessEventBus) else None
        names = None if types is None else frozenset(n for each in types for n in self._registry.names_of(each))
        if names != self._admitted and (names is None or names):
            self._inlet.admit(names)
            self._admitted = names

    def unsubscribe(self, event_type: type[Any], handler: EventHandler) -> bool:
        """Remove one subscription of `handler` to `event_type`; return whether there was one."""
        self._check_process()
        return self._local.unsubscribe(event_type, handler)

    @property
    def _subscribed(self) -> list[Subscription]:
        """All subscriptions; none if a bus of another kind has them."""
        return self._local.subscribed if isinstance(self._local, InProcessEventBus) else []

    def _take_types(self) -> None:
        """Find the events of all handlers, at a start of the receiver.

        Raises:
            ConfigurationError: A handler waits for a class that is not an event, or the queue allows too few attempts.
        """
        local, known = self._local, self._registry.classes()
        if isinstance(local, InProcessEventBus) and self._taken != (local.changes, len(known)):
            local.take_subclasses(known)
            for each in local.subscribed:
                if each.takes_subclasses:
                    _check_known(local.declared(each), known)
                self._allow(each.limits, starts=True)
            # `receive_once` comes here before each poll.
            self._taken = local.changes, len(known)
        self._admit()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ConfigurationError("this bus was made before a fork", remedy="Make a bus of its own in the child.")


def _check_known(event_types: Iterable[type], known: Sequence[type]) -> None:
    """Refuse a class that nobody declared as an event: its handler would wait for ever."""
    for each in event_types:
        if not any(issubclass(one, each) for one in known):
            raise ConfigurationError(
                f"event_types: {each.__qualname__} is not an event, and no registered event derives from it",
                field="event_types",
                remedy="Write @postroad.event above the class, or import the module of its subclasses first.",
            )


def _no_handlers_of_its_own() -> ConfigurationError:
    return ConfigurationError(
        "local_bus: a bus of another kind calls the handlers of this one, and knows only `subscribe`",
        field="local_bus",
        remedy="Subscribe the handler to each type that it handles, or leave `local_bus` out.",
    )
