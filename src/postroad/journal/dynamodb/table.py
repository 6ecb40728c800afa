"""Making the events table, and comparing one that exists with what it must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from postroad.connections.aws_errors import translated
from postroad.errors import ConfigurationError
from postroad.journal.keys import KEY_NAMES
from postroad.journal.table import INDEX_KEYS, KEYS, TTL_ATTRIBUTE

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient

_BILLING: Final = "PAY_PER_REQUEST"
_PATIENCE: Final = {"Delay": 1, "MaxAttempts": 120}


def make_or_verify(client: DynamoDBClient, name: str) -> None:
    """Make the table when it is missing; one that differs is a `ConfigurationError` that says how."""
    with translated(f"DynamoDB table {name!r}"):
        if not _exists(client, name):
            # Another one may make it at the same time.
            with suppress(client.exceptions.ResourceInUseException):
                client.create_table(TableName=name, **definition())
        client.get_waiter("table_exists").wait(TableName=name, WaiterConfig=_PATIENCE)  # type: ignore[arg-type]  # it is one
        found = client.describe_table(TableName=name)["Table"]
        if wrong := list(_differences(found)):
            raise _refused(name, wrong)
        _expire(client, name)


def _exists(client: DynamoDBClient, name: str) -> bool:
    try:
        client.describe_table(TableName=name)
    except client.exceptions.ResourceNotFoundException:
        return False
    return True


def definition() -> dict[str, Any]:
    """What `create_table` is told, besides the name."""
    return {
        "BillingMode": _BILLING,
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in KEY_NAMES],
        "KeySchema": _schema(KEYS),
        "GlobalSecondaryIndexes": [
            {"IndexName": index, "KeySchema": _schema(keys), "Projection": {"ProjectionType": "ALL"}}
            for index, keys in INDEX_KEYS.items()
        ],
    }


def _schema(keys: Sequence[str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in zip(keys, ("HASH", "RANGE"), strict=True)]


def _differences(found: Mapping[str, Any]) -> Iterator[str]:
    billing = found.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    yield from _difference("BillingMode", billing, _BILLING)
    yield from _difference("KeySchema", _keys(found), KEYS)
    types = {entry["AttributeName"]: entry["AttributeType"] for entry in found["AttributeDefinitions"]}
    indexes = {index["IndexName"]: index for index in found.get("GlobalSecondaryIndexes") or ()}
    for index, keys in INDEX_KEYS.items():
        if index not in indexes:
            yield f"there is no index {index}"
            continue
        yield from _difference(f"KeySchema of {index}", _keys(indexes[index]), keys)
        projection = indexes[index].get("Projection", {}).get("ProjectionType")
        yield from _difference(f"ProjectionType of {index}", projection, "ALL")
    for name in KEY_NAMES:
        if name in types:
            yield from _difference(f"AttributeType of {name}", types[name], "S")


def _keys(found: Mapping[str, Any]) -> tuple[str, ...]:
    by_kind = {entry["KeyType"]: entry["AttributeName"] for entry in found["KeySchema"]}
    return tuple(by_kind[kind] for kind in ("HASH", "RANGE") if kind in by_kind)


def _difference(what: str, found: object, wanted: object) -> Iterator[str]:
    if found != wanted:
        yield f"{what} is {found}, not {wanted}"


def _expire(client: DynamoDBClient, name: str) -> None:
    """Let items end at their `ttl`; a table whose making broke off before this gets it now."""
    found = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    attribute = found.get("AttributeName")
    if found.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        client.update_time_to_live(
            TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL_ATTRIBUTE}
        )
    elif attribute != TTL_ATTRIBUTE:
        raise _refused(name, [f"its items end at {attribute}, not at {TTL_ATTRIBUTE}"])


def _refused(name: str, wrong: Sequence[str]) -> ConfigurationError:
    return ConfigurationError(
        f"DynamoDB table {name!r} is not the events table: {'; '.join(wrong)}", field="table",
        remedy="Name another table with ?table= or $EVENTS_TABLE, or make this one anew.",
    )  # fmt: skip
