"""The journal on DynamoDB: its table, its items, and how their values are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroad.connections import (
    BILLING,
    AwsConnection,
    Entry as Sent,
    Make,
    deliver,
    expiry_of,
    key_names,
    make_table,
    translated,
)
from postroad.errors import ConfigurationError, PostroadError
from postroad.journal.checks import MAX_TIMESTAMP, MIN_TIMESTAMP
from postroad.journal.event import JournalEvent, keys_of
from postroad.journal.keys import (
    EVENTS,
    KEY_NAMES,
    PLACE_SIZE,
    partition_key,
    place_of,
    sort_prefix,
    table_name,
    time_of,
)
from postroad.journal.records import Entry, Question

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient


_MAX_LEVELS: Final = 30
_SMALLEST, _LARGEST = 1e-130, 9.9e125
_TOO_LARGE = 10**37


def written(value: Any) -> dict[str, Any]:
    """A value of JSON as an attribute."""
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, int | float):
        return {"N": repr(value)}
    if isinstance(value, dict):
        return {"M": {key: written(child) for key, child in value.items()}}
    return {"NULL": True} if value is None else {"L": [written(child) for child in value]}


def written_document(value: dict[str, Any]) -> dict[str, Any]:
    """An object as an attribute: as a map, or as JSON text where a map of DynamoDB would refuse or change it."""
    return written(value) if _fits(value, _MAX_LEVELS) else {"S": msgspec.json.encode(value).decode()}


def read(attribute: Mapping[str, Any]) -> Any:
    """An attribute as the value of JSON that was written."""
    ((kind, value),) = attribute.items()
    if kind == "N":
        return _number(value)
    if kind == "M":
        return {key: read(child) for key, child in value.items()}
    if kind == "L":
        return [read(child) for child in value]
    return None if kind == "NULL" else value


def read_document(attribute: Mapping[str, Any]) -> Any:
    """An object, whichever way it was written."""
    return msgspec.json.decode(attribute["S"]) if "S" in attribute else read(attribute)


def _fits(value: Any, levels: int) -> bool:
    if isinstance(value, int):
        return -_TOO_LARGE < value < _TOO_LARGE
    if isinstance(value, float):
        # DynamoDB gives back 1.0 as 1.
        return not value.is_integer() and _SMALLEST <= abs(value) <= _LARGEST
    if isinstance(value, dict):
        return levels > 0 and "" not in value and all(_fits(child, levels - 1) for child in value.values())
    return not isinstance(value, list) or (levels > 0 and all(_fits(child, levels - 1) for child in value))


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def make_or_verify(client: DynamoDBClient, name: str) -> None:
    """Make the table when it is missing; one that differs is a `ConfigurationError` that says how."""
    with translated(f"DynamoDB table {name!r}"):
        make_table(client, name, EVENTS, check=lambda found: _check(name, list(_differences(found))))
        if (expires_at := expiry_of(client, name)) != EVENTS.ttl_attribute:
            _check(name, [f"its items end at {expires_at}, not at {EVENTS.ttl_attribute}"])


def _differences(found: Mapping[str, Any]) -> Iterator[str]:
    billing = found.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    yield from _difference("BillingMode", billing, BILLING)
    yield from _difference("KeySchema", tuple(key_names(found)), EVENTS.keys)
    types = {entry["AttributeName"]: entry["AttributeType"] for entry in found["AttributeDefinitions"]}
    indexes = {index["IndexName"]: index for index in found.get("GlobalSecondaryIndexes") or ()}
    for index, wanted in EVENTS.indexes.items():
        if index not in indexes:
            yield f"there is no index {index}"
            continue
        yield from _difference(f"KeySchema of {index}", tuple(key_names(indexes[index])), wanted.keys)
        projection = indexes[index].get("Projection", {}).get("ProjectionType")
        yield from _difference(f"ProjectionType of {index}", projection, wanted.projection)
    for name in KEY_NAMES:
        if name in types:
            yield from _difference(f"AttributeType of {name}", types[name], "S")


def _difference(what: str, found: object, wanted: object) -> Iterator[str]:
    if found != wanted:
        yield f"{what} is {found}, not {wanted}"


def _check(name: str, wrong: Sequence[str]) -> None:
    if wrong:
        raise ConfigurationError(
            f"DynamoDB table {name!r} is not the events table: {'; '.join(wrong)}",
            field="table",
            remedy="Name another table with ?table= or $EVENTS_TABLE, or make this one anew.",
        )


_DOCUMENTS: Final = ("context", "properties")
# Behind every character that follows the time in a key, so that the bound includes all keys of its millisecond.
_LAST: Final = "~"
_WITHOUT_TENANT: Final = ("GSI1", "GSI2", "GSI3")


class DynamoRecords:
    """Entries in one table, each under a conditional put."""

    def __init__(self, connection: AwsConnection, table: str | None = None) -> None:
        self._connection = connection
        self._table = table or connection.table or table_name(connection.stage)
        self._known: dict[str, Make] = {"ResourceNotFoundException": self._no_table}

    def init(self) -> None:
        """Make the table with its indexes when it is missing, or say how it differs from what is needed."""
        make_or_verify(self._client, self._table)

    def add(self, entries: Sequence[Entry], received_at: int, ttl: int | None) -> list[bool | PostroadError]:
        """Keep each entry: True when it is new, False when it was there, or why it could not be kept."""
        added = {"receivedAt": received_at} if ttl is None else {"receivedAt": received_at, "ttl": ttl}
        sent = [Sent({**entry.event.to_item(), **added}) for entry in entries]
        return deliver(sent, self._put, most=1, most_bytes=1)

    def has(self, event: JournalEvent) -> bool:
        """Whether an event of this tenant, time and id is there."""
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
        """DynamoDB removes items whose `ttl` is over."""
        return True

    def remove(self, events: Sequence[JournalEvent]) -> None:
        """Forget these events; one that is not there changes nothing."""
        sent = [Sent({name: keys_of(event)[name] for name in ("PK", "SK")}) for event in events]
        for result in deliver(sent, self._delete, most=1, most_bytes=1):
            if isinstance(result, PostroadError):
                raise result

    def read(self, question: Question, low: bytes, high: bytes, limit: int) -> list[JournalEvent]:
        """Up to `limit` events between two places, both of them outside."""
        if _first_time(low) > _last_time(high):
            return []
        inside = (event for event in self._in_order(question, low, high, limit) if low < _place(event) < high)
        return list(islice(inside, limit))

    @property
    def _client(self) -> DynamoDBClient:
        return self._connection.dynamodb

    def _put(self, items: list[dict[str, Any]]) -> list[bool]:
        with translated("DynamoDB put of an event", self._known):
            try:
                self._client.put_item(
                    TableName=self._table, Item=_written(items[0]), ConditionExpression="attribute_not_exists(PK)"
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                return [False]
        return [True]

    def _delete(self, keys: list[dict[str, Any]]) -> list[bool]:
        with translated("DynamoDB delete of an event", self._known):
            self._client.delete_item(TableName=self._table, Key=_written(keys[0]))
        return [True]

    def _in_order(self, question: Question, low: bytes, high: bytes, limit: int) -> Iterator[JournalEvent]:
        """Events by time and id. The index orders by time only: a run of equal times is read to its end."""
        found = self._items(question, low, high, limit)
        for _, run in groupby(found, key=lambda event: event.timestamp):
            yield from sorted(run, key=lambda event: event.event_id, reverse=question.descending)

    def _items(self, question: Question, low: bytes, high: bytes, limit: int) -> Iterator[JournalEvent]:
        asked = self._asked(question, low, high, limit)
        while True:
            with translated(f"DynamoDB query of {self._table!r}", self._known):
                answer = self._client.query(**asked)
            yield from (_event(item) for item in answer["Items"])
            if "LastEvaluatedKey" not in answer:
                return
            asked["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def _asked(self, question: Question, low: bytes, high: bytes, limit: int) -> dict[str, Any]:
        index, tenant, entity, app = question.index, question.tenant, question.entity, question.app
        prefix = sort_prefix(index, tenant=tenant, entity=entity, app=app)
        whose = partition_key(index, tenant=tenant, entity=entity, app=app, kind=question.event_type)
        values = {
            ":whose": {"S": whose},
            ":low": {"S": f"{prefix}{_first_time(low)}"},
            ":high": {"S": f"{prefix}{_last_time(high)}{_LAST}"},
        }
        asked = {
            "TableName": self._table,
            "KeyConditionExpression": "#whose = :whose AND #when BETWEEN :low AND :high",
            "ExpressionAttributeNames": dict(zip(("#whose", "#when"), _key_names(index), strict=True)),
            "ExpressionAttributeValues": values,
            "ScanIndexForward": not question.descending,
            "Limit": limit + 1,
        }
        if index == "PK":
            return asked | {"ConsistentRead": True}
        if index in _WITHOUT_TENANT:
            values[":tenant"] = {"S": tenant}
            asked["FilterExpression"] = "tenantId = :tenant"
        return asked | {"IndexName": f"{index}-index"}

    def _no_table(self, _: str) -> ConfigurationError:
        return ConfigurationError(
            f"there is no DynamoDB table {self._table!r}",
            field="table",
            remedy="Create it with `postroad journal init` or the topology, or name another with $EVENTS_TABLE.",
        )


def _key_names(index: str) -> tuple[str, str]:
    return ("PK", "SK") if index == "PK" else (f"{index}PK", f"{index}SK")


def _first_time(low: bytes) -> int:
    """The first millisecond that may hold something behind the place."""
    return max(time_of(low), MIN_TIMESTAMP)


def _last_time(high: bytes) -> int:
    """The last millisecond that may hold something before the place."""
    return min(time_of(high) - (len(high) < PLACE_SIZE), MAX_TIMESTAMP)


def _place(event: JournalEvent) -> bytes:
    return place_of(event.timestamp, event.event_id)


def _written(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (written_document if name in _DOCUMENTS else written)(value) for name, value in item.items()}


def _event(item: Mapping[str, Any]) -> JournalEvent:
    return JournalEvent.from_item(
        {name: (read_document if name in _DOCUMENTS else read)(value) for name, value in item.items()}
    )
