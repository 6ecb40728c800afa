"""One subscriber's part of a batch: each producer's rows in sequence, merged by time, and the message made of one."""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from postroad import failpoints
from postroad.agents.outgoing import LaneSender, Marker, Pair, Recipient, ReleaseResult, ReleaseStore, Row
from postroad.agents.records import refused
from postroad.agents.rules import time_text
from postroad.errors import InvalidInput, PostroadError
from postroad.events import sendable
from postroad.queues import OutgoingMessage
from postroad.telemetry import get_logger


class Timed(Protocol):
    """Something a producer sent at a time."""

    @property
    def producer_id(self) -> str: ...

    @property
    def occurred_ms(self) -> int: ...


T = TypeVar("T", bound=Timed)


def merged(rows: Iterable[T]) -> list[T]:
    """The rows, which come in each producer's sequence, merged by timestamp.

    A producer whose clock steps back keeps its sequence: a row counts as no older than those before it.
    """
    newest: dict[str, int] = {}
    keyed = []
    for place, row in enumerate(rows):
        time = newest[row.producer_id] = max(newest.get(row.producer_id, 0), row.occurred_ms)
        keyed.append((time, row.producer_id, place, row))
    keyed.sort(key=lambda entry: entry[:3])
    return [row for *_, row in keyed]


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event for one subscriber; `agentId` is the producer."""

    agentId: str
    timestamp: str
    eventType: str
    data: msgspec.Raw
    eventId: str
    subscriberId: str
    sequenceNumber: str
    late: bool = False
    replay: bool = False
    traceparent: str | None = None


def encode(message: Message) -> bytes:
    """The message as a body."""
    return sendable(msgspec.json.encode(message))


def dedup_id(subscriber_id: str, producer_id: str, event_id: str, replay_id: str | None = None) -> str:
    """What tells a message that was sent before."""
    text = "|".join((subscriber_id, producer_id, event_id, *(() if replay_id is None else (replay_id,))))
    return hashlib.sha256(text.encode()).hexdigest()


MAX_ENTRIES: Final = 10
ATTEMPTS: Final = 3
_BACKOFF_SECONDS: Final = 0.1


class Delivering:
    """What one subscriber gets in one batch."""

    def __init__(
        self,
        recipient: Recipient,
        store: ReleaseStore,
        lanes: LaneSender,
        sleep: Callable[[float], None],
        marks_late: bool,
    ) -> None:
        self._recipient = recipient
        self._store = store
        self._lanes = lanes
        self._sleep = sleep
        self._marks_late = marks_late
        self._newest_ms = recipient.newest_ms
        self._drained: set[str] = set()
        self._emptied: set[str] = set()
        self._result = ReleaseResult()

    def deliver(self, rows: Sequence[Row | Marker]) -> ReleaseResult:
        """Send what is held, then the rows; markers are obeyed where they stand."""
        wanted = [row for row in rows if self._recipient.wants(row)]
        self._result.dropped += len(rows) - len(wanted)
        try:
            self._deliver(wanted)
        except PostroadError:
            # Nothing can be read or noted: the batch comes again, and what was sent is recognised.
            self._result.failed += [(row.subscriber_id, row.key) for row in wanted]
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

    def _obey(self, marker: Marker) -> None:
        if marker.held is not None:
            left = self._send(list(self._store.held(marker.subscriber_id, marker.producer_id, marker.held)))
            if self._note(left):
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
        """Send rows of pairs that flow; those of others are held from the first one on."""
        rows = [row for row in rows if row.key not in self._drained]
        if not rows:
            return
        pairs = self._store.pairs(self._recipient.agent_id, {row.producer_id for row in rows})
        flowing = {row.producer_id for row in rows if _flows(pairs.get(row.producer_id))}
        in_sequence = sorted(rows, key=lambda each: (each.producer_id, int(each.sequence)))
        unsent = self._send(merged(row for row in in_sequence if row.producer_id in flowing))
        withheld = [row for row in in_sequence if row.producer_id not in flowing]
        self._result.held += len(withheld)
        left = [*withheld, *unsent]
        gone = self._note(left)
        self._result.failed += [(row.subscriber_id, row.key) for row in left if row.producer_id in gone]

    def _note(self, rows: Iterable[Row]) -> set[str]:
        """Note from where on each pair is held; the producers whose subscription is gone."""
        return {row.producer_id for row in _first_of_each_pair(rows) if not self._store.hold(row)}

    def _send(self, rows: Iterable[Row]) -> list[Row]:
        """Send the rows, one of a group at a time; those that were refused, with what stands behind them."""
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
        """Send one call's worth, up to three times; whether each was taken, or put aside because it never will be."""
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
        """Count what was taken, and put aside what is refused for good: it would hold back its pair for ever."""
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


def _flows(pair: Pair | None) -> bool:
    """Whether events of the pair are sent: what waits of a subscription that ended is."""
    return pair is None or pair.state == "active"


def _first_of_each_pair(rows: Iterable[Row]) -> list[Row]:
    """The first row of each producer, under the lowest key of its rows."""
    first: dict[str, Row] = {}
    lowest: dict[str, str] = {}
    for row in rows:
        first.setdefault(row.producer_id, row)
        lowest[row.producer_id] = min(row.key, lowest.get(row.producer_id, row.key))
    return [msgspec.structs.replace(row, key=lowest[producer_id]) for producer_id, row in first.items()]
