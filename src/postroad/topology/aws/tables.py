"""Tables on DynamoDB, with their indexes, expiry and streams."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from postroad.connections.aws import AwsConnection
from postroad.connections.aws_errors import translated
from postroad.topology.aws.calling import ask, pairs, unpaired
from postroad.topology.forms import Form
from postroad.topology.place import Place

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient

_MISSING = ("ResourceNotFoundException",)
_WAIT: Any = {"Delay": 1, "MaxAttempts": 900}
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
        expiry = ask(what, self._dynamodb.describe_time_to_live, *_MISSING, TableName=form.name) or {}
        tags = ask(what, self._dynamodb.list_tags_of_resource, *_MISSING, ResourceArn=arn)
        stream = table.get("StreamSpecification") or {}
        return {
            "keys": _keys(table),
            **{f"{_INDEX}{index['IndexName']}": _index(index) for index in table.get("GlobalSecondaryIndexes") or ()},
            "ttl_attribute": _ttl(expiry.get("TimeToLiveDescription") or {}),
            "stream": stream.get("StreamViewType") if stream.get("StreamEnabled") else None,
            "tags": unpaired(tags),
        }

    def create(self, form: Form) -> None:
        stream = {"StreamSpecification": _stream(form)} if form.settings["stream"] else {}
        ask(f"making table {form.name!r}", self._dynamodb.create_table, **table_definition(form), **stream)
        self._settled(form.name)
        if form.settings["ttl_attribute"]:
            self._expire(form)

    def update(self, form: Form, fields: Collection[str]) -> None:
        what = f"changing table {form.name!r}"
        if "stream" in fields:
            ask(what, self._dynamodb.update_table, TableName=form.name, StreamSpecification=_stream(form))
            self._settled(form.name)
        for name in [field.removeprefix(_INDEX) for field in fields if field.startswith(_INDEX)]:
            ask(what, self._dynamodb.update_table, TableName=form.name, **_added(form, name))
            self._settled(form.name, index=name)
        if "ttl_attribute" in fields:
            self._expire(form)
        if "tags" in fields:
            arn, tags = self._place.arn("table", form.name), pairs(form.settings["tags"])
            ask(what, self._dynamodb.tag_resource, ResourceArn=arn, Tags=tags)

    def delete(self, name: str) -> None:
        ask(f"removing table {name!r}", self._dynamodb.delete_table, TableName=name)
        with translated(f"table {name!r}"):
            self._dynamodb.get_waiter("table_not_exists").wait(TableName=name, WaiterConfig=_WAIT)

    def holds_items(self, name: str) -> bool:
        """Whether the table holds at least one item."""
        answer = ask(f"table {name!r}", self._dynamodb.scan, TableName=name, Limit=1, ConsistentRead=True)
        return bool(answer["Items"]) or "LastEvaluatedKey" in answer

    def _expire(self, form: Form) -> None:
        wanted = form.settings["ttl_attribute"]
        what = f"expiry of table {form.name!r}"
        answer = ask(what, self._dynamodb.describe_time_to_live, TableName=form.name)
        before = _ttl(answer.get("TimeToLiveDescription") or {})
        for name, enabled in ((before, False), (wanted, True)):
            if name is not None and before != wanted:
                told = {"Enabled": enabled, "AttributeName": name}
                ask(what, self._dynamodb.update_time_to_live, TableName=form.name, TimeToLiveSpecification=told)

    def _settled(self, name: str, *, index: str | None = None) -> None:
        with translated(f"table {name!r}"):
            self._dynamodb.get_waiter("table_exists").wait(TableName=name, WaiterConfig=_WAIT)
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


def _keys(described: Mapping[str, Any]) -> list[str]:
    by_type = {each["KeyType"]: each["AttributeName"] for each in described["KeySchema"]}
    return [by_type[each] for each in ("HASH", "RANGE") if each in by_type]


def _index(described: Mapping[str, Any]) -> dict[str, Any]:
    return {"keys": _keys(described), "projection": described["Projection"]["ProjectionType"]}


def _ttl(described: Mapping[str, Any]) -> str | None:
    enabled = described.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    return described.get("AttributeName") if enabled else None


def table_definition(form: Form) -> dict[str, Any]:
    """A table but for its stream and expiry, as DynamoDB and CloudFormation spell it."""
    settings = form.settings
    definition: dict[str, Any] = {
        "TableName": form.name,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": key_schema(settings["keys"]),
        "AttributeDefinitions": attribute_definitions(settings),
        "Tags": pairs(settings["tags"]),
    }
    if settings["indexes"]:
        definition["GlobalSecondaryIndexes"] = list(index_definitions(settings))
    return definition


def _added(form: Form, name: str) -> dict[str, Any]:
    [index] = [each for each in index_definitions(form.settings) if each["IndexName"] == name]
    used = {"keys": form.settings["keys"], "indexes": {name: form.settings["indexes"][name]}}
    return {"AttributeDefinitions": attribute_definitions(used), "GlobalSecondaryIndexUpdates": [{"Create": index}]}


def _stream(form: Form) -> dict[str, Any]:
    view = form.settings["stream"]
    return {"StreamEnabled": True, "StreamViewType": view} if view else {"StreamEnabled": False}


def key_schema(keys: list[str]) -> list[dict[str, str]]:
    """A partition key and perhaps a sort key, as DynamoDB spells them."""
    return [{"AttributeName": name, "KeyType": kind} for name, kind in zip(keys, ("HASH", "RANGE"), strict=False)]


def attribute_definitions(settings: Mapping[str, Any]) -> list[dict[str, str]]:
    """Every key of the table and its indexes; all of them are text."""
    keys = [*settings["keys"], *(key for index in settings["indexes"].values() for key in index["keys"])]
    return [{"AttributeName": key, "AttributeType": "S"} for key in dict.fromkeys(keys)]


def index_definitions(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The table's indexes, as DynamoDB spells them."""
    for name, index in settings["indexes"].items():
        projection = {"ProjectionType": index["projection"]}
        yield {"IndexName": name, "KeySchema": key_schema(index["keys"]), "Projection": projection}
