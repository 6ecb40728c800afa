"""The publisher: rows of subscribers go to their lanes, each producer's in sequence, whatever fails on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from postroad.agents.merging import merged
from postroad.agents.messages import Message, dedup_id, encode
from postroad.agents.model import Order, PairState
from postroad.agents.rules import time_text
from postroad.clock import Clock
from postroad.errors import PostroadError
from postroad.queues import OutgoingMessage

MAX_ENTRIES: Final = 10
ATTEMPTS: Final = 3
_CONCURRENT: Final = 16
_BACKOFF_SECONDS: Final = 0.1


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


class Marker(msgspec.Struct, frozen=True):
    """A row that tells the publisher to deliver what was withheld, or everything since a time again."""

    subscriber_id: str
    key: str
    producer_id: str
    replay_id: str | None
    since_ms: int = 0


class Recipient(msgspec.Struct, frozen=True):
    """An agent as the publisher needs it; `newest_ms` is the youngest timestamp it was sent."""

    agent_id: str
    queue_url: str
    order: Order
    newest_ms: int = -1


class Pair(msgspec.Struct, frozen=True):
    """A subscription as the publisher needs it: from `held_key` and `held_sequence` on nothing was sent."""

    state: PairState
    held_sequence: str | None = None
    held_key: str | None = None


class ReleaseStore(Protocol):
    """What the publisher reads and notes down."""

    def recipients(self, agent_ids: Sequence[str]) -> Mapping[str, Recipient]:
        """Those of the agents that are there."""
        ...

    def pairs(self, subscriber_id: str, producer_ids: Collection[str]) -> Mapping[str, Pair]:
        """The agent's subscriptions to these producers, read consistently, and what else is held as far as known."""
        ...

    def hold(self, row: Row, state: PairState) -> None:
        """Note that nothing of the row's pair was sent from this row on, unless an earlier one is noted."""
        ...

    def held(self, subscriber_id: str, producer_id: str, pair: Pair) -> Iterable[Row]:
        """The rows of a pair from where it is held, in the stream's sequence."""
        ...

    def since(self, marker: Marker) -> Iterable[Row]:
        """The rows that a replay asks for, oldest first."""
        ...

    def settle(self, subscriber_id: str, producer_id: str, pair: Pair) -> None:
        """Note that nothing is held of the pair any more, unless more was held meanwhile."""
        ...

    def remember_newest(self, subscriber_id: str, newest_ms: int) -> None:
        """Note the youngest timestamp that the agent was sent."""
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
    held: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: ReleaseResult) -> None:
        self.sent += other.sent
        self.dropped += other.dropped
        self.held += other.held
        self.failed += other.failed


def release(
    rows: Sequence[Row | Marker],
    store: ReleaseStore,
    lanes: LaneSender,
    clock: Clock,
    *,
    dispatch_delay: float = 0.0,
    also: Iterable[str] = (),
    sleep: Callable[[float], None] = time.sleep,
) -> ReleaseResult:
    """Send the rows of all subscribers, and what is held for those in `also`; no subscriber delays another.

    With a hold-back window it waits for the youngest row first, so that rows of several producers are merged.
    """
    _wait_for_window(rows, dispatch_delay, clock, sleep)
    by_subscriber: dict[str, list[Row | Marker]] = {subscriber_id: [] for subscriber_id in also}
    for row in rows:
        by_subscriber.setdefault(row.subscriber_id, []).append(row)
    recipients = store.recipients(list(by_subscriber))
    result = ReleaseResult()

    def work(subscriber_id: str) -> ReleaseResult:
        own = by_subscriber[subscriber_id]
        if subscriber_id not in recipients:
            return ReleaseResult(dropped=len(own))
        return _Delivery(recipients[subscriber_id], store, lanes, sleep, dispatch_delay > 0).deliver(own)

    with ThreadPoolExecutor(min(_CONCURRENT, max(1, len(by_subscriber)))) as pool:
        for part in pool.map(work, by_subscriber):
            result.add(part)
    return result


class _Delivery:
    """What one subscriber gets in one batch."""

    def __init__(
        self, recipient: Recipient, store: ReleaseStore, lanes: LaneSender, sleep: Callable[[float], None],
        marks_late: bool,
    ) -> None:  # fmt: skip
        self._recipient = recipient
        self._store = store
        self._lanes = lanes
        self._sleep = sleep
        self._marks_late = marks_late
        self._newest_ms = recipient.newest_ms
        self._drained: set[str] = set()
        self._result = ReleaseResult()

    def deliver(self, rows: Sequence[Row | Marker]) -> ReleaseResult:
        try:
            self._deliver(rows)
        except PostroadError:
            # Nothing can be read or noted: the batch comes again, and what was sent is recognised.
            self._result.failed += [(row.subscriber_id, row.key) for row in rows]
        return self._result

    def _deliver(self, rows: Sequence[Row | Marker]) -> None:
        segment: list[Row] = []
        self._drain({row.producer_id for row in rows})
        for row in rows:
            if isinstance(row, Row):
                segment.append(row)
                continue
            self._send_due(segment)
            segment = []
            self._obey(row)
        self._send_due(segment)
        if self._marks_late and self._newest_ms > self._recipient.newest_ms:
            self._store.remember_newest(self._recipient.agent_id, self._newest_ms)

    def _drain(self, producer_ids: Collection[str]) -> None:
        """Send what is held of pairs that may flow again, before anything newer."""
        for producer_id, pair in self._store.pairs(self._recipient.agent_id, producer_ids).items():
            if pair.state == "draining":
                self._empty(producer_id, pair)

    def _empty(self, producer_id: str, pair: Pair) -> None:
        rows = list(self._store.held(self._recipient.agent_id, producer_id, pair))
        self._drained |= {row.key for row in rows}
        if not self._send(rows, "draining"):
            self._store.settle(self._recipient.agent_id, producer_id, pair)

    def _obey(self, marker: Marker) -> None:
        if marker.replay_id is not None:
            self._send([*self._store.since(marker)], "draining")
        else:
            self._drain({marker.producer_id})

    def _send_due(self, rows: Sequence[Row]) -> None:
        """Send rows of pairs that flow; those of others are held from the first one on."""
        rows = [row for row in rows if row.key not in self._drained]
        if not rows:
            return
        pairs = self._store.pairs(self._recipient.agent_id, {row.producer_id for row in rows})
        free: list[Row] = []
        for row in sorted(rows, key=lambda each: (each.producer_id, int(each.sequence))):
            pair = pairs.get(row.producer_id)
            if pair is None or pair.state == "active":
                free.append(row)
            elif not _covers(pair, row):
                self._store.hold(row, pair.state)
                self._result.held += 1
        self._send(merged(free), "draining")

    def _send(self, rows: Sequence[Row], refused: PairState) -> bool:
        """Send the rows, one of a group at a time; says whether something had to be held."""
        waiting = list(rows)
        blocked: set[str] = set()
        held = False
        while batch := self._next_batch(waiting, blocked):
            failed = self._try(batch)
            for row in batch:
                if row.key not in failed:
                    waiting.remove(row)
                    self._result.sent += 1
            blocked |= {self._group(row) for row in batch if row.key in failed}
        for row in _first_of_each_pair(waiting):
            self._store.hold(row, refused)
            held = True
        self._result.held += len(waiting)
        return held

    def _next_batch(self, waiting: Sequence[Row], blocked: set[str]) -> list[Row]:
        groups: set[str] = set(blocked)
        batch = []
        for row in waiting:
            if (group := self._group(row)) not in groups:
                groups.add(group)
                batch.append(row)
            if len(batch) == MAX_ENTRIES:
                break
        return batch

    def _try(self, batch: Sequence[Row]) -> set[str]:
        """Send one call's worth, up to three times; the keys of what was still refused."""
        left = list(batch)
        messages = {row.key: self._message(row) for row in batch}
        for attempt in range(ATTEMPTS):
            if attempt:
                self._sleep(_BACKOFF_SECONDS * 2**attempt)
            errors = self._lanes.send(self._recipient, [messages[row.key] for row in left])
            left = [row for row, error in zip(left, errors, strict=True) if error is not None]
            if not left:
                return set()
        return {row.key for row in left}

    def _message(self, row: Row) -> OutgoingMessage:
        late = self._marks_late and row.replay_id is None and row.occurred_ms < self._newest_ms
        self._newest_ms = max(self._newest_ms, row.occurred_ms)
        body = encode(
            Message(
                agentId=row.producer_id,
                timestamp=time_text(row.occurred_ms),
                eventType=row.event_type,
                data=msgspec.Raw(row.data),
                eventId=row.event_id,
                subscriberId=row.subscriber_id,
                sequenceNumber=row.sequence,
                late=late,
                replay=row.replay_id is not None,
                traceparent=row.traceparent,
            )
        )
        told = dedup_id(row.subscriber_id, row.producer_id, row.event_id, row.replay_id)
        return OutgoingMessage(body=body, group=self._group(row), dedup_id=told)

    def _group(self, row: Row) -> str:
        return row.producer_id if self._recipient.order == "producer" else self._recipient.agent_id


def _wait_for_window(
    rows: Sequence[Row | Marker], dispatch_delay: float, clock: Clock, sleep: Callable[[float], None]
) -> None:
    arrived = [row.arrived_ms for row in rows if isinstance(row, Row)]
    if dispatch_delay and arrived:
        left = max(arrived) / 1_000 + dispatch_delay - clock.now().timestamp()
        if left > 0:
            sleep(left)


def _covers(pair: Pair, row: Row) -> bool:
    """Whether the pair is held from before this row, by sequence and by key."""
    if pair.held_sequence is None or pair.held_key is None:
        return False
    return int(pair.held_sequence) <= int(row.sequence) and pair.held_key <= row.key


def _first_of_each_pair(rows: Iterable[Row]) -> list[Row]:
    first: dict[str, Row] = {}
    lowest: dict[str, str] = {}
    for row in rows:
        first.setdefault(row.producer_id, row)
        lowest[row.producer_id] = min(row.key, lowest.get(row.producer_id, row.key))
    return [msgspec.structs.replace(row, key=lowest[producer_id]) for producer_id, row in first.items()]
