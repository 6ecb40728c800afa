"""Fan-out on DynamoDB: in rounds, so that a pair's next row is written after the former one succeeded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from postroad.agents.aws.rows import Item, item_of
from postroad.agents.aws.tables import Tables
from postroad.agents.aws.values import text
from postroad.agents.port import FanOut, StreamEvent
from postroad.agents.rules import milliseconds
from postroad.agents.tables import SUBSCRIBER_EVENTS, SUBSCRIBERS
from postroad.errors import PostroadError

BATCH: Final = 25
ATTEMPTS: Final = 3
GIVE_UP_SECONDS: Final = 5.0
EARLY_MS: Final = 5_000
"""The stream's clock is another one: an early event is better than a missing one."""
_BACKOFF_SECONDS: Final = 0.05


class DynamoFan:
    """Writes one row for each event and subscriber."""

    def __init__(
        self, tables: Tables, *, retention: float, sleep: Callable[[float], None] = time.sleep
    ) -> None:  # fmt: skip
        self._tables = tables
        self._retention = retention
        self._sleep = sleep

    def write(self, events: Sequence[StreamEvent]) -> tuple[FanOut, list[Item]]:
        """What became of the events, and the rows that are there now."""
        queues: dict[str, list[StreamEvent]] = {}
        for event in events:
            queues.setdefault(event.producer_id, []).append(event)
        listeners, failed = self._listeners(queues)
        written: list[Item] = []
        while heads := [queue[0] for producer, queue in queues.items() if queue and producer not in failed]:
            rows = [(event, item) for event in heads for item in self._items(event, listeners[event.producer_id])]
            refused = self._put(rows, written)
            failed |= refused
            for event in heads:
                if event.producer_id not in failed:
                    queues[event.producer_id].pop(0)
        left = tuple(event for producer in failed for event in queues[producer])
        return FanOut(len(written), released=0, failed=left), written

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

    def _items(self, event: StreamEvent, listeners: Sequence[tuple[str, int]]) -> list[Item]:
        arrived_ms = event.arrived_at.timestamp() * 1_000
        return [
            item_of(event, subscriber_id, self._retention)
            for subscriber_id, since_ms in listeners
            if arrived_ms >= since_ms - EARLY_MS
        ]

    def _put(self, rows: Sequence[tuple[StreamEvent, Item]], written: list[Item]) -> set[str]:
        """Write the rows of one round; the producers of which one could not be written."""
        failed: set[str] = set()
        for start in range(0, len(rows), BATCH):
            chunk = rows[start : start + BATCH]
            left = self._write([item for _, item in chunk])
            keys = {(item["subscriberId"]["S"], item["timestamp"]["S"]) for item in left}
            for event, item in chunk:
                if (item["subscriberId"]["S"], item["timestamp"]["S"]) in keys:
                    failed.add(event.producer_id)
                else:
                    written.append(item)
        return failed

    def _write(self, items: Sequence[Item]) -> Sequence[Item]:
        """Write one batch, again what was not processed; the items that were given up."""
        left = list(items)
        until = time.monotonic() + GIVE_UP_SECONDS
        table = self._tables.name(SUBSCRIBER_EVENTS)
        for attempt in range(ATTEMPTS):
            if attempt:
                self._sleep(_BACKOFF_SECONDS * 2**attempt)
            try:
                answer = self._tables.batch("batch_write_item", {table: [{"PutRequest": {"Item": i}} for i in left]})
            except PostroadError:
                answer = None
            if answer is not None:
                unprocessed: list[Any] = answer.get("UnprocessedItems", {}).get(table, [])
                left = [request["PutRequest"]["Item"] for request in unprocessed]
            if not left or time.monotonic() >= until:
                break
        return left
