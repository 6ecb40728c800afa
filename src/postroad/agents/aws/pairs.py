"""Pairs of listener and producer in DynamoDB, with marks for the rows that are held back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from postroad.agents.aws.fanout import Reject
from postroad.agents.aws.rows import (
    MARKER,
    UNREADABLE,
    Held,
    Marker,
    Pair,
    Recipient,
    Replay,
    Row,
    discarded_of,
    held_of,
    number,
    row_of,
    text,
)
from postroad.agents.model import time_text
from postroad.agents.tables import AGENTS, BY_SUBSCRIBER, SUBSCRIBER_EVENTS, SUBSCRIBERS, Tables
from postroad.clock import Clock
from postroad.errors import Unavailable

_STATE: Final = {"#state": "state"}
_UNHELD: Final = "attribute_exists(producerId) AND attribute_not_exists(heldFrom)"
_PAUSED: Final = f"{_UNHELD} AND #state = :paused"
_RUNNING: Final = f"{_UNHELD} AND #state <> :paused"
_COUNT: Final = "heldFrom.#notes = heldFrom.#notes + :one"
_AS_SEEN: Final = "heldFrom.#key = :key AND heldFrom.#notes = :notes"
_OLDER: Final = "attribute_exists(agentId) AND (attribute_not_exists(newestReleased) OR newestReleased < :newest)"
Key = dict[str, dict[str, str]]


def pair_key(listener_id: str, producer_id: str) -> Key:
    return {"producerId": text(producer_id), "subscriberId": text(listener_id)}


class DynamoPairs:
    """Pairs, and the marks for what is held back."""

    def __init__(self, tables: Tables, clock: Clock, reject: Reject) -> None:
        self._tables = tables
        self._clock = clock
        self.reject = reject

    def recipients(self, agent_ids: Sequence[str]) -> Mapping[str, Recipient]:
        """Return those of the agents that exist."""
        items = self._tables.read(AGENTS, [{"agentId": text(agent_id)} for agent_id in agent_ids])
        return {item["agentId"]["S"]: _recipient(item) for item in items if item["state"]["S"] == "active"}

    def pairs(self, subscriber_id: str, producer_ids: Collection[str]) -> Mapping[str, Pair]:
        """Return the agent's subscriptions to these producers, read consistently, and others that hold something."""
        held = self._tables.pages(
            "query",
            SUBSCRIBERS,
            IndexName=BY_SUBSCRIBER,
            KeyConditionExpression="subscriberId = :id",
            FilterExpression="#state <> :active",
            ExpressionAttributeNames=_STATE,
            ExpressionAttributeValues={":id": text(subscriber_id), ":active": text("active")},
        )
        # The index may lag behind: it says where else to look, and each pair is then read consistently.
        wanted = sorted({item["producerId"]["S"] for item in held} | set(producer_ids))
        keys = [pair_key(subscriber_id, producer_id) for producer_id in wanted]
        return {item["producerId"]["S"]: _pair(item) for item in self._tables.read(SUBSCRIBERS, keys)}

    def hold(self, row: Row) -> bool:
        """Mark the row as the first one of its pair that was not sent; return False without such a pair.

        An earlier mark stays, a lower key replaces the key. A pair that is not paused drains then.
        """
        pair = row.subscriber_id, row.producer_id
        fresh = {":held": _held_item(Held(row.sequence, row.key)), ":paused": text("paused")}
        one = {":one": number(1)}
        changes = (
            ("SET heldFrom = :held", _PAUSED, fresh),
            ("SET heldFrom = :held, #state = :draining", _RUNNING, {**fresh, ":draining": text("draining")}),
            (f"SET heldFrom.#key = :key, {_COUNT}", "heldFrom.#key > :key", {":key": text(row.key), **one}),
            (f"SET {_COUNT}", "attribute_exists(heldFrom)", one),
        )
        for _ in range(10):
            if any(self.update(*pair, *change) for change in changes):
                return True
            if not list(self._tables.read(SUBSCRIBERS, [pair_key(*pair)])):
                return False
        raise Unavailable(f"the subscription of {row.subscriber_id} to {row.producer_id} keeps changing")

    def advance(self, row: Row, pair: Pair) -> None:
        """Mark that everything held before this row was sent, unless the mark changed in the meantime."""
        if pair.held is not None:
            moved = {":held": _held_item(Held(row.sequence, row.key, pair.held.notes + 1))}
            values = {**moved, ":key": text(pair.held.key), ":notes": number(pair.held.notes)}
            self.update(row.subscriber_id, row.producer_id, "SET heldFrom = :held", _AS_SEEN, values)

    def drain_later(self, subscriber_id: str, producer_id: str) -> None:
        """Let the pair drain later, unless it is paused."""
        self.set_state(subscriber_id, producer_id, "draining", "#state = :active", {":active": text("active")})

    def set_state(
        self, subscriber_id: str, producer_id: str, state: str, condition: str, values: Mapping[str, Any] | None = None
    ) -> bool:
        """Set the state of a pair under a condition; return whether it held."""
        values = {":state": text(state), **(values or {})}
        return self.update(subscriber_id, producer_id, "SET #state = :state", condition, values)

    def held(self, subscriber_id: str, producer_id: str, held: Held) -> Iterable[Row]:
        """Return the rows of a pair from where it is held, in the stream's sequence."""
        rows = self._rows(subscriber_id, producer_id, held.key)
        behind = [row for row in rows if int(row.sequence) >= int(held.sequence)]
        return sorted(behind, key=lambda row: int(row.sequence))

    def replayed(self, subscriber_id: str, producer_id: str, replay: Replay) -> Iterable[Row]:
        """Yield the rows that a replay asks for, oldest first."""
        for row in self.since(subscriber_id, producer_id, replay.since_ms):
            if int(row.sequence) <= int(replay.until):
                yield msgspec.structs.replace(row, replay_id=replay.replay_id)

    def since(self, subscriber_id: str, producer_id: str, since_ms: int) -> Iterable[Row]:
        """Return the rows of a pair from a time on, by time."""
        return self._rows(subscriber_id, producer_id, time_text(since_ms))

    def settle(self, subscriber_id: str, producer_id: str, pair: Pair) -> None:
        """Mark that nothing is held or replayed any more, unless the marks changed in the meantime."""
        conditions, values = ["#state = :state"], {":active": text("active"), ":state": text(pair.state)}
        if pair.held is None:
            conditions.append("attribute_not_exists(heldFrom)")
        else:
            conditions.append(_AS_SEEN)
            values |= {":key": text(pair.held.key), ":notes": number(pair.held.notes)}
        if pair.replay is None:
            conditions.append("attribute_not_exists(replay)")
        else:
            conditions.append("replay.replayId = :replay")
            values[":replay"] = text(pair.replay.replay_id)
        update = "SET #state = :active REMOVE heldFrom, replay"
        self.update(subscriber_id, producer_id, update, " AND ".join(conditions), values)

    def remember_newest(self, subscriber_id: str, newest_ms: int) -> None:
        key, values = {"agentId": text(subscriber_id)}, {":newest": number(newest_ms)}
        self._tables.update(AGENTS, key, "SET newestReleased = :newest", _OLDER, values)

    def waiting(self) -> list[Marker]:
        """Return markers for all pairs that drain or wait for a replay."""
        items = self._tables.pages(
            "scan",
            SUBSCRIBERS,
            FilterExpression="#state = :draining OR (#state = :active AND attribute_exists(replay))",
            ExpressionAttributeNames=_STATE,
            ExpressionAttributeValues={":draining": text("draining"), ":active": text("active")},
        )
        return [Marker(item["subscriberId"]["S"], MARKER, item["producerId"]["S"]) for item in items]

    def read(self, keys: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return list(self._tables.read(SUBSCRIBER_EVENTS, keys))

    def _rows(self, subscriber_id: str, producer_id: str, from_key: str) -> Iterator[Row]:
        # DynamoDB may take days to remove what has expired: until then it is there and does not count.
        items = self._tables.pages(
            "query",
            SUBSCRIBER_EVENTS,
            ConsistentRead=True,
            KeyConditionExpression="subscriberId = :id AND #key BETWEEN :from AND :end",
            FilterExpression="producerId = :producer AND expiresAt > :now",
            ExpressionAttributeNames={"#key": "timestamp"},
            ExpressionAttributeValues={
                ":id": text(subscriber_id),
                ":from": text(from_key),
                ":end": text("~"),
                ":producer": text(producer_id),
                ":now": number(int(self._clock.now().timestamp())),
            },
        )
        for item in items:
            try:
                row = row_of(item)
            except UNREADABLE:
                continue  # It was rejected when it came.
            if isinstance(row, Row):
                yield row

    def update(
        self, subscriber_id: str, producer_id: str, update: str, condition: str, values: Mapping[str, Any]
    ) -> bool:
        """Change a pair under a condition; return whether it held."""
        return self._tables.update(SUBSCRIBERS, pair_key(subscriber_id, producer_id), update, condition, values)


def _recipient(item: Mapping[str, Any]) -> Recipient:
    newest = int(item["newestReleased"]["N"]) if "newestReleased" in item else -1
    return Recipient(item["agentId"]["S"], item["queueUrl"]["S"], item["order"]["S"], newest, discarded_of(item))


def _pair(item: Mapping[str, Any]) -> Pair:
    asked = item["replay"]["M"] if "replay" in item else None
    replay = asked and Replay(asked["replayId"]["S"], int(asked["since"]["N"]), asked["until"]["S"])
    return Pair(item["state"]["S"], held_of(item), replay)


def _held_item(held: Held) -> dict[str, Any]:
    return {"M": {"sequenceNumber": text(held.sequence), "timestamp": text(held.key), "notes": number(held.notes)}}
