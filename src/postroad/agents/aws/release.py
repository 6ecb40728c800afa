"""What the publisher reads and notes down in DynamoDB."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from postroad.agents.aws.rows import row_of
from postroad.agents.aws.subscriptions import pair_key
from postroad.agents.aws.tables import Tables
from postroad.agents.aws.values import number, text
from postroad.agents.model import PairState
from postroad.agents.releasing import Marker, Pair, Recipient, Row
from postroad.agents.rules import time_text
from postroad.agents.tables import AGENTS, BY_SUBSCRIBER, SUBSCRIBER_EVENTS, SUBSCRIBERS, Table

_STATE = {"#state": "state"}
_MOST_KEYS = 100


class DynamoRelease:
    """Pairs and what is held of them."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def recipients(self, agent_ids: Sequence[str]) -> Mapping[str, Recipient]:
        """Those of the agents that are there."""
        items = self._read(AGENTS, [{"agentId": text(agent_id)} for agent_id in agent_ids])
        return {item["agentId"]["S"]: _recipient(item) for item in items if item["state"]["S"] == "active"}

    def pairs(self, subscriber_id: str, producer_ids: Collection[str]) -> Mapping[str, Pair]:
        """The agent's subscriptions to these producers, read consistently, and what else is held as far as known."""
        held = self._tables.pages(
            "query", SUBSCRIBERS, IndexName=BY_SUBSCRIBER, KeyConditionExpression="subscriberId = :id",
            FilterExpression="#state <> :active", ExpressionAttributeNames=_STATE,
            ExpressionAttributeValues={":id": text(subscriber_id), ":active": text("active")},
        )  # fmt: skip
        # The index may lag behind: it tells where else to look, and each pair is then read as it is.
        wanted = sorted({item["producerId"]["S"] for item in held} | set(producer_ids))
        keys = [pair_key(subscriber_id, producer_id) for producer_id in wanted]
        return {item["producerId"]["S"]: _pair(item) for item in self._read(SUBSCRIBERS, keys)}

    def hold(self, row: Row, state: PairState) -> None:
        """Note from where on nothing was sent; an earlier note stays, a lower key counts."""
        held = {"M": {"sequenceNumber": text(row.sequence), "timestamp": text(row.key)}}
        key = pair_key(row.subscriber_id, row.producer_id)
        first = self._tables.conditional(
            "update_item", SUBSCRIBERS, Key=key, UpdateExpression="SET heldFrom = :held, #state = :state",
            ConditionExpression="attribute_exists(producerId) AND attribute_not_exists(heldFrom)",
            ExpressionAttributeNames=_STATE, ExpressionAttributeValues={":held": held, ":state": text(state)},
        )  # fmt: skip
        if first is None:
            self._tables.conditional(
                "update_item", SUBSCRIBERS, Key=key, UpdateExpression="SET heldFrom.#key = :key",
                ConditionExpression="attribute_exists(heldFrom) AND heldFrom.#key > :key",
                ExpressionAttributeNames={"#key": "timestamp"}, ExpressionAttributeValues={":key": text(row.key)},
            )  # fmt: skip

    def held(self, subscriber_id: str, producer_id: str, pair: Pair) -> Iterable[Row]:
        """The rows of a pair from where it is held, in the stream's sequence."""
        if pair.held_key is None or pair.held_sequence is None:
            return []
        rows = [
            row
            for row in self._rows(subscriber_id, producer_id, pair.held_key)
            if int(row.sequence) >= int(pair.held_sequence)
        ]
        return sorted(rows, key=lambda row: int(row.sequence))

    def since(self, marker: Marker) -> Iterable[Row]:
        """The rows that a replay asks for, oldest first."""
        for row in self._rows(marker.subscriber_id, marker.producer_id, time_text(marker.since_ms)):
            yield msgspec.structs.replace(row, replay_id=marker.replay_id)

    def count_since(self, subscriber_id: str, producer_id: str, since_ms: int) -> int:
        """How many rows a replay would deliver."""
        return sum(1 for _ in self._rows(subscriber_id, producer_id, time_text(since_ms)))

    def settle(self, subscriber_id: str, producer_id: str, pair: Pair) -> None:
        """Nothing is held any more, unless more was held meanwhile."""
        values = {":active": text("active"), ":state": text("draining")}
        condition = "#state = :state"
        if pair.held_key is not None:
            condition += " AND heldFrom.#key = :key"
            values[":key"] = text(pair.held_key)
        names = {**_STATE, **({"#key": "timestamp"} if pair.held_key is not None else {})}
        self._tables.conditional(
            "update_item", SUBSCRIBERS, Key=pair_key(subscriber_id, producer_id),
            UpdateExpression="SET #state = :active REMOVE heldFrom", ConditionExpression=condition,
            ExpressionAttributeNames=names, ExpressionAttributeValues=values,
        )  # fmt: skip

    def remember_newest(self, subscriber_id: str, newest_ms: int) -> None:
        """Note the youngest timestamp that the agent was sent."""
        self._tables.conditional(
            "update_item", AGENTS, Key={"agentId": text(subscriber_id)},
            UpdateExpression="SET newestReleased = :newest",
            ConditionExpression="attribute_exists(agentId) AND "
            "(attribute_not_exists(newestReleased) OR newestReleased < :newest)",
            ExpressionAttributeValues={":newest": number(newest_ms)},
        )  # fmt: skip

    def draining(self) -> set[str]:
        """The agents of which something waits to be drained."""
        items = self._tables.pages(
            "scan", SUBSCRIBERS, FilterExpression="#state = :draining", ExpressionAttributeNames=_STATE,
            ExpressionAttributeValues={":draining": text("draining")},
        )  # fmt: skip
        return {item["subscriberId"]["S"] for item in items}

    def read(self, keys: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Rows by their keys."""
        return list(self._read(SUBSCRIBER_EVENTS, keys))

    def _read(self, table: Table, keys: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
        """Items by their keys, as the last writes left them; what was not processed is asked for again."""
        name = self._tables.name(table)
        for start in range(0, len(keys), _MOST_KEYS):
            wanted: Any = list(keys[start : start + _MOST_KEYS])
            while wanted:
                answer = self._tables.batch("batch_get_item", {name: {"Keys": wanted, "ConsistentRead": True}})
                yield from answer["Responses"].get(name, [])
                wanted = answer.get("UnprocessedKeys", {}).get(name, {}).get("Keys", [])

    def _rows(self, subscriber_id: str, producer_id: str, from_key: str) -> Iterable[Row]:
        items = self._tables.pages(
            "query", SUBSCRIBER_EVENTS, ConsistentRead=True,
            KeyConditionExpression="subscriberId = :id AND #key BETWEEN :from AND :end",
            FilterExpression="producerId = :producer", ExpressionAttributeNames={"#key": "timestamp"},
            ExpressionAttributeValues={":id": text(subscriber_id), ":from": text(from_key), ":end": text("~"),
                                       ":producer": text(producer_id)},
        )  # fmt: skip
        return (row for item in items if isinstance(row := row_of(item), Row))


def _recipient(item: Mapping[str, Any]) -> Recipient:
    newest = int(item["newestReleased"]["N"]) if "newestReleased" in item else -1
    return Recipient(item["agentId"]["S"], item["queueUrl"]["S"], item["order"]["S"], newest)


def _pair(item: Mapping[str, Any]) -> Pair:
    held = item.get("heldFrom", {}).get("M", {})
    return Pair(
        state=item["state"]["S"],
        held_sequence=held["sequenceNumber"]["S"] if held else None,
        held_key=held["timestamp"]["S"] if held else None,
    )
