"""One agent as its own program uses it: handlers for what it receives, and publishing under its id."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from postroad.agents.handlers import AgentProgram, run
from postroad.agents.model import AgentEvent, AgentPublishResult
from postroad.receiving import in_thread

if TYPE_CHECKING:
    from postroad.agents.agents import Agents


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

    def run(self, stop: threading.Event | None = None, *, concurrency: int = 1) -> None:
        """Call the handlers until `stop` is set or SIGTERM comes; then let running ones end and give back the rest.

        On the embedded engine this also moves events from the stream to the agents' queues, as `postroad up` does.

        Args:
            stop: Another thread sets it to end the run.
            concurrency: From how many producers events are handled at the same time, 1 to 1,000.

        Raises:
            ConfigurationError: The agent has no handlers, or `concurrency` is out of range.
            AgentNotFound: The agent is not registered.
        """
        receiver = self._receiver(self._agents.queue(self.agent_id), concurrency=concurrency)
        stop_moving = self._start_moving()
        try:
            run(receiver, stop)
        finally:
            stop_moving()

    async def arun(self, stop: asyncio.Event | None = None, *, concurrency: int = 1) -> None:
        """Run as `run` does, with `concurrency`, until `stop` is set or the task is cancelled.

        Async handlers run on this event loop.
        """
        queue = await in_thread(self._agents.queue, self.agent_id)
        receiver = self._receiver(queue, concurrency=concurrency)
        stop_moving = self._start_moving()
        try:
            await receiver.arun(stop)
        finally:
            await asyncio.shield(in_thread(stop_moving))

    def _start_moving(self) -> Callable[[], None]:
        """Move events to the queues, where a runner of this package does that; return what stops it."""
        if not self._agents.runs_here:
            return lambda: None
        stop = threading.Event()
        moving = threading.Thread(target=self._agents.runner().run, args=(stop,), name="agents-runner", daemon=True)
        moving.start()

        def end() -> None:
            stop.set()
            moving.join()

        return end
