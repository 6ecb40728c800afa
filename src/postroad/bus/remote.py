"""A bus that reaches other processes: one engine publishes and receives for all transports."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Annotated, Any, Self, TypeVar

from msgspec import Meta

from postroad.arguments import check
from postroad.bus.config import HandlerLimits, SQSEventBusConfig, Unhandled, checked_config
from postroad.bus.deduplication import Memory
from postroad.bus.dispatch import Dispatch, Handled, InboxHandlers, Wanted
from postroad.bus.endpoints import Inlet, Outlet
from postroad.bus.local import EventBus, EventHandler, InProcessEventBus, PublishResult, check_subscription, register
from postroad.bus.publisher import Publisher
from postroad.bus.sender import Sender
from postroad.bus.telemetry import BusHealth, BusTelemetry
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, PostroadError, TransportError
from postroad.events import Codec, EventRegistry, default_registry
from postroad.queues import Delivery, Queue
from postroad.receiving import (
    NO_DEAD_LETTERS,
    Chore,
    CircuitBreaker,
    CircuitBreakerConfig,
    DeadLetters,
    Hooks,
    Receiver,
    in_thread,
)
from postroad.settings import bus_variable

_LONGEST_NAME = 100
Handler = TypeVar("Handler", bound=EventHandler)
_handled: ContextVar[list[Any] | None] = ContextVar("postroad_receive_once", default=None)
"""Where `receive_once` collects the events that were handled."""
_Timeout = Annotated[float, Meta(ge=0, description="a number of seconds of 0 or more")]


class RemoteEventBus:
    """Calls the handlers of this process during `publish` and sends the event to other processes.

    Use one of the buses that are built on it: `backend.bus(…)`, `SQSEventBus`, `SNSEventBus`, `EventBridgeEventBus` or
    `KinesisEventBus`.

    Args:
        outlet: Where it sends.
        inlet: The queue that it receives from; None for a bus that only publishes.
        dead_letters: Where rejected events go; None if there are no dead letters.
        config: All settings; by default those of the environment.
        local_bus: The bus that calls the handlers of this process; by default one of its own.
        registry: The classes of events; by default those of `@event`.
        clock: Another clock, for tests.
        breaker: When to stop sending and receiving for a while because they fail; by default never.
        unhandled: Overrides `unhandled` of the config.
        wanted: Returns whether the bus asked for an event; by default it asked for all.
        chores: Done by the receiver's housekeeping thread.
        inbox: Runs handlers whose effects happen once.
    """

    _inlet: Inlet | None
    _receiver: Receiver | None

    def __init__(
        self,
        *,
        outlet: Outlet,
        inlet: Inlet | None,
        dead_letters: DeadLetters | None = None,
        config: SQSEventBusConfig | None = None,
        local_bus: EventBus | None = None,
        registry: EventRegistry | None = None,
        clock: Clock | None = None,
        breaker: CircuitBreakerConfig | None = None,
        unhandled: Unhandled | None = None,
        wanted: Wanted | None = None,
        chores: Sequence[Chore] = (),
        inbox: InboxHandlers | None = None,
    ) -> None:
        # A bus that was declared before it had a transport keeps its handlers.
        if "_local" not in vars(self):
            self._declare(inbox, local_bus)
        self.name, self.config = outlet.name, checked_config(config)
        self._clock = SYSTEM_CLOCK if clock is None else clock
        self._registry = default_registry if registry is None else registry
        for event_type in (self._local.types or ()) if isinstance(self._local, InProcessEventBus) else ():
            register(self._registry, event_type)
        variable = bus_variable("PUBLISHER_ID")
        self.publisher_id = self.config.publisher_id or (variable[1] if variable else str(uuid.uuid4()))
        self._outlet, self._inlet = outlet, inlet
        self._telemetry = BusTelemetry(outlet.name)
        self._memory = Memory(self.config, self._clock)
        self._publish_breaker = None if breaker is None else CircuitBreaker(breaker, self._clock.monotonic)
        codec = Codec(self._registry, clock=self._clock)
        self._sender = Sender(
            outlet.send, self.config, self._publish_breaker, name=outlet.name, fifo=outlet.fifo, longest=outlet.longest
        )
        lists = (self.config.event_type_allowlist, self.config.event_type_blocklist)
        allows = None if lists == (None, None) else self.config.allows
        self._publisher = Publisher(
            outlet=outlet,
            codec=codec,
            publisher_id=self.publisher_id,
            config=self.config,
            local=self._local,
            memory=self._memory,
            telemetry=self._telemetry,
            sender=self._sender,
            allows=allows,
        )
        self._sqs_publish = self._publisher.send_alone
        dispatch = Dispatch(
            codec=codec,
            config=self.config,
            local=self._local,
            memory=self._memory,
            wanted=wanted,
            allows=allows,
            unhandled=self.config.unhandled if unhandled is None else unhandled,
            max_receives=None if dead_letters is None else self.config.max_receives,
            attempt=lambda delivery: self._receiving().attempt(delivery),
            telemetry=self._telemetry,
            limits=self._limits,
            inbox=self._inbox,
        )
        if inlet is not None:
            self._receiver = self._receiver_for(inlet, dispatch, dead_letters, chores, breaker)

    def _declare(self, inbox: InboxHandlers | None, local_bus: EventBus | None = None) -> None:
        """Take handlers from now on; nothing can be published or received yet."""
        self._local: EventBus = InProcessEventBus() if local_bus is None else local_bus
        self._registry = default_registry
        self._inbox = inbox
        self._limits: dict[tuple[type, int], HandlerLimits] = {}
        self._inlet = self._receiver = None
        self._admitted: frozenset[str] | None = frozenset()
        self._lifecycle = threading.Lock()
        self._opened = self._closed = False
        self._pid = os.getpid()

    @property
    def registry(self) -> EventRegistry:
        """The types that this bus reads and writes."""
        return self._registry

    @property
    def local_bus(self) -> EventBus:
        """The bus that calls the handlers of this process, on publish and on receipt."""
        return self._local

    @property
    def is_receiving_here(self) -> bool:
        """Whether the caller is a handler of this bus's receiver: nothing is received until it returns."""
        return self._receiver is not None and self._receiver.is_here

    def subscribe(self, event_type: type[object], handler: EventHandler) -> None:
        """Call `handler` for every event of exactly `event_type`, published here or received."""
        self._subscribe(event_type, handler, None, HandlerLimits())

    def on(
        self,
        event_type: type[object],
        *,
        name: str | None = None,
        max_attempts: int | None = None,
        retry_delays: Sequence[float] | None = None,
    ) -> Callable[[Handler], Handler]:
        """Return a decorator that subscribes a handler.

        An event with several handlers is one message: it is delivered again while one of its failed handlers has
        attempts left, after the longest of their delays. Handlers that succeeded or gave up are not called again. When
        no handler needs it any more and one gave up, it becomes a dead letter.

        Args:
            event_type: The class of the events that it handles.
            name: Its name in the inbox of the bus; by default `module.qualname`. It must stay the same for as long as
                an event may be delivered again.
            max_attempts: The failed attempts after which it gives up; by default `max_receives` of the config.
            retry_delays: Seconds before each next attempt, of which the last one repeats; by default
                `retry_delays_seconds` of the config.

        Raises:
            ConfigurationError: An argument is out of bounds, or the bus already receives from a queue that moves
                messages to the dead letters after fewer than `max_attempts` receives.

        Example:
            @orders.on(OrderPlaced, max_attempts=5, retry_delays=(1, 5, 30))
            def bill(event: OrderPlaced) -> None: ...
        """
        if name is not None and not (0 < len(name) <= _LONGEST_NAME and name.isprintable()):
            raise ConfigurationError(
                f"name: {name!r} is not 1 to {_LONGEST_NAME} printable characters",
                field="name",
                remedy="Give a short name, such as 'ledger'.",
            )
        limits = HandlerLimits(max_attempts, retry_delays)

        def subscribe(handler: Handler) -> Handler:
            self._subscribe(event_type, handler, name, limits)
            return handler

        return subscribe

    def _subscribe(
        self, event_type: type[object], handler: EventHandler, name: str | None, limits: HandlerLimits
    ) -> None:
        self._check_process()
        check_subscription(event_type, handler)
        # Not while the receiver starts: the types of its handlers would have been admitted already.
        with self._lifecycle:
            running = self._receiver is not None and self._receiver.is_running
            if running:
                self._allow(limits)
            register(self._registry, event_type)
            if self._inbox is not None:
                self._inbox.add(event_type, handler, name)
            self._limits[event_type, id(handler)] = limits
            self._local.subscribe(event_type, handler)
            if running:
                self._admit()

    def _allow(self, limits: HandlerLimits) -> None:
        """Let the queue deliver an event as often as the handler has attempts."""
        most = limits.max_attempts
        if self._inlet is not None and most is not None and most > self.config.max_receives:
            self._inlet.allow(most)

    def on_any(self, handler: Handler) -> Handler:
        """Call `handler` for every event that can be read, after those of its type.

        Raises:
            ConfigurationError: The bus has an inbox, or handlers of its own kind.
        """
        self._check_process()
        if self._inbox is not None or not isinstance(self._local, InProcessEventBus):
            raise ConfigurationError(
                "handler: a handler for every event needs a bus without an inbox and with its own handlers",
                field="handler",
                remedy="Subscribe it to each type that it handles.",
            )
        with self._lifecycle:
            self._local.on_any(handler)
            if self._receiver is not None and self._receiver.is_running:
                self._admit()
        return handler

    def _admit(self) -> None:
        """Let the group receive the types that have handlers here."""
        if self._inlet is None:
            return
        types = self._local.types if isinstance(self._local, InProcessEventBus) else None
        names = None if types is None else frozenset(n for each in types for n in self._registry.names_of(each))
        if names != self._admitted and (names is None or names):
            self._inlet.admit(names)
            self._admitted = names

    def unsubscribe(self, event_type: type[object], handler: EventHandler) -> bool:
        """Remove one subscription of `handler` to `event_type`; return whether there was one."""
        self._check_process()
        return self._local.unsubscribe(event_type, handler)

    def publish(self, event: object, *, key: str | None = None) -> PublishResult:
        """Run the handlers of this process, then send the event; both outcomes are in the result.

        Args:
            event: An instance of a class with `@event`, or of a dataclass.
            key: What orders it on FIFO: events of one key stay in order.
        """
        self._check_process()
        return self._publisher.publish(event, key)

    def publish_many(self, events: Iterable[object]) -> list[PublishResult]:
        """Publish `events` in order, ten to a request; one result for each, and no failure stops the rest."""
        self._check_process()
        return self._publisher.publish_many(events)

    async def apublish(self, event: object, *, key: str | None = None) -> PublishResult:
        """Publish `event` under `key` without blocking the loop: async handlers run on it, all else in threads."""
        self._check_process()
        return await self._publisher.apublish(event, key)

    async def apublish_many(self, events: Iterable[object]) -> list[PublishResult]:
        """Publish `events` in order, ten to a request, without blocking the loop; one result for each."""
        return await in_thread(self.publish_many, list(events))

    async def arun(self, stop: asyncio.Event | None = None) -> None:
        """Receive until `stop` is set or the task is cancelled; async handlers run on this loop."""
        stopping = asyncio.Event() if stop is None else stop
        self.start_receiver()
        try:
            await stopping.wait()
        finally:
            await asyncio.shield(in_thread(self.stop_receiver))

    def start_receiver(self) -> None:
        """Receive on another thread; everything that is published after this returns is received."""
        self._check_process()
        receiver = self._receiving()
        with self._lifecycle:
            self._check_open()
            if receiver.is_running:
                raise RuntimeError("the receiver is already started; stop it first")
            self._open(receiver)
            # If a handler of `receive_once` starts the receiver, its events do not belong to that `receive_once`.
            token = _handled.set(None)
            try:
                receiver.start()
            finally:
                _handled.reset(token)

    def stop_receiver(self, *, timeout: float = 5.0) -> None:
        """Start no further handler, give back all other messages, and return within `timeout` seconds.

        Stopping twice changes nothing.
        """
        self._check_process()
        # A bad timeout is refused before anything is stopped.
        check(timeout, _Timeout, "timeout", remedy="Give the seconds that stopping may take.")
        if self._receiver is not None:
            self._receiver.stop(timeout)

    def receive_once(self) -> list[Any]:
        """Poll once, handle what came, and return the events that were handled without error."""
        self._check_process()
        receiver = self._receiving()
        with self._lifecycle:
            self._check_open()
            self._open(receiver)
        handled: list[Any] = []
        token = _handled.set(handled)
        try:
            receiver.run_once(wait=self.config.wait_time_seconds)
        except PostroadError as error:
            raise error if isinstance(error, TransportError) else TransportError(str(error)) from error
        finally:
            _handled.reset(token)
        return handled

    def health(self) -> BusHealth:
        """Return the state of the bus and its counters."""
        receiver = self._receiver
        return BusHealth(
            running=receiver is not None and receiver.is_running,
            in_flight=0 if receiver is None else receiver.in_flight,
            publish_breaker="closed" if self._publish_breaker is None else self._publish_breaker.state,
            receive_breaker="closed" if receiver is None or receiver.breaker is None else receiver.breaker.state,
            **self._telemetry.health(),
        )

    def close(self) -> None:
        """Stop, give back held messages, and remove this process's own queue. Closing twice changes nothing."""
        if os.getpid() != self._pid:
            return
        with self._lifecycle:
            if self._closed:
                return
            self._closed = True
        self.stop_receiver()
        if self._inlet is not None:
            self._inlet.close()
        self._sender.close()
        # The connection closes after a poll in progress has given back its messages and running handlers have ended.
        if self._receiver is None:
            self._outlet.close()
        else:
            self._receiver.when_idle(self._disconnect)

    async def aclose(self) -> None:
        """Close without blocking the loop, so that handlers on it can end meanwhile."""
        await in_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _receiver_for(
        self,
        inlet: Inlet,
        dispatch: Dispatch,
        dead_letters: DeadLetters | None,
        chores: Sequence[Chore],
        breaker: CircuitBreakerConfig | None,
    ) -> Receiver:
        config, local = self.config, self._local if isinstance(self._local, InProcessEventBus) else None
        return Receiver(
            lambda: inlet.source,
            dispatch.decide,
            concurrency=config.concurrency,
            batch=config.max_messages_per_poll,
            wait=config.wait_time_seconds,
            visibility=config.visibility_timeout_seconds,
            retry_delays=config.retry_delays_seconds,
            max_receives=dispatch.max_receives,
            dead_letters=NO_DEAD_LETTERS if dead_letters is None else dead_letters,
            breaker=breaker,
            name=self.name,
            clock=self._clock,
            hooks=Hooks(
                observe=self._observe,
                ready=self._check_inbox,
                adecide=dispatch.adecide,
                on_loop=(lambda: local.has_async_handlers) if local is not None else (lambda: False),
                loop_thread=None if local is None else local.loop_thread,
                reopen=self._reopen,
                chores=chores,
                longest=config.heartbeat_max_seconds,
                idle_pause=config.poll_interval_seconds,
                joins=False,
            ),
        )

    def _check_inbox(self) -> None:
        """Raise while the database of the inbox cannot be used: receiving would only use up attempts."""
        if self._inbox is not None:
            self._inbox.check(self._receiving().complete)

    def _reopen(self, lost: Queue) -> bool:
        """Make an own queue again that was removed, and report the gap."""
        if self._inlet is None:
            return False
        try:
            reopened = self._inlet.reopen(lost)
        except PostroadError:
            return False
        if reopened:
            self._telemetry.count("gaps")
            self._telemetry.log("bus_gap", queue=self._inlet.source.name)
        return reopened

    def _observe(self, what: str, delivery: Delivery | None, /, **fields: Any) -> None:
        about = fields.get("about")
        if not isinstance(about, Handled):
            self._telemetry.observe(what, delivery, None, **fields)
            return
        collected = _handled.get() if what == "acked" and fields["label"] is None else None
        if collected is not None:
            collected.append(about.event)
        self._telemetry.observe(what, delivery, about.envelope, about.handler, **fields)

    def _receiving(self) -> Receiver:
        if self._receiver is None:
            raise ConfigurationError(
                f"queue_url: the bus {self.name!r} has no queue to receive from",
                field="queue_url",
                remedy="Give queue_url, or only publish.",
            )
        return self._receiver

    def _open(self, receiver: Receiver) -> None:
        if self._inlet is not None and not self._opened:
            self._inlet.open()
            self._opened = True
        for limits in tuple(self._limits.values()):
            self._allow(limits)
        self._admit()
        receiver.keep_alive(self)

    def _disconnect(self) -> None:
        if self._receiver is not None:
            self._receiver.flush()
        self._outlet.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the bus is closed; make another one")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ConfigurationError("this bus was made before a fork", remedy="Make a bus of its own in the child.")
