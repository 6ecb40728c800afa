"""Subscriptions and grants in DynamoDB: pause, resume, replay and discard."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from postroad.agents.aws.pairs import DynamoPairs, Key, pair_key
from postroad.agents.aws.rows import discarded_of, event_types_of, marker_item, number, text
from postroad.agents.model import Subscription, not_found, now_text
from postroad.agents.port import Registry
from postroad.agents.tables import (
    AGENT_GRANTS,
    AGENTS,
    BY_SUBSCRIBER,
    MOST_AT_ONCE,
    PAUSES,
    SUBSCRIBER_EVENTS,
    SUBSCRIBERS,
    Tables,
)
from postroad.clock import Clock
from postroad.errors import Unavailable

_NEW: Final = "attribute_not_exists(producerId)"
_EXISTS: Final = "attribute_exists(producerId)"
_WAITS: Final = "attribute_exists(heldFrom) OR attribute_exists(replay)"
_NOTHING_WAITS: Final = f"{_EXISTS} AND attribute_not_exists(heldFrom) AND attribute_not_exists(replay)"
_BATCH: Final = 25
_ATTEMPTS: Final = 10
_KEPT: Final = timedelta(days=15)
"""Longer than a message stays in its queue."""


class DynamoSubscriptions:
    """Subscriptions and grants."""

    def __init__(self, tables: Tables, registry: Registry, pairs: DynamoPairs, clock: Clock) -> None:
        self._tables = tables
        self._registry = registry
        self._pairs = pairs
        self._clock = clock

    def add(
        self, pairs: Sequence[tuple[str, str]], *, validate: bool, event_types: tuple[str, ...] | None = None
    ) -> int:
        """Subscribe each (listener, producer), a hundred at a time all or none; return how many are new.

        A transaction of DynamoDB holds no more. All are checked before the first, and a repeat finishes the rest.
        """
        wanted = {listener for listener, _ in pairs} | ({producer for _, producer in pairs} if validate else set())
        for agent_id in sorted(wanted - self._registry.known(wanted)):
            raise not_found(agent_id)
        common: dict[str, Any] = {"createdAt": text(now_text(self._clock.now())), "state": text("active")}
        if event_types is not None:
            common["eventTypes"] = {"L": [text(each) for each in event_types]}
        keys = [pair_key(*pair) for pair in dict.fromkeys(pairs)]
        if len(keys) == 1:
            return self._add_one(keys[0], common)
        chunks = [keys[start : start + MOST_AT_ONCE] for start in range(0, len(keys), MOST_AT_ONCE)]
        return sum(self._add_together(chunk, common) for chunk in chunks)

    def remove(self, listener_id: str, producer_id: str, *, discard: bool) -> bool:
        """End a subscription; what was held back of it is sent, unless it is discarded with what else waits."""
        key = pair_key(listener_id, producer_id)
        if discard:
            answer = self._tables.call("delete_item", SUBSCRIBERS, Key=key, ReturnValues="ALL_OLD")
            self._discard(listener_id, producer_id)
            return bool(answer.get("Attributes"))
        while item := self._tables.item(SUBSCRIBERS, key):
            if self._end(key, item.get("heldFrom")):
                return True
        return False

    def page(
        self, limit: int, after: str | None, *, listener_id: str | None = None, producer_id: str | None = None
    ) -> list[Subscription]:
        own, other = ("producerId", "subscriberId") if listener_id is None else ("subscriberId", "producerId")
        condition, values = f"{own} = :own", {":own": text(listener_id or producer_id or "")}
        if after is not None:
            condition, values = f"{condition} AND {other} > :after", {**values, ":after": text(after)}
        where = {"ConsistentRead": True} if listener_id is None else {"IndexName": BY_SUBSCRIBER}
        answer = self._tables.call(
            "query",
            SUBSCRIBERS,
            KeyConditionExpression=condition,
            ExpressionAttributeValues=values,
            Limit=limit,
            **where,
        )
        return [
            Subscription(*_names(item), item["createdAt"]["S"], item["state"]["S"], event_types_of(item))
            for item in answer["Items"]
        ]

    def grant(self, producer_id: str, listener_id: str) -> None:
        for agent_id in sorted({producer_id, listener_id} - self._registry.known({producer_id, listener_id})):
            raise not_found(agent_id)
        item = {**pair_key(listener_id, producer_id), "createdAt": text(now_text(self._clock.now()))}
        self._tables.conditional("put_item", AGENT_GRANTS, Item=item, ConditionExpression=_NEW)

    def revoke(self, producer_id: str, listener_id: str) -> None:
        self._tables.call("delete_item", AGENT_GRANTS, Key=pair_key(listener_id, producer_id))

    def is_granted(self, producer_id: str, listener_id: str) -> bool:
        return self._tables.item(AGENT_GRANTS, pair_key(listener_id, producer_id)) is not None

    def pause(self, listener_id: str, producer_id: str) -> bool:
        """Withhold this producer's events; what already reached the queue is delivered."""
        return self._pairs.set_state(listener_id, producer_id, "paused", _EXISTS)

    def resume(self, listener_id: str, producer_id: str) -> bool:
        """Deliver what was withheld: the pair drains when the publisher meets the marker."""
        while not self._pairs.set_state(listener_id, producer_id, "active", _NOTHING_WAITS):
            if self._pairs.set_state(listener_id, producer_id, "draining", _WAITS):
                self._mark(listener_id, producer_id, f"resume-{uuid.uuid4().hex}")
                return True
            if not self._pairs.pairs(listener_id, {producer_id}).get(producer_id):
                return False
        return True

    def replay(self, listener_id: str, producer_id: str, since_ms: int) -> int | None:
        """Deliver this producer's rows again: the publisher reads them when it meets the marker."""
        pair = self._pairs.pairs(listener_id, {producer_id}).get(producer_id)
        if pair is None:
            return None
        sequences = [int(row.sequence) for row in self._pairs.since(listener_id, producer_id, since_ms)]
        if not sequences:
            return 0
        # A replay that is still waiting becomes part of this one.
        earliest = since_ms if pair.replay is None else min(since_ms, pair.replay.since_ms)
        replay_id = uuid.uuid4().hex
        replay = {"replayId": text(replay_id), "since": number(earliest), "until": text(str(max(sequences)))}
        values = {":replay": {"M": replay}}
        if not self._pairs.update(listener_id, producer_id, "SET replay = :replay", _EXISTS, values):
            return None
        self._mark(listener_id, producer_id, f"replay-{replay_id}")
        return len(sequences)

    def _mark(self, listener_id: str, producer_id: str, marker: str) -> None:
        item = marker_item(listener_id, producer_id, self._clock.now(), marker)
        self._tables.call("put_item", SUBSCRIBER_EVENTS, Item=item)

    def _discard(self, listener_id: str, producer_id: str) -> None:
        """Remove the rows of a pair, and let none of them be sent or received any more."""
        rows = [(row.key, int(row.sequence)) for row in self._pairs.since(listener_id, producer_id, 0)]
        if rows:
            self._store_discarded(listener_id, producer_id, max(sequence for _, sequence in rows))
            self._remove_rows(listener_id, [key for key, _ in rows])

    def _store_discarded(self, agent_id: str, producer_id: str, until: int) -> None:
        """Store that nothing of the producer up to this sequence is wanted; remove entries older than any message."""
        key = {"agentId": text(agent_id)}
        unset = "attribute_exists(agentId) AND attribute_not_exists(discarded)"
        self._tables.update(AGENTS, key, "SET discarded = :none", unset, {":none": {"M": {}}})
        item = self._tables.item(AGENTS, key) or {}
        highest = max(until, discarded_of(item).get(producer_id, -1))
        oldest = self._clock.now().astimezone(UTC) - _KEPT
        entries = item.get("discarded", {}).get("M", {})
        over = [
            name
            for name, entry in entries.items()
            if name != producer_id and datetime.fromisoformat(entry["M"]["at"]["S"]) < oldest
        ]
        remove = f" REMOVE {', '.join(f'discarded.#old{n}' for n in range(len(over)))}" if over else ""
        entry = {"M": {"until": text(str(highest)), "at": text(now_text(self._clock.now()))}}
        names = {"#new": producer_id, **{f"#old{n}": name for n, name in enumerate(over)}}
        update = f"SET discarded.#new = :entry{remove}"
        self._tables.update(AGENTS, key, update, "attribute_exists(discarded)", {":entry": entry}, names)

    def _remove_rows(self, agent_id: str, keys: Sequence[str]) -> None:
        table = self._tables.name(SUBSCRIBER_EVENTS)
        for start in range(0, len(keys), _BATCH):
            left: list[Any] = [
                {"DeleteRequest": {"Key": {"subscriberId": text(agent_id), "timestamp": text(key)}}}
                for key in keys[start : start + _BATCH]
            ]
            for _ in range(_ATTEMPTS):
                left = self._tables.batch("batch_write_item", {table: left}).get("UnprocessedItems", {}).get(table, [])
                if not left:
                    break
            else:
                raise Unavailable("DynamoDB does not remove all discarded rows", remedy="Unsubscribe again.")

    def _end(self, key: Key, held: Mapping[str, Any] | None) -> bool:
        """Remove the pair as it was read; what it held goes to the publisher in the same step."""
        if held is None:
            done = self._tables.conditional(
                "delete_item",
                SUBSCRIBERS,
                Key=key,
                ReturnValues="ALL_OLD",
                ConditionExpression="attribute_not_exists(heldFrom)",
            )
            return done is not None
        marker = marker_item(
            key["subscriberId"]["S"],
            key["producerId"]["S"],
            self._clock.now(),
            f"ended-{uuid.uuid4().hex}",
            heldFrom=held,
        )
        gone = {
            "TableName": self._tables.name(SUBSCRIBERS),
            "Key": key,
            "ConditionExpression": "heldFrom = :held",
            "ExpressionAttributeValues": {":held": held},
        }
        put = {"TableName": self._tables.name(SUBSCRIBER_EVENTS), "Item": marker}
        return self._tables.transact([{"Delete": gone}, {"Put": put}])

    def _add_one(self, key: Key, common: Mapping[str, Any]) -> int:
        for _ in range(_ATTEMPTS):
            if self._tables.conditional("put_item", SUBSCRIBERS, **_new_item(key, common)) is not None:
                return 1
            if self._tables.conditional("update_item", SUBSCRIBERS, **_new_types(key, common)) is not None:
                return 0
        raise _contended()

    def _add_together(self, keys: Sequence[Key], common: Mapping[str, Any]) -> int:
        """Add those that are missing and change the types of the others in one step; if others interfere, try again."""
        table = self._tables.name(SUBSCRIBERS)
        for pause in PAUSES:
            time.sleep(pause)
            there = {_names(item): item.get("eventTypes") for item in self._tables.read(SUBSCRIBERS, keys)}
            new = [{"Put": {"TableName": table, **_new_item(key, common)}} for key in keys if _names(key) not in there]
            changed = [
                {"Update": {"TableName": table, **_new_types(key, common)}}
                for key in keys
                if there.get(_names(key), common.get("eventTypes")) != common.get("eventTypes")
            ]
            if not (new or changed) or self._tables.transact([*new, *changed]):
                return len(new)
        raise _contended()


def _contended() -> Unavailable:
    return Unavailable("others keep changing the same subscriptions", remedy="Subscribe again.")


def _names(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["producerId"]["S"], item["subscriberId"]["S"]


def _new_item(key: Key, common: Mapping[str, Any]) -> dict[str, Any]:
    return {"Item": {**key, **common}, "ConditionExpression": _NEW}


def _new_types(key: Key, common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the change of an existing subscription to the given types."""
    change: dict[str, Any] = {"Key": key, "ConditionExpression": _EXISTS}
    if "eventTypes" not in common:
        return change | {"UpdateExpression": "REMOVE eventTypes"}
    values = {":types": common["eventTypes"]}
    return change | {"UpdateExpression": "SET eventTypes = :types", "ExpressionAttributeValues": values}
