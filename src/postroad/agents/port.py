"""What agents are kept in. An adapter has these four halves; the functions above know nothing else of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from postroad.agents.model import Accept, Deleted, LaneStats, Order, Subscription
from postroad.events import sendable
from postroad.queues import PeekedMessage, Queue

Mover = Literal["runner", "functions", "any"]
"""Who is to move events from the stream into the lanes: a runner, functions of AWS, or either."""
_LONGEST_REASON: Final = 1_000


class AgentRecord(msgspec.Struct, frozen=True):
    """One agent as it is kept."""

    agent_id: str
    created_at: str
    order: Order
    accept: Accept
    token_hash: str | None
    queue_url: str | None = None
    former_hash: str | None = None
    former_until: float = 0.0
    """Until when the token before this one opens as well, in seconds since 1970."""


class NewAgent(msgspec.Struct, frozen=True):
    """An agent to keep."""

    agent_id: str
    created_at: str
    order: Order
    accept: Accept
    token_hash: str
    principal_arn: str | None = None


class StreamEvent(msgspec.Struct, frozen=True):
    """An event as it was read from the stream; `data` is JSON as it was published."""

    producer_id: str
    event_id: str
    event_type: str
    occurred_ms: int
    data: bytes
    shard: str
    sequence: str
    arrived_at: datetime
    traceparent: str | None = None


class Rejected(msgspec.Struct, frozen=True):
    """A record that can never be handled, and why."""

    reason: str
    shardId: str
    sequenceNumber: str
    partitionKey: str
    data: str

    def to_json(self) -> bytes:
        """The record as the body of a message."""
        return sendable(msgspec.json.encode(msgspec.structs.replace(self, reason=self.reason[:_LONGEST_REASON])))


class FanOut(NamedTuple):
    """What became of events: rows written, those of them that need no further release, and the events that failed.

    `rejected` counts the rows that will never be taken and were put aside.
    """

    written: int
    released: int = 0
    rejected: int = 0
    failed: Sequence[StreamEvent] = ()


class Registry(Protocol):
    """The agents."""

    def add(self, agents: Sequence[NewAgent]) -> list[str | None]:
        """Keep new agents and give their queues' URLs; `AgentExists` or `AgentDeleted` keeps none of them."""
        ...

    def get(self, agent_id: str) -> AgentRecord | None:
        """The agent, unless it is unknown, being deleted or deleted."""
        ...

    def page(self, limit: int, after: str | None) -> list[AgentRecord]:
        """Agents behind the id `after`, by id or in an order of the store's own."""
        ...

    def known(self, agent_ids: Collection[str]) -> set[str]:
        """Which of these are registered."""
        ...

    def set_token(self, agent_id: str, token_hash: str, *, former_until: float) -> bool:
        """Give the agent another token; the one before opens as well until then."""
        ...

    def replace_token(self, agent_id: str, token_hash: str) -> bool:
        """Give the agent another token in the place of its newest; the one before that stays as it is."""
        ...

    def delete(self, agent_id: str) -> Deleted:
        """Remove the agent and leave a tombstone; repeated after a crash it goes on. Unknown: `AgentNotFound`."""
        ...


class Subscriptions(Protocol):
    """Who listens to whom, and who may."""

    def add(self, pairs: Sequence[tuple[str, str]], *, validate: bool) -> int:
        """Subscribe each (listener, producer); how many are new."""
        ...

    def remove(self, listener_id: str, producer_id: str, *, discard: bool) -> bool:
        """End a subscription; with `discard` what waits of it goes too."""
        ...

    def get(self, listener_id: str, producer_id: str) -> Subscription | None:
        """One subscription."""
        ...

    def page(
        self, *, listener_id: str | None = None, producer_id: str | None = None, limit: int, after: str | None
    ) -> list[Subscription]:
        """Subscriptions of one listener or to one producer, behind the other side's id `after`."""
        ...

    def grant(self, producer_id: str, listener_id: str) -> None:
        """Let the listener subscribe to the producer."""
        ...

    def revoke(self, producer_id: str, listener_id: str) -> None:
        """Take the grant back."""
        ...

    def is_granted(self, producer_id: str, listener_id: str) -> bool:
        """Whether the producer granted it."""
        ...


class Lanes(Protocol):
    """What waits for each agent."""

    def queue(self, agent_id: str) -> Queue:
        """The agent's lane as a queue that nobody sends to."""
        ...

    def stats(self, agent_id: str) -> LaneStats:
        """Count the lane."""
        ...

    def dead_letters(self, agent_id: str, limit: int, after: str | None = None) -> list[PeekedMessage]:
        """Look at what failed too often, oldest first."""
        ...

    def redrive(self, agent_id: str, limit: int | None) -> int:
        """Put dead letters behind what waits; how many."""
        ...

    def pause(self, listener_id: str, producer_id: str) -> bool:
        """Withhold this producer's events; False without such a subscription."""
        ...

    def resume(self, listener_id: str, producer_id: str) -> bool:
        """Deliver what was withheld, before anything newer."""
        ...

    def replay(self, listener_id: str, producer_id: str, since_ms: int) -> int | None:
        """Deliver this producer's rows again from then on; how many, None without such a subscription."""
        ...


class EventStore(Protocol):
    """Where events become rows of their subscribers."""

    def fan_out(self, events: Sequence[StreamEvent]) -> FanOut:
        """Write one row for each event and subscriber; the same events again change nothing."""
        ...

    def reject(self, rejected: Sequence[Rejected]) -> Sequence[Rejected]:
        """Put records that can never be handled where they are seen; those that could not be put are returned."""
        ...


class Bell(Protocol):
    """Rung when something came; what was rung before `wait` counts."""

    def wait(self, timeout: float) -> bool: ...


class AgentStore(EventStore, Protocol):
    """Everything about agents in one place."""

    @property
    def runs_here(self) -> bool:
        """Whether a runner of ours fills the lanes."""
        ...

    @property
    def registry(self) -> Registry: ...

    @property
    def subscriptions(self) -> Subscriptions: ...

    @property
    def lanes(self) -> Lanes: ...

    def provision(self) -> None:
        """Make what is missing of tables, streams and queues."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Let rows and positions of the stream commit together where the store can do that."""
        ...

    def release_due(self) -> int:
        """Let what was held back for long enough into the lanes; how many rows."""
        ...

    def next_due_seconds(self) -> float | None:
        """How long until something held is due; None when nothing is held."""
        ...

    def sweep(self) -> None:
        """Remove what outlived its retention, unless that was done a moment ago."""
        ...

    def listen(self) -> AbstractContextManager[Bell] | None:
        """A bell that rings when something is put on the stream; None where somebody has to look."""
        ...
