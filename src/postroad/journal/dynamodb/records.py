"""Entries of the journal as items of the events table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

from postroad.connections.aws import AwsConnection
from postroad.connections.aws_errors import Make, translated
from postroad.connections.batches import Entry as Sent
from postroad.connections.batches import deliver
from postroad.errors import ConfigurationError, PostroadError
from postroad.journal.asking import Question
from postroad.journal.checks import MAX_TIMESTAMP, MIN_TIMESTAMP
from postroad.journal.dynamodb.attributes import read, read_document, written, written_document
from postroad.journal.dynamodb.table import make_or_verify
from postroad.journal.event import JournalEvent, keys_of
from postroad.journal.keys import partition_key, sort_prefix
from postroad.journal.places import SIZE, place_of, time_of
from postroad.journal.records import Entry
from postroad.journal.table import table_name

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient

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
            f"there is no DynamoDB table {self._table!r}", field="table",
            remedy="Create it with `postroad journal init` or the topology, or name another with $EVENTS_TABLE.",
        )  # fmt: skip


def _key_names(index: str) -> tuple[str, str]:
    return ("PK", "SK") if index == "PK" else (f"{index}PK", f"{index}SK")


def _first_time(low: bytes) -> int:
    """The first millisecond that may hold something behind the place."""
    return max(time_of(low), MIN_TIMESTAMP)


def _last_time(high: bytes) -> int:
    """The last millisecond that may hold something before the place."""
    return min(time_of(high) - (len(high) < SIZE), MAX_TIMESTAMP)


def _place(event: JournalEvent) -> bytes:
    return place_of(event.timestamp, event.event_id)


def _written(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (written_document if name in _DOCUMENTS else written)(value) for name, value in item.items()}


def _event(item: Mapping[str, Any]) -> JournalEvent:
    return JournalEvent.from_item(
        {name: (read_document if name in _DOCUMENTS else read)(value) for name, value in item.items()}
    )
