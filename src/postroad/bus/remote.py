"""A bus that reaches other processes: one engine publishes and receives for all transports."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Annotated, Any, Self

from msgspec import Meta

from postroad import receiving
from postroad.arguments import check
from postroad.bus.config import BusConfig, Unhandled, checked_config
from postroad.bus.deduplication import Memory
from postroad.bus.dispatch import Dispatch, Handled, InboxHandlers, Wanted
from postroad.bus.endpoints import Inlet, Outlet
from postroad.bus.handlers import HandlingBus
from postroad.bus.local import E, EventBus, InProcessEventBus, PublishResult
from postroad.bus.publisher import Publisher
from postroad.bus.sender import Sender
from postroad.bus.telemetry import BusHealth, BusTelemetry
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, PostroadError, TransportError
from postroad.events import Codec, EventRegistry, default_registry
from postroad.queues import Delivery, Queue
from postroad.receiving import CircuitBreaker, CircuitBreakerConfig, DeadLetters, Hooks, Receiver
from postroad.settings import bus_variable

_handled: ContextVar[list[Any] | None] = ContextVar("postroad_receive_once", default=None)
"""Where `receive_once` collects the events that were handled."""
_Timeout = Annotated[float, Meta(ge=0, description="a number of seconds of 0 or more")]


class RemoteEventBus(HandlingBus):
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
        inbox: Runs handlers whose effects happen once.
    """

    def __init__(
        self,
        *,
        outlet: Outlet,
        inlet: Inlet | None,
        dead_letters: DeadLetters | None = None,
        config: BusConfig | None = None,
        local_bus: EventBus | None = None,
        registry: EventRegistry | None = None,
        clock: Clock | None = None,
        breaker: CircuitBreakerConfig | None = None,
        unhandled: Unhandled | None = None,
        wanted: Wanted | None = None,
        inbox: InboxHandlers | None = None,
    ) -> None:
        # A bus that was declared before it had a transport keeps its handlers.
        if "_local" not in vars(self):
            self._declare(inbox, local_bus)
        self.name, self.config = outlet.name, checked_config(config)
        self._clock = SYSTEM_CLOCK if clock is None else clock
        self._registry = default_registry if registry is None else registry
        if isinstance(self._local, InProcessEventBus):
            for each in self._local.subscribed:
                self._register(each, self._local.declared(each))
        variable = bus_variable("PUBLISHER_ID")
        self.publisher_id = self.config.publisher_id or (variable[1] if variable else str(uuid.uuid4()))
        self._outlet, self._inlet = outlet, inlet
        self._telemetry = BusTelemetry(outlet.name)
        self._memory = Memory(self.config, self._clock)
        self._publish_breaker = None if breaker is None else CircuitBreaker(breaker, self._clock.monotonic)
        codec = Codec(self._registry, clock=self._clock)
        self._sender = Sender(outlet, self.config, self._publish_breaker)
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
        if inlet is not None:
            dispatch = Dispatch(
                codec=codec,
                config=self.config,
                local=self._local,
                memory=self._memory,
                wanted=wanted,
                inlet=inlet,
                clock=self._clock,
                allows=allows,
                unhandled=self.config.unhandled if unhandled is None else unhandled,
                max_receives=None if dead_letters is None else self.config.max_receives,
                attempt=lambda delivery: self._receiving().attempt(delivery),
                telemetry=self._telemetry,
                inbox=self._inbox,
            )
            self._receiver = self._receiver_for(inlet, dispatch, dead_letters, breaker)

    @property
    def is_receiving_here(self) -> bool:
        """Whether the caller is a handler of this bus's receiver: nothing is received until it returns."""
        return self._receiver is not None and self._receiver.is_here

    def publish(self, event: E, *, key: str | None = None) -> PublishResult[E]:
        """Run the handlers of this process, then send the event; both outcomes are in the result.

        Args:
            event: An instance of a class with `@event`, or of a dataclass.
            key: What orders it on FIFO: events of one key stay in order.
        """
        self._check_process()
        return self._publisher.publish(event, key)

    def publish_many(self, events: Iterable[E]) -> list[PublishResult[E]]:
        """Publish `events` in order, ten to a request; one result for each, and no failure stops the rest."""
        self._check_process()
        return self._publisher.publish_many(events)

    async def apublish(self, event: E, *, key: str | None = None) -> PublishResult[E]:
        """Publish `event` under `key` without blocking the loop: async handlers run on it, all else in threads."""
        self._check_process()
        return await self._publisher.apublish(event, key)

    async def apublish_many(self, events: Iterable[E]) -> list[PublishResult[E]]:
        """Publish `events` in order, ten to a request, without blocking the loop; one result for each."""
        given = list(events)
        return await receiving.in_thread(lambda: self.publish_many(given))

    async def arun(self, stop: asyncio.Event | None = None) -> None:
        """Receive until `stop` is set or the task is cancelled; async handlers run on this loop."""
        self.start_receiver()
        try:
            await self._receiving().until(stop)
        finally:
            await asyncio.shield(receiving.in_thread(self.stop_receiver))

    def start_receiver(self) -> None:
        """Receive on another thread; everything that is published after this returns is received."""
        self._check_process()
        receiver = self._receiving()
        with self._lifecycle:
            self._check_open()
            if receiver.is_running:
                raise RuntimeError("the receiver is already started; stop it first")
            self._taken = None
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
        self._runs_for_loops = False
        for each in list(self._iterations):
            each.end()
        if self._receiver is not None:
            self._receiver.stop(timeout)

    def check_receiver(self) -> None:
        """Raise the error that ended the receiver's thread, if one did since its start."""
        if self._receiver is not None:
            self._receiver.check()

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
        if os.getpid() != self._pid or not self.is_bound:
            return
        with self._lifecycle:
            again, self._closed = self._closed, True
        # Also the second time: the first may have been on the loop of the handlers, and so have waited for none.
        self.stop_receiver()
        if again:
            return
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
        await receiving.in_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receiver_for(
        self, inlet: Inlet, dispatch: Dispatch, dead_letters: DeadLetters | None, breaker: CircuitBreakerConfig | None
    ) -> Receiver:
        config, local = self.config, self._local if isinstance(self._local, InProcessEventBus) else None
        return Receiver(
            inlet.queue,
            dispatch.decide,
            concurrency=config.concurrency,
            batch=config.max_messages_per_poll,
            wait=config.wait_time_seconds,
            visibility=config.visibility_timeout_seconds,
            retry_delays=config.retry_delays_seconds,
            max_receives=dispatch.max_receives,
            dead_letters=receiving.NO_DEAD_LETTERS if dead_letters is None else dead_letters,
            breaker=breaker,
            name=self.name,
            clock=self._clock,
            hooks=Hooks(
                observe=self._observe,
                ready=self._ready,
                adecide=dispatch.adecide,
                on_loop=(lambda: local.has_async_handlers) if local is not None else (lambda: False),
                loop_thread=None if local is None else local.loop_thread,
                reopen=self._reopen,
                chores=inlet.chores,
                longest=config.heartbeat_max_seconds,
                idle_pause=config.poll_interval_seconds,
                joins=False,
            ),
        )

    def _ready(self) -> None:
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
            self._telemetry.log("bus_gap", queue=self._inlet.queue().name)
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
            why = f"queue_url: the bus {self.name!r} has no queue to receive from"
            raise ConfigurationError(why, field="queue_url", remedy="Give queue_url, or only publish.")
        return self._receiver

    def _open(self, receiver: Receiver) -> None:
        if self._inlet is not None and not self._opened:
            self._inlet.open()
            self._opened = True
        self._take_types()
        receiver.keep_alive(self)

    def _disconnect(self) -> None:
        if self._receiver is not None:
            self._receiver.flush()
        self._outlet.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the bus is closed; make another one")
