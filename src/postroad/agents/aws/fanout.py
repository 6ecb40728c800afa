"""Fan-out on DynamoDB: in rounds, so that a pair's next row is written after the former one; and rejects."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from postroad import failpoints
from postroad.agents.aws.rows import Item, Row, event_types_of, item_of, row_of, text
from postroad.agents.model import milliseconds, takes_type
from postroad.agents.port import FanOut
from postroad.agents.stream import Rejected, StreamEvent, refused
from postroad.agents.tables import SUBSCRIBER_EVENTS, SUBSCRIBERS, Tables
from postroad.clock import Clock
from postroad.errors import InvalidInput, MessageTooLarge, PostroadError
from postroad.queues import OutgoingMessage, Queue
from postroad.telemetry import get_logger

BATCH: Final = 25
BATCH_BYTES: Final = 4_000_000
"""DynamoDB accepts 16 MB in one call, which would hardly arrive within one attempt."""
ATTEMPTS: Final = 3
ATTEMPT_SECONDS: Final = 1.5
"""Three of them and the pauses between them fit into the time that a call may take."""
GIVE_UP_SECONDS: Final = 5.0
EARLY_MS: Final = 5_000
"""The stream has another clock: an event too early is better than a missing one."""
Reject = Callable[[Sequence[Rejected]], Sequence[Rejected]]
"""Puts what can never be handled into the queue of rejects; returns what could not be put there."""


def put_rejected(queue: Callable[[], Queue], rejected: Sequence[Rejected]) -> Sequence[Rejected]:
    """Put records and rows that can never be handled into the queue; return those that could not be put."""
    return [entry for entry in rejected if not _is_put(queue, entry)]


def _is_put(queue: Callable[[], Queue], entry: Rejected) -> bool:
    try:
        try:
            [result] = queue().send([OutgoingMessage(body=entry.to_json())])
        except MessageTooLarge:
            reason = f"{entry.reason} (its data is cut)"
            cut = msgspec.structs.replace(entry, reason=reason, data=entry.data[:700_000])
            [result] = queue().send([OutgoingMessage(body=cut.to_json())])
    except PostroadError:
        return False
    return result.ok


class _Write(NamedTuple):
    event: StreamEvent
    item: Item
    size: int

    @property
    def key(self) -> tuple[str, str]:
        return self.item["subscriberId"]["S"], self.item["timestamp"]["S"]


class _Listener(NamedTuple):
    subscriber_id: str
    since_ms: int
    event_types: tuple[str, ...] | None


class _Outcome(NamedTuple):
    """The rows of a batch that were not written: given up for now, or refused for good and rejected."""

    left: Sequence[_Write] = ()
    refused: Sequence[_Write] = ()


class DynamoFan:
    """Writes one row for each event and subscriber."""

    def __init__(
        self,
        tables: Tables,
        reject: Reject,
        *,
        retention: float,
        clock: Clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._tables = tables
        self._put_rejected = reject
        self._retention = retention
        self._monotonic = clock.monotonic
        self._sleep = sleep

    def write(self, events: Sequence[StreamEvent], written: list[Row] | None = None) -> FanOut:
        """Write the rows of the events, and add those that were written to `written`."""
        queues: dict[str, deque[StreamEvent]] = {}
        for event in events:
            queues.setdefault(event.producer_id, deque()).append(event)
        listeners: dict[str, list[_Listener]] = {}
        failed: set[str] = set()
        for producer_id in queues:
            try:
                listeners[producer_id] = self._listeners(producer_id)
            except PostroadError:
                failed.add(producer_id)
        count = rejected = 0
        while heads := [queue[0] for producer, queue in queues.items() if queue and producer not in failed]:
            rows = (row for event in heads for row in self._rows(event, listeners[event.producer_id]))
            for batch in _batches(rows):
                left, refused = self._put(batch)
                failed |= {row.event.producer_id for row in left}
                rejected += len(refused)
                count += len(batch) - len(left) - len(refused)
                if written is not None:
                    gone = {row.key for row in refused}
                    there = (row for row in batch if row.event.producer_id not in failed and row.key not in gone)
                    written += _shared(row.item for row in there)
            for event in heads:
                if event.producer_id not in failed:
                    queues[event.producer_id].popleft()
        return FanOut(
            count, rejected=rejected, failed=tuple(event for producer in failed for event in queues[producer])
        )

    def _listeners(self, producer_id: str) -> list[_Listener]:
        """Return all subscribers of a producer and the times of their subscriptions, read consistently."""
        items = self._tables.pages(
            "query",
            SUBSCRIBERS,
            KeyConditionExpression="producerId = :id",
            ConsistentRead=True,
            ExpressionAttributeValues={":id": text(producer_id)},
            ProjectionExpression="subscriberId, createdAt, eventTypes",
        )
        return [
            _Listener(item["subscriberId"]["S"], milliseconds(item["createdAt"]["S"]), event_types_of(item))
            for item in items
        ]

    def _rows(self, event: StreamEvent, listeners: Sequence[_Listener]) -> Iterator[_Write]:
        """Yield the rows one by one: an event may have a hundred thousand listeners."""
        arrived_ms = event.arrived_at.timestamp() * 1_000
        common = item_of(event, "", self._retention)
        size = len(json.dumps(common))
        for subscriber_id, since_ms, event_types in listeners:
            if arrived_ms >= since_ms - EARLY_MS and takes_type(event_types, event.event_type):
                yield _Write(event, {**common, "subscriberId": text(subscriber_id)}, size + len(subscriber_id))

    def _put(self, batch: Sequence[_Write]) -> _Outcome:
        """Write one batch. If DynamoDB refuses it, write row by row to find the one that it does not accept."""
        try:
            left = {
                (item["subscriberId"]["S"], item["timestamp"]["S"]) for item in self._write([row.item for row in batch])
            }
        except InvalidInput as error:
            if len(batch) == 1:
                return self._reject(batch[0], error)
            parts = [self._put([row]) for row in batch]
            return _Outcome(
                [row for part in parts for row in part.left], [row for part in parts for row in part.refused]
            )
        failpoints.hit("agents.aggregate.mid")
        return _Outcome([row for row in batch if row.key in left])

    def _reject(self, row: _Write, error: PostroadError) -> _Outcome:
        """Put a row that will never be accepted into the queue of rejects, so that it blocks nothing."""
        reason = f"DynamoDB refuses the row of {row.key[0]}: {error}"
        if self._put_rejected([refused(row.event, reason, shard=row.event.shard)]):
            return _Outcome(left=[row])
        get_logger("agents").warning("agents_rejected", count=1, reason=reason)
        return _Outcome(refused=[row])

    def _write(self, items: Sequence[Item]) -> Sequence[Item]:
        """Write one batch and retry what was not processed; return the items that were given up."""
        until = self._monotonic() + GIVE_UP_SECONDS
        left = self._attempt(items)
        for attempt in range(1, ATTEMPTS):
            pause = 0.05 * 2**attempt
            # Begin no attempt that might not end in time.
            if not left or self._monotonic() + pause + ATTEMPT_SECONDS > until:
                break
            self._sleep(pause)
            left = self._attempt(left)
        return left

    def _attempt(self, items: Sequence[Item]) -> Sequence[Item]:
        """Write the items once; return those that may be missing. `InvalidInput`: they are refused for good."""
        table = self._tables.name(SUBSCRIBER_EVENTS)
        requests = {table: [{"PutRequest": {"Item": item}} for item in items]}
        try:
            answer = self._tables.batch("batch_write_item", requests, within=ATTEMPT_SECONDS)
        except InvalidInput:
            raise
        except PostroadError:
            # A write without an answer may have taken effect: the next one writes equal items, which changes nothing
            # and wakes nobody.
            return items
        unprocessed: list[Any] = answer.get("UnprocessedItems", {}).get(table, [])
        return [request["PutRequest"]["Item"] for request in unprocessed]


def _batches(rows: Iterable[_Write]) -> Iterator[list[_Write]]:
    """Yield the rows in batches that DynamoDB accepts in one call."""
    batch: list[_Write] = []
    size = 0
    for row in rows:
        if batch and (len(batch) == BATCH or size + row.size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += row.size
    if batch:
        yield batch


def _shared(items: Iterable[Item]) -> Iterator[Row]:
    """Yield the rows of the items; those of one event share its content, since there may be very many."""
    known: dict[str, Row] = {}
    for item in items:
        key = item["timestamp"]["S"]
        row = known.get(key)
        if row is None and isinstance(read := row_of(item), Row):
            row = known[key] = read
        if row is not None:
            yield msgspec.structs.replace(row, subscriber_id=item["subscriberId"]["S"])
