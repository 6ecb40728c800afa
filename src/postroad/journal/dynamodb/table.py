"""Making the events table, and comparing one that exists with what it must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from postroad.connections.aws_errors import translated
from postroad.connections.aws_resources import BILLING, expiry_of, key_names, make_table
from postroad.errors import ConfigurationError
from postroad.journal.keys import KEY_NAMES
from postroad.journal.table import EVENTS

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient


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
            f"DynamoDB table {name!r} is not the events table: {'; '.join(wrong)}", field="table",
            remedy="Name another table with ?table= or $EVENTS_TABLE, or make this one anew.",
        )  # fmt: skip
