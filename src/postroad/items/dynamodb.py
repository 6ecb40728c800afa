"""Items in a DynamoDB table: `PK` is TENANT#{tenant}, `SK` the rest of the key."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, cast

from postroad.connections import AwsConnection, Make, translated, was_unsure
from postroad.errors import ConfigurationError, OutcomeUnknown
from postroad.items import port
from postroad.items.port import ABSENT, ANY, Expect, Expected, Item, ItemPage, ItemResult, ItemsTraits

_NAMES = {"#value": "value", "#version": "version", "#write": "write"}
_ONE = {"N": "1"}


class DynamoItems:
    """Items under conditional writes and consistent reads.

    Args:
        connection: The connection to AWS.
        table: The table's name; by default that of the connection, or `events-` and its stage.
    """

    traits = ItemsTraits(durable=True, joins_writes=False, max_value_bytes=port.MAX_VALUE_BYTES)

    def __init__(self, connection: AwsConnection, table: str | None = None) -> None:
        self._connection = connection
        self._table = table or connection.table or f"events-{connection.stage}"
        self._known: dict[str, Make] = {"ResourceNotFoundException": self._no_table}

    def get(self, key: str) -> Item | None:
        port.check_key(key)
        with translated(f"DynamoDB get of {key!r}", self._known):
            return _item(key, self._row(key))

    def put(self, key: str, value: bytes, *, expect: Expected = ANY) -> ItemResult:
        port.check_key(key)
        port.check_value(value)
        wanted = port.check_expect(expect)
        write_id = uuid.uuid4().hex
        values = {":value": {"B": value}, ":one": _ONE, ":write": {"S": write_id}}
        update = "SET #value = :value, #write = :write ADD #version :one"
        done, raw = self._write("update_item", key, wanted, values, UpdateExpression=update, ReturnValues="ALL_NEW")
        # If the answer of an attempt was lost, the next one finds the value of this very write.
        wrote_before = raw is not None and raw.get("write") == {"S": write_id}
        before = wanted if isinstance(wanted, int) else 0
        may_have_followed = raw is None or int(raw.get("version", _ONE)["N"]) != before + 1
        if not done and not wrote_before and was_unsure() and may_have_followed:
            raise OutcomeUnknown(f"DynamoDB put of {key!r}: the item was changed again, after this call or without it")
        return ItemResult(ok=done or wrote_before, item=_item(key, raw))

    def delete(self, key: str, *, expect: Expected = ANY) -> ItemResult:
        port.check_key(key)
        wanted = port.check_expect(expect)
        if wanted is ABSENT:
            current = self.get(key)
            return ItemResult(ok=current is None, item=current)
        done, raw = self._write("delete_item", key, wanted, {})
        if not done and raw is None and was_unsure():
            raise OutcomeUnknown(f"DynamoDB delete of {key!r}: it is gone, by this call or by another")
        return ItemResult(ok=done, item=None if done else _item(key, raw))

    def scan(self, prefix: str, *, limit: int = 100, cursor: str | None = None) -> ItemPage:
        port.check_scan(prefix, limit, cursor)
        found: list[Item] = []
        start = None if cursor is None else _key(cursor)
        while True:
            answer = self._query(prefix, limit + 1 - len(found), start)
            found += [item for raw in answer["Items"] if (item := _item(_text(raw), raw)) is not None]
            start = answer.get("LastEvaluatedKey")
            if start is None or len(found) > limit:
                break
        page = tuple(found[:limit])
        return ItemPage(items=page, cursor=page[-1].key if len(found) > limit else None)

    def _write(
        self, operation: str, key: str, expect: int | Expect, values: dict[str, Any], **parameters: Any
    ) -> tuple[bool, Mapping[str, Any] | None]:
        """Return whether the condition held, and the row as it is then."""
        parameters |= _condition(expect, values)
        if values:
            parameters["ExpressionAttributeValues"] = values
        names = {name: meant for name, meant in _NAMES.items() if name in str(parameters)}
        if names:
            parameters["ExpressionAttributeNames"] = names
        with translated(f"DynamoDB {operation} of {key!r}", self._known):
            client = self._connection.dynamodb
            try:
                answer = getattr(client, operation)(TableName=self._table, Key=_key(key), **parameters)
            except client.exceptions.ConditionalCheckFailedException as error:
                # No item in the answer: there is none, or this endpoint does not return what it found.
                return False, cast("Any", error.response).get("Item") or self._row(key)
        return True, answer.get("Attributes")

    def _row(self, key: str) -> Mapping[str, Any] | None:
        return self._connection.dynamodb.get_item(TableName=self._table, Key=_key(key), ConsistentRead=True).get("Item")

    def _query(self, prefix: str, limit: int, start: Mapping[str, Any] | None) -> Any:
        tenant, _, rest = prefix.partition("/")
        values: dict[str, Any] = {":pk": {"S": f"TENANT#{tenant}"}}
        condition = "PK = :pk"
        if rest:
            values[":rest"] = {"S": rest}
            condition += " AND begins_with(SK, :rest)"
        parameters: dict[str, Any] = {"ExclusiveStartKey": start} if start else {}
        with translated(f"DynamoDB query of {prefix!r}", self._known):
            return self._connection.dynamodb.query(
                TableName=self._table,
                KeyConditionExpression=condition,
                ExpressionAttributeValues=values,
                ConsistentRead=True,
                Limit=limit,
                **parameters,
            )

    def _no_table(self, _: str) -> ConfigurationError:
        return ConfigurationError(
            f"there is no DynamoDB table {self._table!r}",
            field="table",
            remedy="Make it with `postroad journal init`, or name another with ?table= in the URL.",
        )


def _condition(expect: int | Expect, values: dict[str, Any]) -> dict[str, Any]:
    if expect is ANY:
        return {}
    condition = "attribute_not_exists(PK)"
    if expect is not ABSENT:
        values[":expected"] = {"N": str(expect)}
        condition = "#version = :expected"
    return {"ConditionExpression": condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def _key(key: str) -> dict[str, Any]:
    tenant, _, rest = key.partition("/")
    return {"PK": {"S": f"TENANT#{tenant}"}, "SK": {"S": rest}}


def _text(raw: Mapping[str, Any]) -> str:
    return f"{raw['PK']['S'].removeprefix('TENANT#')}/{raw['SK']['S']}"


def _item(key: str, raw: Mapping[str, Any] | None) -> Item | None:
    """Return the item; None for a row of the table that is not an item."""
    if not raw or "version" not in raw or "value" not in raw:
        return None
    return Item(key=key, value=bytes(raw["value"]["B"]), version=int(raw["version"]["N"]))
