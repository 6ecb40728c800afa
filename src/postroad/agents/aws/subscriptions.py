"""Who listens to whom, in DynamoDB."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from postroad.agents.aws.rows import marker_item, text
from postroad.agents.aws.tables import MOST_AT_ONCE, PAUSES, Tables
from postroad.agents.model import Subscription
from postroad.agents.port import Registry
from postroad.agents.rules import not_found, now_text
from postroad.agents.tables import AGENT_GRANTS, BY_SUBSCRIBER, SUBSCRIBER_EVENTS, SUBSCRIBERS
from postroad.clock import Clock
from postroad.errors import Unavailable

_NEW: Final = "attribute_not_exists(producerId)"
Key = dict[str, dict[str, str]]


def pair_key(listener_id: str, producer_id: str) -> Key:
    """What finds a subscription or a grant."""
    return {"producerId": text(producer_id), "subscriberId": text(listener_id)}


class DynamoSubscriptions:
    """Subscriptions and grants."""

    def __init__(self, tables: Tables, registry: Registry, clock: Clock, discard: Callable[[str, str], None]) -> None:
        self._tables = tables
        self._registry = registry
        self._clock = clock
        self._discard = discard

    def add(self, pairs: Sequence[tuple[str, str]], *, validate: bool) -> int:
        """Subscribe each (listener, producer), a hundred at a time all or none; how many are new.

        A transaction of DynamoDB holds no more. Everything is checked before the first, and a repeat finishes the rest.
        """
        wanted = {listener for listener, _ in pairs} | ({producer for _, producer in pairs} if validate else set())
        for agent_id in sorted(wanted - self._registry.known(wanted)):
            raise not_found(agent_id)
        created_at = text(now_text(self._clock.now()))
        keys = [pair_key(*pair) for pair in dict.fromkeys(pairs)]
        if len(keys) == 1:
            return self._add(keys[0], created_at)
        chunks = [keys[start : start + MOST_AT_ONCE] for start in range(0, len(keys), MOST_AT_ONCE)]
        return sum(self._add_together(chunk, created_at) for chunk in chunks)

    def remove(self, listener_id: str, producer_id: str, *, discard: bool) -> bool:
        """End a subscription; what was held back of it is sent, unless it is discarded with what else waits."""
        key = pair_key(listener_id, producer_id)
        if discard:
            answer = self._tables.call("delete_item", SUBSCRIBERS, Key=key, ReturnValues="ALL_OLD")
            self._discard(listener_id, producer_id)
            return bool(answer.get("Attributes"))
        while item := self._item(key):
            if self._end(key, item.get("heldFrom")):
                return True
        return False

    def get(self, listener_id: str, producer_id: str) -> Subscription | None:
        """One subscription."""
        item = self._item(pair_key(listener_id, producer_id))
        return None if item is None else _subscription(item)

    def page(
        self, *, listener_id: str | None = None, producer_id: str | None = None, limit: int, after: str | None
    ) -> list[Subscription]:
        """Subscriptions of one listener or to one producer, by the other side's id."""
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
        return [_subscription(item) for item in answer["Items"]]

    def grant(self, producer_id: str, listener_id: str) -> None:
        """Let the listener subscribe to the producer."""
        for agent_id in sorted({producer_id, listener_id} - self._registry.known({producer_id, listener_id})):
            raise not_found(agent_id)
        item = {**pair_key(listener_id, producer_id), "createdAt": text(now_text(self._clock.now()))}
        self._tables.conditional("put_item", AGENT_GRANTS, Item=item, ConditionExpression=_NEW)

    def revoke(self, producer_id: str, listener_id: str) -> None:
        """Take the grant back."""
        self._tables.call("delete_item", AGENT_GRANTS, Key=pair_key(listener_id, producer_id))

    def is_granted(self, producer_id: str, listener_id: str) -> bool:
        """Whether the producer granted it."""
        answer = self._tables.call(
            "get_item", AGENT_GRANTS, Key=pair_key(listener_id, producer_id), ConsistentRead=True
        )
        return bool(answer.get("Item"))

    def _item(self, key: Key) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None
        found = self._tables.call("get_item", SUBSCRIBERS, Key=key, ConsistentRead=True).get("Item")
        return found

    def _end(self, key: Key, held: Mapping[str, Any] | None) -> bool:
        """Remove the pair as it was seen; what it held goes to the publisher in the same step."""
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

    def _add(self, key: Key, created_at: dict[str, str]) -> int:
        made = self._tables.conditional("put_item", SUBSCRIBERS, **_new_item(key, created_at))
        return 0 if made is None else 1

    def _add_together(self, keys: Sequence[Key], created_at: dict[str, str]) -> int:
        """Add what is missing of these in one step; what somebody else adds meanwhile is looked at again."""
        table = self._tables.name(SUBSCRIBERS)
        for pause in PAUSES:
            time.sleep(pause)
            there = [{name: item[name] for name in keys[0]} for item in self._tables.read(SUBSCRIBERS, keys)]
            new = [_new_item(key, created_at) for key in keys if key not in there]
            if not new or self._tables.transact([{"Put": {"TableName": table, **item}} for item in new]):
                return len(new)
        raise Unavailable("others change the same subscriptions all the time", remedy="Subscribe again.")


def _new_item(key: Key, created_at: dict[str, str]) -> dict[str, Any]:
    item = {**key, "createdAt": created_at, "state": text("active")}
    return {"Item": item, "ConditionExpression": _NEW}


def _subscription(item: Mapping[str, Any]) -> Subscription:
    return Subscription(
        producer_id=item["producerId"]["S"],
        subscriber_id=item["subscriberId"]["S"],
        created_at=item["createdAt"]["S"],
        state=item["state"]["S"],
    )
