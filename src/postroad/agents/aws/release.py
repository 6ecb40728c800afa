"""The publisher: sends the rows of subscribers to their queues, each producer's rows in sequence, merged by time."""

from __future__ import annotations

import hashlib
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

import msgspec

from postroad import failpoints
from postroad.agents.aws.pairs import DynamoPairs
from postroad.agents.aws.rows import Marker, Pair, Recipient, Row
from postroad.agents.model import time_text
from postroad.agents.stream import Message, merged, refused
from postroad.clock import Clock
from postroad.errors import InvalidInput, PostroadError
from postroad.queues import OutgoingMessage
from postroad.telemetry import get_logger

if TYPE_CHECKING:
    from postroad.agents.aws.store import AwsAgentStore

MAX_ENTRIES: Final = 10
ATTEMPTS: Final = 3
_BACKOFF_SECONDS: Final = 0.1
_CONCURRENT: Final = 16


@dataclass(slots=True)
class ReleaseResult:
    """The outcome of a release.

    Attributes:
        sent: Rows that reached their queue.
        dropped: Rows whose subscription has ended.
        rejected: Rows that their queue refuses for good.
        held: Rows that wait for a slow or paused queue.
        failed: The keys of rows that could be neither sent nor marked as held.
    """

    sent: int = 0
    dropped: int = 0
    rejected: int = 0
    held: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: ReleaseResult) -> None:
        """Add the counts of `other` to these."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def release(
    rows: Sequence[Row | Marker],
    store: DynamoPairs,
    lanes: AwsAgentStore,
    clock: Clock,
    *,
    dispatch_delay: float = 0.0,
    sleep: Callable[[float], None] = time.sleep,
) -> ReleaseResult:
    """Send the rows of all subscribers and what was held for them before; no subscriber delays another.

    Args:
        rows: New rows in the order of the table's stream, and markers.
        store: Where subscriptions are read and their held rows are marked.
        lanes: Has the method `send`, which sends messages to an agent's queue.
        clock: Measures the hold-back window.
        dispatch_delay: The hold-back window in seconds. It waits until the youngest row has been there for that long,
            so that rows of several producers are merged.
        sleep: Waits; tests replace it.
    """
    arrived = [row.arrived_ms for row in rows if isinstance(row, Row)]
    if dispatch_delay and arrived:
        left = max(arrived) / 1_000 + dispatch_delay - clock.now().timestamp()
        if left > 0:
            sleep(left)
    by_subscriber: dict[str, list[Row | Marker]] = {}
    for row in rows:
        by_subscriber.setdefault(row.subscriber_id, []).append(row)
    recipients = store.recipients(list(by_subscriber))
    result = ReleaseResult()

    def work(subscriber_id: str) -> ReleaseResult:
        own = by_subscriber[subscriber_id]
        if subscriber_id not in recipients:
            return ReleaseResult(dropped=len(own))
        return _Release(recipients[subscriber_id], store, lanes, sleep, dispatch_delay > 0).deliver(own)

    with ThreadPoolExecutor(min(_CONCURRENT, max(1, len(by_subscriber)))) as pool:
        for part in pool.map(work, by_subscriber):
            result.add(part)
    return result


def dedup_id(subscriber_id: str, producer_id: str, event_id: str, replay_id: str | None = None) -> str:
    """Return the id by which SQS recognises a message that was sent before."""
    text = "|".join((subscriber_id, producer_id, event_id, *(() if replay_id is None else (replay_id,))))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(slots=True)
class _Release:
    """One subscriber's part of a batch."""

    _recipient: Recipient
    _store: DynamoPairs
    _lanes: AwsAgentStore
    _sleep: Callable[[float], None]
    _marks_late: bool
    _newest_ms: int = -1
    _drained: set[str] = field(default_factory=set)
    _emptied: set[str] = field(default_factory=set)
    _result: ReleaseResult = field(default_factory=ReleaseResult)

    def __post_init__(self) -> None:
        self._newest_ms = self._recipient.newest_ms

    def deliver(self, rows: Sequence[Row | Marker]) -> ReleaseResult:
        """Send what is held, then the rows; obey markers where they stand."""
        wanted = [row for row in rows if self._recipient.wants(row)]
        self._result.dropped += len(rows) - len(wanted)
        try:
            self._deliver(wanted)
        except PostroadError:
            # Nothing can be read or marked: the batch comes again, and SQS recognises what was sent.
            self._result.failed += [(row.subscriber_id, row.key) for row in wanted]
        return self._result

    def _deliver(self, rows: Sequence[Row | Marker]) -> None:
        segment: list[Row] = []
        # What is held of draining pairs goes before anything newer.
        for producer_id, pair in self._store.pairs(self._recipient.agent_id, {row.producer_id for row in rows}).items():
            if pair.state == "draining":
                self._empty(producer_id, pair)
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

    def _obey(self, marker: Marker) -> None:
        if marker.held is not None:
            left = self._send(list(self._store.held(marker.subscriber_id, marker.producer_id, marker.held)))
            if self._hold(left):
                self._result.failed.append((marker.subscriber_id, marker.key))
            return
        if marker.producer_id in self._emptied:
            return
        pair = self._store.pairs(self._recipient.agent_id, {marker.producer_id}).get(marker.producer_id)
        if pair is not None and pair.state != "paused":
            self._empty(marker.producer_id, pair)

    def _empty(self, producer_id: str, pair: Pair) -> None:
        """Send what a replay asks for and what is held; what is refused waits for the next time."""
        self._emptied.add(producer_id)
        subscriber_id, held = self._recipient.agent_id, pair.held
        rows: list[Row] = []
        if pair.replay is not None:
            again = self._store.replayed(subscriber_id, producer_id, pair.replay)
            rows += [row for row in again if held is None or int(row.sequence) < int(held.sequence)]
        fresh = [] if held is None else list(self._store.held(subscriber_id, producer_id, held))
        self._drained |= {row.key for row in fresh}
        left = self._send([*rows, *fresh])
        if not left:
            self._store.settle(subscriber_id, producer_id, pair)
            return
        for row in _first_of_each_pair(row for row in left if row.replay_id is None):
            self._store.advance(row, pair)
        self._store.drain_later(subscriber_id, producer_id)

    def _send_due(self, rows: Sequence[Row]) -> None:
        """Send the rows of active pairs; hold those of others from the first one on."""
        rows = [row for row in rows if row.key not in self._drained]
        if not rows:
            return
        pairs = self._store.pairs(self._recipient.agent_id, {row.producer_id for row in rows})
        # What waits of a subscription that ended is sent.
        active = {row.producer_id for row in rows if pairs.get(row.producer_id, Pair("active")).state == "active"}
        in_sequence = sorted(rows, key=lambda each: (each.producer_id, int(each.sequence)))
        unsent = self._send(merged(row for row in in_sequence if row.producer_id in active))
        withheld = [row for row in in_sequence if row.producer_id not in active]
        self._result.held += len(withheld)
        left = [*withheld, *unsent]
        gone = self._hold(left)
        self._result.failed += [(row.subscriber_id, row.key) for row in left if row.producer_id in gone]

    def _hold(self, rows: Iterable[Row]) -> set[str]:
        """Mark the first held row of each pair; return the producers whose subscription is gone."""
        return {row.producer_id for row in _first_of_each_pair(rows) if not self._store.hold(row)}

    def _send(self, rows: Iterable[Row]) -> list[Row]:
        """Send the rows, one of a group at a time; return those that were refused, with the ones behind them."""
        lines: dict[str, deque[tuple[int, Row]]] = {}
        for place, row in enumerate(rows):
            lines.setdefault(self._group(row), deque()).append((place, row))
        left: list[tuple[int, Row]] = []
        while heads := heapq.nsmallest(MAX_ENTRIES, ((line[0][0], group) for group, line in lines.items())):
            done = self._try([lines[group][0][1] for _, group in heads])
            failpoints.hit("agents.release.mid")
            for (_, group), ok in zip(heads, done, strict=True):
                if not ok:
                    left += lines.pop(group)
                    continue
                lines[group].popleft()
                if not lines[group]:
                    del lines[group]
        self._result.held += len(left)
        return [row for _, row in sorted(left, key=lambda entry: entry[0])]

    def _try(self, batch: Sequence[Row]) -> list[bool]:
        """Send one call's worth, up to three times; return for each row whether it was sent or rejected for good."""
        messages = [self._message(row) for row in batch]
        done = [False] * len(batch)
        for attempt in range(ATTEMPTS):
            if attempt:
                self._sleep(_BACKOFF_SECONDS * 2**attempt)
            left = [place for place, ok in enumerate(done) if not ok]
            errors = self._lanes.send(self._recipient, [messages[place] for place in left])
            for place, error in zip(left, errors, strict=True):
                done[place] = self._settled(batch[place], error)
            if all(done):
                break
        return done

    def _settled(self, row: Row, error: PostroadError | None) -> bool:
        """Count what was sent, and reject what the queue refuses for good: it would hold back its pair forever."""
        if error is None:
            self._result.sent += 1
            return True
        reason = f"the queue of {row.subscriber_id} refuses the message: {error}"
        if not isinstance(error, InvalidInput) or self._store.reject([refused(row, reason)]):
            return False
        self._result.rejected += 1
        get_logger("agents").warning("agents_rejected", count=1, reason=reason)
        return True

    def _message(self, row: Row) -> OutgoingMessage:
        late = self._marks_late and row.replay_id is None and row.occurred_ms < self._newest_ms
        self._newest_ms = max(self._newest_ms, row.occurred_ms)
        message = Message(
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
        known_by = dedup_id(row.subscriber_id, row.producer_id, row.event_id, row.replay_id)
        return OutgoingMessage(body=message.to_json(), group=self._group(row), dedup_id=known_by)

    def _group(self, row: Row) -> str:
        return row.producer_id if self._recipient.order == "producer" else self._recipient.agent_id


def _first_of_each_pair(rows: Iterable[Row]) -> list[Row]:
    """Return the first row of each producer, under the lowest key of its rows."""
    first: dict[str, Row] = {}
    lowest: dict[str, str] = {}
    for row in rows:
        first.setdefault(row.producer_id, row)
        lowest[row.producer_id] = min(row.key, lowest.get(row.producer_id, row.key))
    return [msgspec.structs.replace(row, key=lowest[producer_id]) for producer_id, row in first.items()]
