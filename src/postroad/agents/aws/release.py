"""What the publisher reads and notes down in DynamoDB."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from postroad.agents.aws.redrive import Rejects
from postroad.agents.aws.rows import MARKER, UNREADABLE, discarded_of, held_of, number, row_of, text
from postroad.agents.aws.subscriptions import pair_key
from postroad.agents.aws.tables import Tables
from postroad.agents.outgoing import Held, Marker, Pair, Recipient, Replay, Row
from postroad.agents.port import Rejected
from postroad.agents.rules import time_text
from postroad.agents.tables import AGENTS, BY_SUBSCRIBER, SUBSCRIBER_EVENTS, SUBSCRIBERS
from postroad.clock import Clock
from postroad.errors import Unavailable

_STATE: Final = {"#state": "state"}
_HELD_NAMES: Final = {"#key": "timestamp", "#notes": "notes"}
_UNHELD: Final = "attribute_exists(producerId) AND attribute_not_exists(heldFrom)"
_PAUSED: Final = f"{_UNHELD} AND #state = :paused"
_RUNNING: Final = f"{_UNHELD} AND #state <> :paused"
_COUNT: Final = "heldFrom.#notes = heldFrom.#notes + :one"
_AS_SEEN: Final = "heldFrom.#key = :key AND heldFrom.#notes = :notes"
_WAITING: Final = "#state = :draining OR (#state = :active AND attribute_exists(replay))"
_TRIES: Final = 10


class DynamoRelease:
    """Pairs and what is held of them."""

    def __init__(self, tables: Tables, clock: Clock, rejects: Rejects) -> None:
        self._tables = tables
        self._clock = clock
        self._rejects = rejects

    def recipients(self, agent_ids: Sequence[str]) -> Mapping[str, Recipient]:
        """Those of the agents that are there."""
        items = self._tables.read(AGENTS, [{"agentId": text(agent_id)} for agent_id in agent_ids])
        return {item["agentId"]["S"]: _recipient(item) for item in items if item["state"]["S"] == "active"}

    def pairs(self, subscriber_id: str, producer_ids: Collection[str]) -> Mapping[str, Pair]:
        """The agent's subscriptions to these producers, read consistently, and what else is held as far as known."""
        held = self._tables.pages(
            "query",
            SUBSCRIBERS,
            IndexName=BY_SUBSCRIBER,
            KeyConditionExpression="subscriberId = :id",
            FilterExpression="#state <> :active",
            ExpressionAttributeNames=_STATE,
            ExpressionAttributeValues={":id": text(subscriber_id), ":active": text("active")},
        )
        # The index may lag behind: it tells where else to look, and each pair is then read as it is.
        wanted = sorted({item["producerId"]["S"] for item in held} | set(producer_ids))
        keys = [pair_key(subscriber_id, producer_id) for producer_id in wanted]
        return {item["producerId"]["S"]: _pair(item) for item in self._tables.read(SUBSCRIBERS, keys)}

    def hold(self, row: Row) -> bool:
        """Note from where on nothing was sent; an earlier note stays, a lower key counts. False without a pair."""
        fresh = {":held": _held_item(Held(row.sequence, row.key))}
        for _ in range(_TRIES):
            if (
                self._note(row, "SET heldFrom = :held", _PAUSED, {**fresh, ":paused": text("paused")})
                or self._note(
                    row,
                    "SET heldFrom = :held, #state = :draining",
                    _RUNNING,
                    {**fresh, ":paused": text("paused"), ":draining": text("draining")},
                )
                or self._note(
                    row,
                    f"SET heldFrom.#key = :key, {_COUNT}",
                    "heldFrom.#key > :key",
                    {":key": text(row.key), ":one": number(1)},
                )
                or self._note(row, f"SET {_COUNT}", "attribute_exists(heldFrom)", {":one": number(1)})
            ):
                return True
            if not list(self._tables.read(SUBSCRIBERS, [pair_key(row.subscriber_id, row.producer_id)])):
                return False
        raise Unavailable(f"the subscription of {row.subscriber_id} to {row.producer_id} changes all the time")

    def advance(self, row: Row, pair: Pair) -> None:
        """Everything held before this row was sent, unless more was noted meanwhile."""
        if pair.held is not None:
            moved = {":held": _held_item(Held(row.sequence, row.key, pair.held.notes + 1))}
            values = {**moved, ":key": text(pair.held.key), ":notes": number(pair.held.notes)}
            self._note(row, "SET heldFrom = :held", _AS_SEEN, values)

    def drain_later(self, subscriber_id: str, producer_id: str) -> None:
        """Let the pair drain, unless it is paused."""
        self._tables.conditional(
            "update_item",
            SUBSCRIBERS,
            Key=pair_key(subscriber_id, producer_id),
            UpdateExpression="SET #state = :draining",
            ConditionExpression="#state = :active",
            ExpressionAttributeNames=_STATE,
            ExpressionAttributeValues={":draining": text("draining"), ":active": text("active")},
        )

    def held(self, subscriber_id: str, producer_id: str, held: Held) -> Iterable[Row]:
        """The rows of a pair from where it is held, in the stream's sequence."""
        rows = self._rows(subscriber_id, producer_id, held.key)
        behind = [row for row in rows if int(row.sequence) >= int(held.sequence)]
        return sorted(behind, key=lambda row: int(row.sequence))

    def replayed(self, subscriber_id: str, producer_id: str, replay: Replay) -> Iterable[Row]:
        """The rows that a replay asks for, oldest first."""
        for row in self.since(subscriber_id, producer_id, replay.since_ms):
            if int(row.sequence) <= int(replay.until):
                yield msgspec.structs.replace(row, replay_id=replay.replay_id)

    def since(self, subscriber_id: str, producer_id: str, since_ms: int) -> Iterable[Row]:
        """The rows of a pair from a time on, by time."""
        return self._rows(subscriber_id, producer_id, time_text(since_ms))

    def settle(self, subscriber_id: str, producer_id: str, pair: Pair) -> None:
        """Nothing is held or replayed any more, unless more was noted meanwhile."""
        conditions, values = ["#state = :state"], {":active": text("active"), ":state": text(pair.state)}
        names = dict(_STATE)
        if pair.held is None:
            conditions.append("attribute_not_exists(heldFrom)")
        else:
            conditions.append(_AS_SEEN)
            names |= _HELD_NAMES
            values |= {":key": text(pair.held.key), ":notes": number(pair.held.notes)}
        if pair.replay is None:
            conditions.append("attribute_not_exists(replay)")
        else:
            conditions.append("replay.replayId = :replay")
            values[":replay"] = text(pair.replay.replay_id)
        self._tables.conditional(
            "update_item",
            SUBSCRIBERS,
            Key=pair_key(subscriber_id, producer_id),
            UpdateExpression="SET #state = :active REMOVE heldFrom, replay",
            ConditionExpression=" AND ".join(conditions),
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=values,
        )

    def remember_newest(self, subscriber_id: str, newest_ms: int) -> None:
        """Note the youngest timestamp that the agent was sent."""
        self._tables.conditional(
            "update_item",
            AGENTS,
            Key={"agentId": text(subscriber_id)},
            UpdateExpression="SET newestReleased = :newest",
            ConditionExpression="attribute_exists(agentId) AND "
            "(attribute_not_exists(newestReleased) OR newestReleased < :newest)",
            ExpressionAttributeValues={":newest": number(newest_ms)},
        )

    def reject(self, rejected: Sequence[Rejected]) -> Sequence[Rejected]:
        """Put rows that no queue will ever take where they are seen; those that could not be put are returned."""
        return self._rejects.put(rejected)

    def waiting(self) -> list[Marker]:
        """Markers for all pairs that drain or wait to be replayed."""
        items = self._tables.pages(
            "scan",
            SUBSCRIBERS,
            FilterExpression=_WAITING,
            ExpressionAttributeNames=_STATE,
            ExpressionAttributeValues={":draining": text("draining"), ":active": text("active")},
        )
        return [Marker(item["subscriberId"]["S"], MARKER, item["producerId"]["S"]) for item in items]

    def read(self, keys: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Rows by their keys."""
        return list(self._tables.read(SUBSCRIBER_EVENTS, keys))

    def _rows(self, subscriber_id: str, producer_id: str, from_key: str) -> Iterable[Row]:
        # DynamoDB removes what has expired within days: until then it is there and no longer counts.
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
                ":now": number(self._now()),
            },
        )
        return (row for item in items if (row := _readable(item)) is not None)

    def _now(self) -> int:
        return int(self._clock.now().timestamp())

    def _note(self, row: Row, update: str, condition: str, values: dict[str, Any]) -> bool:
        """Change what is noted of the row's pair under a condition; whether it held."""
        used = f"{update} {condition}"
        names = {name: real for name, real in {**_STATE, **_HELD_NAMES}.items() if name in used}
        done = self._tables.conditional(
            "update_item",
            SUBSCRIBERS,
            Key=pair_key(row.subscriber_id, row.producer_id),
            UpdateExpression=update,
            ConditionExpression=condition,
            ExpressionAttributeValues=values,
            **({"ExpressionAttributeNames": names} if names else {}),
        )
        return done is not None


def _readable(item: Mapping[str, Any]) -> Row | None:
    """The row; None for one that cannot be read, which was put aside when it came."""
    try:
        row = row_of(item)
    except UNREADABLE:
        return None
    return row if isinstance(row, Row) else None


def _recipient(item: Mapping[str, Any]) -> Recipient:
    newest = int(item["newestReleased"]["N"]) if "newestReleased" in item else -1
    return Recipient(item["agentId"]["S"], item["queueUrl"]["S"], item["order"]["S"], newest, discarded_of(item))


def _pair(item: Mapping[str, Any]) -> Pair:
    return Pair(item["state"]["S"], held_of(item), _replay_of(item))


def _replay_of(item: Mapping[str, Any]) -> Replay | None:
    if "replay" not in item:
        return None
    told = item["replay"]["M"]
    return Replay(told["replayId"]["S"], int(told["since"]["N"]), told["until"]["S"])


def _held_item(held: Held) -> dict[str, Any]:
    return {"M": {"sequenceNumber": text(held.sequence), "timestamp": text(held.key), "notes": number(held.notes)}}
