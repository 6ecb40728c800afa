"""Handlers of an agent's events: which events each one takes, and what becomes of an event that one of them fails."""

from __future__ import annotations

import abc
import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import msgspec

from postroad import receiving
from postroad.agents.model import AgentEvent, AgentPublishResult, check_agent_id, checked_event_type, takes_type
from postroad.agents.runner import beside
from postroad.errors import AgentNotFound, ConfigurationError, InvalidInput, PostroadError, describe
from postroad.queues import Delivery, Queue
from postroad.receiving import Ack, Hooks, LoopThread, Outcome, Receiver, Reject, completed, in_thread, settled
from postroad.signals import stopped_by_sigterm
from postroad.telemetry import get_logger, tracing

if TYPE_CHECKING:
    from postroad.agents.agents import Agents


class ReceivedEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An event as a handler gets it.

    Attributes:
        agent_id: The agent that published it.
        event_type: Its type.
        data: Its content, a JSON object.
        event_id: Its id, which is the same however often it is delivered.
        timestamp: When it happened, in ISO 8601 and UTC.
        sequence_number: Its position on the stream; it grows from one event of an agent to the next.
        subscriber_id: The agent that receives it.
        late: Whether a younger event of another agent was delivered before it.
        replay: Whether it is delivered again because somebody asked for a replay.
        traceparent: The trace that it belongs to.
        receive_count: How often it was received, this time included.
    """

    agent_id: str
    event_type: str
    data: dict[str, Any]
    event_id: str
    timestamp: str
    sequence_number: str
    subscriber_id: str
    late: bool = False
    replay: bool = False
    traceparent: str | None = None
    receive_count: int = 1


Handler = Callable[[ReceivedEvent], Any]
F = TypeVar("F", bound=Handler)
_event = msgspec.json.Decoder(ReceivedEvent)


@dataclass(frozen=True, slots=True)
class _Registered:
    function: Handler
    producer: str | None
    event_type: str | None

    def takes(self, event: ReceivedEvent) -> bool:
        types = None if self.event_type is None else (self.event_type,)
        return self.producer in (None, event.agent_id) and takes_type(types, event.event_type)


@dataclass(slots=True)
class _Progress:
    """The handlers that are done with a message, and those that no retry would help."""

    done: set[Hashable] = field(default_factory=set)
    given_up: dict[Hashable, Reject] = field(default_factory=dict)


class AgentProgram(abc.ABC):
    """The program of one agent: the part that is the same with a store and over HTTP."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self._registered: list[_Registered] = []
        self._lock = threading.Lock()
        self._loop_thread = LoopThread()
        self._progress: dict[str, _Progress] = {}
        self._receivers: WeakSet[Receiver] = WeakSet()
        self._refusal: PostroadError | None = None

    def on(self, producer: str | None = None, event_type: str | None = None) -> Callable[[F], F]:
        """Return a decorator that registers a handler, a function of one argument, the `ReceivedEvent`.

        Args:
            producer: Only events of this agent; by default those of all agents that this one is subscribed to.
            event_type: Only events of this type, exact or `prefix.*`; by default of all types.

        Raises:
            InvalidName: `producer` is not an agent id.
            InvalidInput: `event_type` is not a type, or the handler cannot be called with an event.
        """
        if callable(producer):
            remedy = "Put parentheses behind the name of the decorator."
            raise InvalidInput("producer: is a function, not an agent id", field="producer", remedy=remedy)
        if producer is not None:
            check_agent_id(producer, field="producer")
        if event_type is not None:
            checked_event_type(event_type)

        def register(handler: F) -> F:
            _check_handler(handler)
            self._registered.append(_Registered(handler, producer, event_type))
            return handler

        return register

    def run(self, stop: threading.Event | None = None, *, concurrency: int = 1) -> None:
        """Call the handlers until `stop` is set or SIGTERM comes; then let running ones end and give back the rest.

        With the embedded engine this also moves events from the stream to the agents' queues, as `postroad up` does.

        Args:
            stop: Another thread sets it to end the run.
            concurrency: How many producers' events are handled at the same time, 1 to 1,000.

        Raises:
            ConfigurationError: The agent has no handlers, or `concurrency` is out of range.
            AgentNotFound: The agent is not registered, or was deleted.
            Unauthorized: Over HTTP, the token is not valid, or no longer valid.
        """
        stopping = threading.Event() if stop is None else stop
        receiver = self._open(concurrency)
        with stopped_by_sigterm(stopping):
            receiver.run(stopping)
        if self._refusal is not None:
            raise self._refusal

    async def arun(self, stop: asyncio.Event | None = None, *, concurrency: int = 1) -> None:
        """Run as `run` does, with `concurrency`, until `stop` is set or the task is cancelled.

        Async handlers run on this event loop.
        """
        receiver = await in_thread(self._open, concurrency)
        await receiver.arun(stop)
        if self._refusal is not None:
            raise self._refusal

    @abc.abstractmethod
    def _open(self, concurrency: int) -> Receiver:
        """Return a receiver of the agent's queue."""

    def _refuse(self, error: PostroadError) -> None:
        """End all runs with this error: the agent can never receive again."""
        self._refusal = error
        for receiver in self._receivers:
            receiver.halt()

    def _receiver(self, queue: Queue, concurrency: int, hooks: Hooks) -> Receiver:
        """Return the receiver of the queue; raise `ConfigurationError` if there is no handler."""
        if not self._registered:
            remedy = "Register a handler before the agent runs."
            raise ConfigurationError("handlers: the agent has none", field="handlers", remedy=remedy)
        waits = any(receiving.is_async(each.function) for each in self._registered)
        decide = self._handle if waits else lambda delivery: completed(self._handle(delivery, in_threads=False))
        receiver = Receiver(queue, decide, concurrency=concurrency, hooks=hooks)
        self._receivers.add(receiver)
        self._refusal = None
        return receiver

    async def _handle(self, delivery: Delivery, *, in_threads: bool = True) -> Outcome:
        """Call each handler that takes the event and has not handled it yet."""
        try:
            event = msgspec.structs.replace(_event.decode(delivery.body), receive_count=delivery.receive_count)
        except msgspec.MsgspecError as error:
            return Reject("invalid", describe(error))
        wanted = {receiving.key_of(each.function): each.function for each in self._registered if each.takes(event)}
        if not wanted:
            get_logger("agents").info("agent_event_unhandled", agent=event.subscriber_id, type=event.event_type)
            return Ack(label="unhandled")
        # What is replayed was handled before, and is handled again.
        progress = _Progress() if event.replay else self._progress_of(delivery.message_id)
        left = {key: handler for key, handler in wanted.items() if key not in progress.done}
        if not left:
            return Ack(label="duplicate")
        failures: list[Outcome] = []
        for key, handler in left.items():
            if key in progress.given_up:
                continue
            try:
                with tracing.handling_by(
                    handler, event.traceparent, queue=event.subscriber_id, message_id=event.event_id
                ):
                    await self._call(handler, event, in_threads=in_threads)
                progress.done.add(key)
            except Exception as error:
                receiving.log_traceback(error, handler=receiving.name_of(handler))
                outcome = replace(receiving.outcome_of(error), about=receiving.name_of(handler))
                if isinstance(outcome, Reject):
                    progress.given_up[key] = outcome
                else:
                    failures.append(outcome)
        # Retry while a handler may still succeed; then reject what one of them gave up.
        outcomes = [*failures, *progress.given_up.values(), Ack()]
        if not failures:
            # After a redrive they are called again.
            progress.given_up.clear()
        return outcomes[0]

    async def _call(self, handler: Handler, event: ReceivedEvent, *, in_threads: bool) -> None:
        if in_threads:
            # A plain function must not hold up the async handlers beside it.
            await settled(handler(event) if receiving.is_async(handler) else await in_thread(handler, event))
        elif isinstance(returned := handler(event), Awaitable):
            # A plain function that returned a coroutine: nobody has a loop here.
            self._loop_thread.run(returned)

    def _progress_of(self, message_id: str) -> _Progress:
        with self._lock:
            progress = self._progress.pop(message_id, None) or _Progress()
            self._progress[message_id] = progress
            while len(self._progress) > 10_000:
                del self._progress[next(iter(self._progress))]
        return progress

    def publish(
        self,
        event_type: str,
        data: dict[str, Any],
        *,
        timestamp: str | datetime | None = None,
        event_id: str | None = None,
    ) -> AgentPublishResult:
        """Publish an event as this agent; it is durable when this returns.

        Args:
            event_type: Its type, 1 to 256 printable characters.
            data: Its content, a JSON object.
            timestamp: When it happened; by default now.
            event_id: Its id, by which a repeat is recognised; by default a new one.

        Over HTTP a call whose answer was lost is repeated under the same event id, so that listeners get one event.

        Raises:
            InvalidEvent: A field of the event is not valid.
            AgentNotFound: This agent is not registered.
            Unauthorized: Over HTTP, the token is not valid.
            RateLimited: Over HTTP, the agent publishes too much, for longer than `timeout`.
            TransportError: The stream did not accept it, or the server did not answer within `timeout`. `Unavailable`
                means that the event was not published, `OutcomeUnknown` that it may have been: publish it again under
                the same `event_id`.
        """
        return self._publish(AgentEvent(self.agent_id, event_type, data, timestamp, event_id))

    async def apublish(
        self,
        event_type: str,
        data: dict[str, Any],
        *,
        timestamp: str | datetime | None = None,
        event_id: str | None = None,
    ) -> AgentPublishResult:
        """Publish as `publish` does, without blocking the event loop. `AgentEvent` explains the arguments."""
        return await in_thread(lambda: self.publish(event_type, data, timestamp=timestamp, event_id=event_id))

    @abc.abstractmethod
    def _publish(self, event: AgentEvent) -> AgentPublishResult: ...


class AgentHandle(AgentProgram):
    """One agent of a backend; `agents.agent(agent_id)` makes it. `postroad.AgentClient` is the same over HTTP.

    Handlers may be plain functions or `async def`. An event goes to every handler that takes it. One that raises is
    called again later, for the same event and before later ones of its producer; after `max_receives` the event becomes
    a dead letter. `NonRetryable` makes it one at once, `Retryable` is retried. An event that no handler takes is acked.

    Args:
        agents: The agents of the backend.
        agent_id: The agent.

    Example:
        agent = backend.agents().agent("bob")

        @agent.on(producer="ann", event_type="order.*")
        def ship(event: ReceivedEvent) -> None:
            agent.publish("parcel.sent", {"order": event.data["id"]})

        agent.run()
    """

    def __init__(self, agents: Agents, agent_id: str) -> None:
        super().__init__(agent_id)
        self._agents = agents

    def _publish(self, event: AgentEvent) -> AgentPublishResult:
        [outcome] = self._agents.publish_each([event])
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def subscribe(self, producer_id: str, *, event_types: Sequence[str] | None = None) -> bool:
        """Subscribe this agent to `producer_id`: to `event_types` or to all; return whether that is new."""
        return self._agents.subscribe(self.agent_id, producer_id, event_types=event_types)

    def unsubscribe(self, producer_id: str, *, discard: bool = False) -> bool:
        """End the subscription to `producer_id`; `discard` also removes its waiting events. False if there was none."""
        return self._agents.unsubscribe(self.agent_id, producer_id, discard=discard)

    def grant(self, listener_id: str) -> None:
        """Allow `listener_id` to subscribe to this agent with its own token."""
        self._agents.grant(self.agent_id, listener_id)

    def _open(self, concurrency: int) -> Receiver:
        hooks = Hooks(during=self._moving, reopen=self._check_that_it_exists)
        return self._receiver(self._agents.queue(self.agent_id), concurrency, hooks)

    def _check_that_it_exists(self, _: Queue) -> bool:
        """End the run if the agent was deleted, and return False: it has no other queue."""
        try:
            self._agents.get(self.agent_id)
        except AgentNotFound as error:
            self._refuse(error)
        return False

    def _moving(self) -> AbstractContextManager[None]:
        """Move events from the stream to the queues, where a runner of this package does that."""
        runs_here = self._agents.runs_here
        return beside(self._agents.runner().run, name="agents-runner") if runs_here else nullcontext()


def _check_handler(handler: object) -> None:
    remedy = "Write a function of one argument, the event."
    if not callable(handler):
        raise InvalidInput(f"handler: {repr(handler)[:60]} is not a function", field="handler", remedy=remedy)
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        text = f"handler: {name} is a generator, whose body nobody would run"
        raise InvalidInput(text, field="handler", remedy="Write a function without `yield`.")
    try:
        inspect.signature(handler).bind(None)
    except TypeError as error:
        text = f"handler: {name} cannot be called with an event: {error}"
        raise InvalidInput(text, field="handler", remedy=remedy) from error
    except ValueError:
        return  # A function of C may hide its arguments.
