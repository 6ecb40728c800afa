"""The port of agents. A store implements these three Protocols; nothing above it knows what is behind them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

import msgspec

from postroad.agents.model import Accept, Deleted, EventDelivery, LaneStats, Order, Subscription
from postroad.agents.stream import Rejected, StreamEvent
from postroad.engine import Listener
from postroad.errors import AgentDeleted, AgentExists
from postroad.queues import PeekedMessage, Queue

Mover = Literal["runner", "functions", "any"]
"""Who moves events from the stream to the agents' queues: a runner, functions of AWS, or either."""


class AgentRecord(msgspec.Struct, frozen=True):
    """One agent as it is stored."""

    agent_id: str
    created_at: str
    order: Order
    accept: Accept
    token_hash: str | None
    queue_url: str | None = None
    former_hash: str | None = None
    former_until: float = 0.0
    """Until when the token before this one is valid as well, in seconds since 1970."""


class NewAgent(msgspec.Struct, frozen=True):
    """An agent to add."""

    agent_id: str
    created_at: str
    order: Order
    accept: Accept
    token_hash: str
    principal_arn: str | None = None


def taken(agent_id: str, *, deleted: bool) -> AgentDeleted | AgentExists:
    """Return the error for an id that cannot be registered."""
    if deleted:
        return AgentDeleted(f'agent "{agent_id}" was deleted; its id is never given again', field="agentId")
    return AgentExists(f'agent "{agent_id}" exists', field="agentId")


class FanOut(NamedTuple):
    """The outcome of a fan-out: rows written, rows of them that need no further release, and events that failed.

    `rejected` counts the rows that will never be accepted and were put in the queue of rejects.
    """

    written: int
    released: int = 0
    rejected: int = 0
    failed: Sequence[StreamEvent] = ()


class Registry(Protocol):
    """The agents."""

    def add(self, agents: Sequence[NewAgent]) -> list[str | None]:
        """Add all agents and return the URLs of their queues, or raise `AgentExists` or `AgentDeleted` and add none."""
        ...

    def get(self, agent_id: str) -> AgentRecord | None:
        """Return the agent, or None if it is unknown, being deleted or deleted."""
        ...

    def page(self, limit: int, after: str | None) -> list[AgentRecord]:
        """Return agents behind the id `after`, by id or in an order of the store's own."""
        ...

    def known(self, agent_ids: Collection[str]) -> set[str]:
        """Return those of the ids that are registered."""
        ...

    def set_token(self, agent_id: str, token_hash: str, *, former_until: float | None) -> bool:
        """Give the agent a new token; the current one is valid until `former_until`, or no longer if that is None."""
        ...

    def delete(self, agent_id: str) -> Deleted:
        """Remove the agent and leave a tombstone; a repeat after a crash goes on. Unknown: `AgentNotFound`."""
        ...


class Subscriptions(Protocol):
    """Who listens to whom, who may, and what is paused."""

    def add(
        self, pairs: Sequence[tuple[str, str]], *, validate: bool, event_types: tuple[str, ...] | None = None
    ) -> int:
        """Subscribe each (listener, producer) to these types, or to all, and return how many pairs are new."""
        ...

    def remove(self, listener_id: str, producer_id: str, *, discard: bool) -> bool:
        """End a subscription; with `discard`, remove its waiting events too."""
        ...

    def page(
        self, limit: int, after: str | None, *, listener_id: str | None = None, producer_id: str | None = None
    ) -> list[Subscription]:
        """Return subscriptions of one listener or to one producer, behind the other side's id `after`."""
        ...

    def grant(self, producer_id: str, listener_id: str) -> None:
        """Allow the listener to subscribe to the producer."""
        ...

    def revoke(self, producer_id: str, listener_id: str) -> None:
        """Take the grant back."""
        ...

    def is_granted(self, producer_id: str, listener_id: str) -> bool:
        """Return whether the producer granted it."""
        ...

    def pause(self, listener_id: str, producer_id: str) -> bool:
        """Withhold this producer's events; False without such a subscription."""
        ...

    def resume(self, listener_id: str, producer_id: str) -> bool:
        """Deliver what was withheld before anything newer; False without such a subscription."""
        ...

    def replay(self, listener_id: str, producer_id: str, since_ms: int) -> int | None:
        """Deliver this producer's events again from then on; return how many, or None without a subscription."""
        ...


class AgentStore(Protocol):
    """Agents, their events and their queues in one place."""

    @property
    def runs_here(self) -> bool:
        """Whether a runner of this package fills the queues."""
        ...

    @property
    def registry(self) -> Registry: ...

    @property
    def subscriptions(self) -> Subscriptions: ...

    def provision(self) -> None:
        """Create the tables, streams and queues that are missing."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Commit rows and positions of the stream together if the store can do that."""
        ...

    def fan_out(self, events: Sequence[StreamEvent]) -> FanOut:
        """Write one row for each event and subscriber; the same events again change nothing."""
        ...

    def reject(self, rejected: Sequence[Rejected]) -> Sequence[Rejected]:
        """Put records that can never be handled into the queue of rejects; return those that could not be put."""
        ...

    def release_due(self) -> int:
        """Release what was held back long enough; return how many rows."""
        ...

    def next_due_seconds(self) -> float | None:
        """Return how long until something held back is due; None when nothing is held back."""
        ...

    def sweep(self) -> None:
        """Remove what outlived its retention, unless that was done a moment ago."""
        ...

    def listen(self) -> AbstractContextManager[Listener] | None:
        """Return a listener that is woken when an event is put on the stream; None if the stream must be polled."""
        ...

    def queue(self, agent_id: str) -> Queue:
        """Return the agent's queue, which nobody sends to."""
        ...

    def stats(self, agent_id: str) -> LaneStats:
        """Count what is in the agent's queue."""
        ...

    def dead_letters(self, agent_id: str, limit: int, after: str | None = None) -> list[PeekedMessage]:
        """Return the agent's dead letters, oldest first."""
        ...

    def deliveries(self, name: str) -> Sequence[EventDelivery]:
        """Return how far the events, or the message, with this id are; nothing if the store cannot know."""
        ...

    def redrive(self, agent_id: str, limit: int | None) -> int:
        """Put dead letters behind what waits; return how many."""
        ...
