"""What the publisher works with: rows and markers, the agents and subscriptions they are for, and its two ports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from postroad.agents.model import Order, PairState
from postroad.agents.port import Rejected
from postroad.errors import PostroadError
from postroad.queues import OutgoingMessage


class Row(msgspec.Struct, frozen=True):
    """One event for one subscriber, as it is kept; `key` finds it and sorts it by time."""

    subscriber_id: str
    key: str
    producer_id: str
    event_id: str
    event_type: str
    occurred_ms: int
    data: bytes
    sequence: str
    arrived_ms: int
    traceparent: str | None = None
    replay_id: str | None = None


class Held(msgspec.Struct, frozen=True):
    """From where on nothing of a pair was sent; `notes` counts how often that was noted."""

    sequence: str
    key: str
    notes: int = 1


class Replay(msgspec.Struct, frozen=True):
    """What somebody wants again: rows since a time, up to the newest that was there when it was asked for."""

    replay_id: str
    since_ms: int
    until: str


class Pair(msgspec.Struct, frozen=True):
    """A subscription as the publisher needs it."""

    state: PairState
    held: Held | None = None
    replay: Replay | None = None


class Marker(msgspec.Struct, frozen=True):
    """A row that makes the publisher look at a pair again; `held` is what a subscription left when it ended."""

    subscriber_id: str
    key: str
    producer_id: str
    held: Held | None = None


class Recipient(msgspec.Struct, frozen=True):
    """An agent as the publisher needs it; `newest_ms` is the youngest timestamp it was sent."""

    agent_id: str
    queue_url: str
    order: Order
    newest_ms: int = -1
    discarded: Mapping[str, int] = {}
    """Up to which sequence nothing of a producer is wanted any more."""

    def wants(self, row: Row | Marker) -> bool:
        """Whether the row was not discarded."""
        return isinstance(row, Marker) or int(row.sequence) > self.discarded.get(row.producer_id, -1)


class ReleaseStore(Protocol):
    """What the publisher reads and notes down."""

    def recipients(self, agent_ids: Sequence[str]) -> Mapping[str, Recipient]:
        """Those of the agents that are there."""
        ...

    def pairs(self, subscriber_id: str, producer_ids: Collection[str]) -> Mapping[str, Pair]:
        """The agent's subscriptions to these producers, read consistently, and what else is held as far as known."""
        ...

    def hold(self, row: Row) -> bool:
        """Note that nothing of the row's pair was sent from this row on, unless an earlier one is noted.

        What is not paused then drains. False when there is no such pair any more.
        """
        ...

    def advance(self, row: Row, pair: Pair) -> None:
        """Note that of what the pair held everything before this row was sent, unless more was noted meanwhile."""
        ...

    def drain_later(self, subscriber_id: str, producer_id: str) -> None:
        """Let the pair drain, unless it is paused."""
        ...

    def held(self, subscriber_id: str, producer_id: str, held: Held) -> Iterable[Row]:
        """The rows of a pair from where it is held, in the stream's sequence."""
        ...

    def replayed(self, subscriber_id: str, producer_id: str, replay: Replay) -> Iterable[Row]:
        """The rows that a replay asks for, oldest first."""
        ...

    def settle(self, subscriber_id: str, producer_id: str, pair: Pair) -> None:
        """Note that nothing is held or replayed of the pair any more, unless more was noted meanwhile."""
        ...

    def remember_newest(self, subscriber_id: str, newest_ms: int) -> None:
        """Note the youngest timestamp that the agent was sent."""
        ...

    def reject(self, rejected: Sequence[Rejected]) -> Sequence[Rejected]:
        """Put rows that no queue will ever take where they are seen; those that could not be put are returned."""
        ...


class LaneSender(Protocol):
    """Sends to lanes."""

    def send(self, recipient: Recipient, messages: Sequence[OutgoingMessage]) -> list[PostroadError | None]:
        """Send at most ten messages, of as many groups; what became of each."""
        ...


@dataclass(slots=True)
class ReleaseResult:
    """What became of rows. `failed` are the keys of those that could be neither sent nor noted down."""

    sent: int = 0
    dropped: int = 0
    rejected: int = 0
    held: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: ReleaseResult) -> None:
        self.sent += other.sent
        self.dropped += other.dropped
        self.rejected += other.rejected
        self.held += other.held
        self.failed += other.failed
