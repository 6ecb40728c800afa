"""Fan-out on DynamoDB: in rounds, so that a pair's next row is written after the former one succeeded."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from postroad import failpoints
from postroad.agents.aws.rows import Item, item_of, row_of
from postroad.agents.aws.tables import Tables
from postroad.agents.aws.values import text
from postroad.agents.outgoing import Row
from postroad.agents.port import FanOut, StreamEvent
from postroad.agents.rules import milliseconds
from postroad.agents.tables import SUBSCRIBER_EVENTS, SUBSCRIBERS
from postroad.clock import Clock
from postroad.errors import PostroadError

BATCH: Final = 25
ATTEMPTS: Final = 3
ATTEMPT_SECONDS: Final = 1.5
"""Three of them and the pauses in between fit into what a call may take."""
GIVE_UP_SECONDS: Final = 5.0
EARLY_MS: Final = 5_000
"""The stream's clock is another one: an early event is better than a missing one."""
_BACKOFF_SECONDS: Final = 0.05


class DynamoFan:
    """Writes one row for each event and subscriber."""

    def __init__(
        self, tables: Tables, *, retention: float, clock: Clock, sleep: Callable[[float], None] = time.sleep
    ) -> None:  # fmt: skip
        self._tables = tables
        self._retention = retention
        self._monotonic = clock.monotonic
        self._sleep = sleep

    def write(self, events: Sequence[StreamEvent], written: list[Row] | None = None) -> FanOut:
        """Write the rows of the events; those that are there now are added to `written`."""
        queues: dict[str, deque[StreamEvent]] = {}
        for event in events:
            queues.setdefault(event.producer_id, deque()).append(event)
        listeners, failed = self._listeners(queues)
        count = 0
        while heads := [queue[0] for producer, queue in queues.items() if queue and producer not in failed]:
            rows = ((event, item) for event in heads for item in self._items(event, listeners[event.producer_id]))
            while chunk := list(itertools.islice(rows, BATCH)):
                left = self._put(chunk)
                failed |= {event.producer_id for event, _ in left}
                count += len(chunk) - len(left)
                if written is not None:
                    written += _shared(item for event, item in chunk if event.producer_id not in failed)
            for event in heads:
                if event.producer_id not in failed:
                    queues[event.producer_id].popleft()
        return FanOut(count, failed=tuple(event for producer in failed for event in queues[producer]))

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
            "query", SUBSCRIBERS, KeyConditionExpression="producerId = :id", ConsistentRead=True,
            ExpressionAttributeValues={":id": text(producer_id)}, ProjectionExpression="subscriberId, createdAt",
        )  # fmt: skip
        return [(item["subscriberId"]["S"], milliseconds(item["createdAt"]["S"])) for item in items]

    def _items(self, event: StreamEvent, listeners: Sequence[tuple[str, int]]) -> Iterator[Item]:
        """The rows one after the other: an event may have a hundred thousand listeners."""
        arrived_ms = event.arrived_at.timestamp() * 1_000
        for subscriber_id, since_ms in listeners:
            if arrived_ms >= since_ms - EARLY_MS:
                yield item_of(event, subscriber_id, self._retention)

    def _put(self, chunk: Sequence[tuple[StreamEvent, Item]]) -> list[tuple[StreamEvent, Item]]:
        """Write one batch; what of it was given up."""
        left = self._write([item for _, item in chunk])
        failpoints.hit("agents.aggregate.mid")
        keys = {(item["subscriberId"]["S"], item["timestamp"]["S"]) for item in left}
        return [
            (event, item) for event, item in chunk if (item["subscriberId"]["S"], item["timestamp"]["S"]) in keys
        ]  # fmt: skip

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
        """Write the items once; those that are not surely there."""
        table = self._tables.name(SUBSCRIBER_EVENTS)
        requests = {table: [{"PutRequest": {"Item": item}} for item in items]}
        try:
            answer = self._tables.write_within(ATTEMPT_SECONDS, requests)
        except PostroadError:
            # A write whose answer did not come may have taken effect: the next one writes equal items, which is
            # no change and wakes nobody.
            return items
        unprocessed: list[Any] = answer.get("UnprocessedItems", {}).get(table, [])
        return [request["PutRequest"]["Item"] for request in unprocessed]


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
