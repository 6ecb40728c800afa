"""Tables on DynamoDB, with their indexes, expiry and streams."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from postroad.connections.aws import AwsConnection
from postroad.connections.aws_errors import translated
from postroad.connections.aws_resources import (
    TableIndex,
    TableShape,
    expiry_of,
    key_names,
    make_table,
    set_expiry,
    tag_pairs,
    wait_for_removal,
    wait_for_table,
)
from postroad.topology.aws.calling import ask, unpaired
from postroad.topology.forms import Form
from postroad.topology.place import Place

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient

_MISSING = ("ResourceNotFoundException",)
_INDEX = "indexes."
_LOOK_AGAIN = 2.0


class Tables:
    """The tables of one account and region. Each index is a field of its own, `indexes.NAME`."""

    def __init__(self, connection: AwsConnection, place: Place) -> None:
        self._connection = connection
        self._place = place

    def read(self, form: Form) -> dict[str, Any] | None:
        what = f"table {form.name!r}"
        answer = ask(what, self._dynamodb.describe_table, *_MISSING, TableName=form.name)
        if answer is None:
            return None
        table = answer["Table"]
        arn = self._place.arn("table", form.name)
        expiry = ask(what, expiry_of, *_MISSING, client=self._dynamodb, name=form.name)
        tags = ask(what, self._dynamodb.list_tags_of_resource, *_MISSING, ResourceArn=arn)
        stream = table.get("StreamSpecification") or {}
        return {
            "keys": list(key_names(table)),
            **{f"{_INDEX}{index['IndexName']}": _index(index) for index in table.get("GlobalSecondaryIndexes") or ()},
            "ttl_attribute": expiry,
            "stream": stream.get("StreamViewType") if stream.get("StreamEnabled") else None,
            "tags": unpaired(tags),
        }

    def create(self, form: Form) -> None:
        with translated(f"making table {form.name!r}"):
            make_table(self._dynamodb, form.name, shape_of(form), tags=form.settings["tags"])

    def update(self, form: Form, fields: Collection[str]) -> None:
        what = f"changing table {form.name!r}"
        if "stream" in fields:
            stream = shape_of(form).stream_specification()
            ask(what, self._dynamodb.update_table, TableName=form.name, StreamSpecification=stream)
            self._settled(form.name)
        for name in [field.removeprefix(_INDEX) for field in fields if field.startswith(_INDEX)]:
            ask(what, self._dynamodb.update_table, TableName=form.name, **shape_of(form).index_update(name))
            self._settled(form.name, index=name)
        if "ttl_attribute" in fields:
            self._expire(form)
        if "tags" in fields:
            arn, tags = self._place.arn("table", form.name), tag_pairs(form.settings["tags"])
            ask(what, self._dynamodb.tag_resource, ResourceArn=arn, Tags=tags)

    def delete(self, name: str) -> None:
        ask(f"removing table {name!r}", self._dynamodb.delete_table, TableName=name)
        with translated(f"table {name!r}"):
            wait_for_removal(self._dynamodb, name)

    def holds_items(self, name: str) -> bool:
        """Whether the table holds at least one item."""
        answer = ask(f"table {name!r}", self._dynamodb.scan, TableName=name, Limit=1, ConsistentRead=True)
        return bool(answer["Items"]) or "LastEvaluatedKey" in answer

    def _expire(self, form: Form) -> None:
        wanted = form.settings["ttl_attribute"]
        with translated(f"expiry of table {form.name!r}"):
            before = expiry_of(self._dynamodb, form.name)
            for attribute, enabled in ((before, False), (wanted, True)):
                if attribute is not None and before != wanted:
                    set_expiry(self._dynamodb, form.name, attribute, enabled=enabled)

    def _settled(self, name: str, *, index: str | None = None) -> None:
        with translated(f"table {name!r}"):
            wait_for_table(self._dynamodb, name)
            # DynamoDB builds one index at a time and takes no other change meanwhile.
            while index is not None and not self._is_built(name, index):
                time.sleep(_LOOK_AGAIN)

    def _is_built(self, name: str, index: str) -> bool:
        table = self._dynamodb.describe_table(TableName=name)["Table"]
        states = {each.get("IndexName"): each.get("IndexStatus") for each in table.get("GlobalSecondaryIndexes", ())}
        return states.get(index) in (None, "ACTIVE")

    @property
    def _dynamodb(self) -> DynamoDBClient:
        return self._connection.dynamodb


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a table with each index as a field of its own."""
    told = {name: value for name, value in settings.items() if name != "indexes"}
    return told | {f"{_INDEX}{name}": index for name, index in settings["indexes"].items()}


def changed_keys(have: Mapping[str, Any], want: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that differ and cannot be changed in place: the keys of the table and of indexes that exist."""
    return tuple(name for name, value in want.items() if _is_key(name, have) and have[name] != value)


def _is_key(field: str, have: Mapping[str, Any]) -> bool:
    return field == "keys" or (field.startswith(_INDEX) and field in have)


def _index(described: Mapping[str, Any]) -> dict[str, Any]:
    return {"keys": list(key_names(described)), "projection": described["Projection"]["ProjectionType"]}


def shape_of(form: Form) -> TableShape:
    """The table of this form without its name."""
    settings = form.settings
    indexes = {
        name: TableIndex(keys=tuple(index["keys"]), projection=index["projection"])
        for name, index in settings["indexes"].items()
    }
    return TableShape(
        keys=tuple(settings["keys"]), indexes=indexes, ttl_attribute=settings["ttl_attribute"],
        stream_view=settings["stream"],
    )  # fmt: skip
