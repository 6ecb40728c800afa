"""Fan-out on DynamoDB: in rounds, so that a pair's next row is written after the former one succeeded."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from postroad import failpoints
from postroad.agents.aws.redrive import Rejects
from postroad.agents.aws.rows import Item, item_of, row_of, text
from postroad.agents.aws.tables import Tables
from postroad.agents.outgoing import Row
from postroad.agents.port import FanOut, StreamEvent
from postroad.agents.records import refused
from postroad.agents.rules import milliseconds
from postroad.agents.tables import SUBSCRIBER_EVENTS, SUBSCRIBERS
from postroad.clock import Clock
from postroad.errors import InvalidInput, PostroadError
from postroad.telemetry import get_logger

BATCH: Final = 25
BATCH_BYTES: Final = 4_000_000
"""DynamoDB takes 16 MB in one call, which would hardly be there within one attempt."""
ATTEMPTS: Final = 3
ATTEMPT_SECONDS: Final = 1.5
"""Three of them and the pauses in between fit into what a call may take."""
GIVE_UP_SECONDS: Final = 5.0
EARLY_MS: Final = 5_000
"""The stream's clock is another one: an early event is better than a missing one."""
_BACKOFF_SECONDS: Final = 0.05


class _Write(NamedTuple):
    """One row to write, and how many bytes it takes on the way."""

    event: StreamEvent
    item: Item
    size: int

    @property
    def key(self) -> tuple[str, str]:
        return self.item["subscriberId"]["S"], self.item["timestamp"]["S"]


class _Outcome(NamedTuple):
    """The rows of a batch that are not there: given up for now, or refused for good and put aside."""

    left: Sequence[_Write] = ()
    refused: Sequence[_Write] = ()


class DynamoFan:
    """Writes one row for each event and subscriber."""

    def __init__(
        self,
        tables: Tables,
        rejects: Rejects,
        *,
        retention: float,
        clock: Clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._tables = tables
        self._rejects = rejects
        self._retention = retention
        self._monotonic = clock.monotonic
        self._sleep = sleep

    def write(self, events: Sequence[StreamEvent], written: list[Row] | None = None) -> FanOut:
        """Write the rows of the events; those that are there now are added to `written`."""
        queues: dict[str, deque[StreamEvent]] = {}
        for event in events:
            queues.setdefault(event.producer_id, deque()).append(event)
        listeners, failed = self._listeners(queues)
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

    def _listeners(self, producers: Mapping[str, object]) -> tuple[dict[str, list[tuple[str, int]]], set[str]]:
        found: dict[str, list[tuple[str, int]]] = {}
        failed: set[str] = set()
        for producer_id in producers:
            try:
                found[producer_id] = self._of(producer_id)
            except PostroadError:
                failed.add(producer_id)
        return found, failed

    def _of(self, producer_id: str) -> list[tuple[str, int]]:
        """All subscribers of a producer and since when, read consistently."""
        items = self._tables.pages(
            "query",
            SUBSCRIBERS,
            KeyConditionExpression="producerId = :id",
            ConsistentRead=True,
            ExpressionAttributeValues={":id": text(producer_id)},
            ProjectionExpression="subscriberId, createdAt",
        )
        return [(item["subscriberId"]["S"], milliseconds(item["createdAt"]["S"])) for item in items]

    def _rows(self, event: StreamEvent, listeners: Sequence[tuple[str, int]]) -> Iterator[_Write]:
        """The rows one after the other: an event may have a hundred thousand listeners."""
        arrived_ms = event.arrived_at.timestamp() * 1_000
        common = item_of(event, "", self._retention)
        size = len(json.dumps(common))
        for subscriber_id, since_ms in listeners:
            if arrived_ms >= since_ms - EARLY_MS:
                yield _Write(event, {**common, "subscriberId": text(subscriber_id)}, size + len(subscriber_id))

    def _put(self, batch: Sequence[_Write]) -> _Outcome:
        """Write one batch. One that DynamoDB refuses is written row by row, to find the row that it does not take."""
        try:
            left = {
                (item["subscriberId"]["S"], item["timestamp"]["S"]) for item in self._write([row.item for row in batch])
            }
        except InvalidInput as error:
            if len(batch) == 1:
                return self._put_aside(batch[0], error)
            parts = [self._put([row]) for row in batch]
            return _Outcome(
                [row for part in parts for row in part.left], [row for part in parts for row in part.refused]
            )
        failpoints.hit("agents.aggregate.mid")
        return _Outcome([row for row in batch if row.key in left])

    def _put_aside(self, row: _Write, error: PostroadError) -> _Outcome:
        """Let a row that will never be taken block nothing: it is seen in the queue of rejects."""
        reason = f"DynamoDB refuses the row of {row.key[0]}: {error}"
        if self._rejects.put([refused(row.event, reason)]):
            return _Outcome(left=[row])
        get_logger("agents").warning("agents_rejected", count=1, reason=reason)
        return _Outcome(refused=[row])

    def _write(self, items: Sequence[Item]) -> Sequence[Item]:
        """Write one batch, again what was not processed; the items that were given up."""
        until = self._monotonic() + GIVE_UP_SECONDS
        left = self._attempt(items)
        for attempt in range(1, ATTEMPTS):
            pause = _BACKOFF_SECONDS * 2**attempt
            # No attempt begins that might not end in time.
            if not left or self._monotonic() + pause + ATTEMPT_SECONDS > until:
                break
            self._sleep(pause)
            left = self._attempt(left)
        return left

    def _attempt(self, items: Sequence[Item]) -> Sequence[Item]:
        """Write the items once; those that are not surely there. `InvalidInput` when they will never be taken."""
        table = self._tables.name(SUBSCRIBER_EVENTS)
        requests = {table: [{"PutRequest": {"Item": item}} for item in items]}
        try:
            answer = self._tables.write_within(ATTEMPT_SECONDS, requests)
        except InvalidInput:
            raise
        except PostroadError:
            # A write whose answer did not come may have taken effect: the next one writes equal items, which is
            # no change and wakes nobody.
            return items
        unprocessed: list[Any] = answer.get("UnprocessedItems", {}).get(table, [])
        return [request["PutRequest"]["Item"] for request in unprocessed]


def _batches(rows: Iterable[_Write]) -> Iterator[list[_Write]]:
    """The rows in batches that DynamoDB takes in one call."""
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
    """The rows of the items; those of one event share all that it says, for there may be very many."""
    known: dict[str, Row] = {}
    for item in items:
        key = item["timestamp"]["S"]
        row = known.get(key)
        if row is None and isinstance(read := row_of(item), Row):
            row = known[key] = read
        if row is not None:
            yield msgspec.structs.replace(row, subscriber_id=item["subscriberId"]["S"])
