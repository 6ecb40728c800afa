"""The journal on DynamoDB: its table, its items, and the encoding of their values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import msgspec

from postroad import connections
from postroad.connections import AwsConnection, deliver, translated
from postroad.errors import ConfigurationError, PostroadError
from postroad.journal.event import JournalEvent
from postroad.journal.events import MAX_TIMESTAMP, MIN_TIMESTAMP
from postroad.journal.keys import EVENTS, INDEX_KEYS, KEY_NAMES, KEYS, TIMESTAMP, keys_of, table_name
from postroad.journal.port import PLACE_SIZE, Entity, Entry, Query, place_of, time_of

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient


_MAX_LEVELS: Final = 30
_SMALLEST, _LARGEST = 1e-130, 9.9e125
_TOO_LARGE = 10**37


def _attribute(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, int | float):
        return {"N": repr(value)}
    if isinstance(value, dict):
        return {"M": {key: _attribute(child) for key, child in value.items()}}
    return {"NULL": True} if value is None else {"L": [_attribute(child) for child in value]}


def _value(attribute: Mapping[str, Any]) -> Any:
    ((kind, value),) = attribute.items()
    if kind == "N":
        return int(value) if value.lstrip("-").isdigit() else float(value)
    if kind == "M":
        return {key: _value(child) for key, child in value.items()}
    if kind == "L":
        return [_value(child) for child in value]
    return None if kind == "NULL" else value


def _fits(value: Any, levels: int) -> bool:
    if isinstance(value, int):
        return -_TOO_LARGE < value < _TOO_LARGE
    if isinstance(value, float):
        # DynamoDB gives back 1.0 as 1.
        return not value.is_integer() and _SMALLEST <= abs(value) <= _LARGEST
    if isinstance(value, dict):
        return levels > 0 and "" not in value and all(_fits(child, levels - 1) for child in value.values())
    return not isinstance(value, list) or (levels > 0 and all(_fits(child, levels - 1) for child in value))


def _differences(found: Mapping[str, Any]) -> Iterator[str]:
    types = {entry["AttributeName"]: entry["AttributeType"] for entry in found["AttributeDefinitions"]}
    indexes = {index["IndexName"]: index for index in found.get("GlobalSecondaryIndexes") or ()}
    pairs: list[tuple[str, object, object]] = [
        ("BillingMode", found.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED"), connections.BILLING),
    ]
    # The names of keys mean nothing to whoever reads this.
    if tuple(connections.key_names(found)) != EVENTS.keys:
        yield "its key is another one"
    for name, wanted in EVENTS.indexes.items():
        if (index := indexes.get(name)) is None:
            yield f"there is no index {name}"
            continue
        if tuple(connections.key_names(index)) != wanted.keys:
            yield f"the key of index {name} is another one"
        projection = index.get("Projection", {}).get("ProjectionType")
        pairs.append((f"ProjectionType of {name}", projection, wanted.projection))
    if any(types[name] != "S" for name in KEY_NAMES if name in types):
        yield "not all of its keys are text"
    yield from (f"{what} is {is_now}, not {wanted}" for what, is_now, wanted in pairs if is_now != wanted)


def _check(name: str, wrong: Sequence[str]) -> None:
    if wrong:
        raise ConfigurationError(
            f"DynamoDB table {name!r} is not the events table: {'; '.join(wrong)}",
            field="table",
            remedy="Name another table with ?table= or $EVENTS_TABLE, or delete this one and create it again.",
        )


_DOCUMENTS: Final = ("context", "properties")
# After every character that follows the time in a key, so that the bound includes all keys of its millisecond.
_LAST: Final = "~"
_WITHOUT_TENANT: Final = ("GSI1", "GSI2", "GSI3")


class DynamoRecords:
    """Entries in one table, each stored by a conditional put."""

    def __init__(self, connection: AwsConnection, table: str | None = None) -> None:
        self._connection = connection
        self._table = table or connection.table or table_name(connection.stage)
        self._known: dict[str, connections.Make] = {"ResourceNotFoundException": self._no_table}

    def init(self) -> None:
        client, name = self._client, self._table
        with translated(f"DynamoDB table {name!r}"):
            connections.make_table(client, name, EVENTS, check=lambda found: _check(name, list(_differences(found))))
            if (expires_at := connections.expiry_of(client, name)) != EVENTS.ttl_attribute:
                _check(name, [f"its items end at {expires_at}, not at {EVENTS.ttl_attribute}"])

    def add(self, entries: Sequence[Entry], received_at: int, ttl: int | None) -> list[bool | PostroadError]:
        added = {"receivedAt": received_at} if ttl is None else {"receivedAt": received_at, "ttl": ttl}
        sent = [connections.Entry({**entry.event.to_item(), **added}) for entry in entries]
        return deliver(sent, self._put, most=1, most_bytes=1)

    def has(self, event: JournalEvent) -> bool:
        keys = keys_of(event)
        with translated("DynamoDB get of an event", self._known):
            answer = self._client.get_item(
                TableName=self._table,
                Key={"PK": {"S": keys["PK"]}, "SK": {"S": keys["SK"]}},
                ConsistentRead=True,
                ProjectionExpression="PK",
            )
        return "Item" in answer

    @property
    def expires_itself(self) -> bool:
        return True

    def remove(self, events: Sequence[JournalEvent]) -> None:
        sent = [connections.Entry({name: keys_of(event)[name] for name in ("PK", "SK")}) for event in events]
        for result in deliver(sent, self._delete, most=1, most_bytes=1):
            if isinstance(result, PostroadError):
                raise result

    def read(self, query: Query, low: bytes, high: bytes, limit: int) -> list[JournalEvent]:
        if _first_time(low) > _last_time(high):
            return []
        inside = (event for event in self._in_order(query, low, high, limit) if low < place_of(event) < high)
        return list(islice(inside, limit))

    def follow(self, tenant: str, event_types: Collection[str], position: str | None) -> None:
        """None: the table has no order of arrival."""

    def watch(self, tenant: str, entity: Entity, call: Callable[[bool], None]) -> None:
        """None: the table wakes nobody."""

    def states(self, tenant: str, *, app: str | None, since: int | None, state: str | None = None) -> None:
        """None: the table keeps no states."""

    @property
    def _client(self) -> DynamoDBClient:
        return self._connection.dynamodb

    def _put(self, items: list[dict[str, Any]]) -> list[bool]:
        with translated("DynamoDB put of an event", self._known):
            try:
                self._client.put_item(
                    TableName=self._table,
                    Item=_item_of(items[0]),
                    ConditionExpression="attribute_not_exists(PK)",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except self._client.exceptions.ConditionalCheckFailedException as error:
                stored = cast("Any", error.response).get("Item") or {}
                # If the answer of an attempt was lost, the next one finds what that attempt has stored.
                return [connections.was_unsure() and stored.get("receivedAt") == _attribute(items[0]["receivedAt"])]
        return [True]

    def _delete(self, keys: list[dict[str, Any]]) -> list[bool]:
        with translated("DynamoDB delete of an event", self._known):
            self._client.delete_item(TableName=self._table, Key=_item_of(keys[0]))
        return [True]

    def _in_order(self, query: Query, low: bytes, high: bytes, limit: int) -> Iterator[JournalEvent]:
        """Yield events by time and id. The index orders by time only, so all events of a millisecond are read."""
        found = self._items(query, low, high, limit)
        for _, run in groupby(found, key=lambda event: event.timestamp):
            yield from sorted(run, key=lambda event: event.event_id, reverse=query.descending)

    def _items(self, query: Query, low: bytes, high: bytes, limit: int) -> Iterator[JournalEvent]:
        asked = self._asked(query, low, high, limit)
        while True:
            with translated(f"DynamoDB query of {self._table!r}", self._known):
                answer = self._client.query(**asked)
            yield from (_event(item) for item in answer["Items"])
            if "LastEvaluatedKey" not in answer:
                return
            asked["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def _asked(self, query: Query, low: bytes, high: bytes, limit: int) -> dict[str, Any]:
        index, (entity_type, entity_id) = query.index, query.entity or ("", "")
        sought = JournalEvent(
            event_type=query.event_type or "",
            entity_type=entity_type,
            entity_id=entity_id,
            tenant_id=query.tenant,
            app=query.app or "",
            timestamp=0,
            event_id=UUID(int=0),
            context={},
            properties={},
        )
        keys, known = INDEX_KEYS.get(f"{index}-index", KEYS), keys_of(sought)
        prefix = known[keys[1]].rpartition(TIMESTAMP)[0] + TIMESTAMP
        values = {
            ":whose": {"S": known[keys[0]]},
            ":low": {"S": f"{prefix}{_first_time(low)}"},
            ":high": {"S": f"{prefix}{_last_time(high)}{_LAST}"},
        }
        asked = {
            "TableName": self._table,
            "KeyConditionExpression": "#whose = :whose AND #when BETWEEN :low AND :high",
            "ExpressionAttributeNames": {"#whose": keys[0], "#when": keys[1]},
            "ExpressionAttributeValues": values,
            "ScanIndexForward": not query.descending,
            "Limit": limit + 1,
        }
        if index == "PK":
            return asked | {"ConsistentRead": True}
        if index in _WITHOUT_TENANT:
            values[":tenant"] = {"S": query.tenant}
            asked["FilterExpression"] = "tenantId = :tenant"
        return asked | {"IndexName": f"{index}-index"}

    def _no_table(self, _: str) -> ConfigurationError:
        return ConfigurationError(
            f"there is no DynamoDB table {self._table!r}",
            field="table",
            remedy="Create it with `postroad journal init` or the topology, or name another with $EVENTS_TABLE.",
        )


def _first_time(low: bytes) -> int:
    """Return the first millisecond that may hold an event after the place."""
    return max(time_of(low), MIN_TIMESTAMP)


def _last_time(high: bytes) -> int:
    """Return the last millisecond that may hold an event before the place."""
    return min(time_of(high) - (len(high) < PLACE_SIZE), MAX_TIMESTAMP)


def _item_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes; a document is JSON text if a map of DynamoDB would refuse or change it."""
    return {
        name: {"S": msgspec.json.encode(value).decode()}
        if name in _DOCUMENTS and not _fits(value, _MAX_LEVELS)
        else _attribute(value)
        for name, value in item.items()
    }


def _event(item: Mapping[str, Any]) -> JournalEvent:
    values = {name: _value(attribute) for name, attribute in item.items()}
    for name in _DOCUMENTS:
        if isinstance(values.get(name), str):
            values[name] = msgspec.json.decode(values[name])
    return JournalEvent.from_item(values)
