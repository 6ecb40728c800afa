"""One agent as its own program uses it: handlers for what it receives, and publishing under its id."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from postroad.agents.handlers import AgentProgram
from postroad.agents.model import AgentEvent, AgentPublishResult
from postroad.agents.runner import beside
from postroad.errors import AgentNotFound
from postroad.queues import Queue
from postroad.receiving import Hooks, Receiver

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
