"""What keeps data: tables on DynamoDB, streams on Kinesis and buckets on S3."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from postroad.connections import (
    AwsConnection,
    TableIndex,
    TableShape,
    expiry_of,
    key_names,
    make_bucket,
    make_stream,
    make_table,
    set_expiry,
    tag_pairs,
    translated,
    wait_for_removal,
    wait_for_stream,
    wait_for_table,
)
from postroad.errors import TopologyConflict
from postroad.topology.aws.calls import ask, unpaired
from postroad.topology.forms import Form
from postroad.topology.names import Place

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_kinesis.client import KinesisClient
    from mypy_boto3_s3.client import S3Client


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
        keys=tuple(settings["keys"]),
        indexes=indexes,
        ttl_attribute=settings["ttl_attribute"],
        stream_view=settings["stream"],
    )


class Streams:
    """The streams of one account and region."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    def read(self, form: Form) -> dict[str, Any] | None:
        what = f"stream {form.name!r}"
        answer = ask(what, self._kinesis.describe_stream_summary, *_MISSING, StreamName=form.name)
        if answer is None:
            return None
        summary = answer["StreamDescriptionSummary"]
        tags = ask(what, self._kinesis.list_tags_for_stream, *_MISSING, StreamName=form.name)
        return {
            "shards": summary["OpenShardCount"],
            "retention_hours": summary["RetentionPeriodHours"],
            "tags": unpaired(tags),
        }

    def create(self, form: Form) -> None:
        with translated(f"making stream {form.name!r}"):
            make_stream(self._kinesis, form.name, form.settings["shards"])
        self.update(form, ("retention_hours", "tags"))

    def update(self, form: Form, fields: Collection[str]) -> None:
        if "retention_hours" in fields:
            self._keep_for(form)
        if "shards" in fields:
            ask(
                f"resharding stream {form.name!r}",
                self._kinesis.update_shard_count,
                StreamName=form.name,
                TargetShardCount=form.settings["shards"],
                ScalingType="UNIFORM_SCALING",
            )
            with translated(f"stream {form.name!r}"):
                wait_for_stream(self._kinesis, form.name)
        if "tags" in fields:
            tags = form.settings["tags"]
            ask(f"tagging stream {form.name!r}", self._kinesis.add_tags_to_stream, StreamName=form.name, Tags=tags)

    def delete(self, name: str) -> None:
        ask(f"removing stream {name!r}", self._kinesis.delete_stream, StreamName=name)

    def _keep_for(self, form: Form) -> None:
        what, hours = f"retention of stream {form.name!r}", form.settings["retention_hours"]
        summary = ask(what, self._kinesis.describe_stream_summary, StreamName=form.name)["StreamDescriptionSummary"]
        have = summary["RetentionPeriodHours"]
        if have == hours:
            return
        longer, shorter = (
            self._kinesis.increase_stream_retention_period,
            self._kinesis.decrease_stream_retention_period,
        )
        ask(what, longer if hours > have else shorter, StreamName=form.name, RetentionPeriodHours=hours)

    @property
    def _kinesis(self) -> KinesisClient:
        return self._connection.kinesis


EXPIRY = "postroad-expire"


class Buckets:
    """The buckets of one account."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    def read(self, form: Form) -> dict[str, Any] | None:
        name = form.settings["bucket"]
        what = f"bucket {name!r}"
        if ask(what, self._s3.head_bucket, "404", "NoSuchBucket", Bucket=name) is None:
            return None
        tags = ask(what, self._s3.get_bucket_tagging, "NoSuchTagSet", Bucket=name)
        days = [rule["Expiration"]["Days"] for rule in self._lifecycle(name) if rule.get("ID") == EXPIRY]
        return {"bucket": name, "expire_days": days[0] if days else None, "tags": unpaired(tags, "TagSet")}

    def create(self, form: Form) -> None:
        name = form.settings["bucket"]
        with translated(f"making bucket {name!r}"):
            make_bucket(self._s3, name, self._connection.region)
        self.update(form, ("tags", "expire_days") if form.settings["expire_days"] else ("tags",))

    def update(self, form: Form, fields: Collection[str]) -> None:
        name = form.settings["bucket"]
        if "expire_days" in fields:
            self._expire(name, form.settings["expire_days"])
        if "tags" in fields:
            tags = ask(f"tags of bucket {name!r}", self._s3.get_bucket_tagging, "NoSuchTagSet", Bucket=name)
            merged = {**unpaired(tags, "TagSet"), **form.settings["tags"]}
            ask(
                f"tagging bucket {name!r}",
                self._s3.put_bucket_tagging,
                Bucket=name,
                Tagging={"TagSet": tag_pairs(merged)},
            )

    def delete(self, name: str) -> None:
        raise TopologyConflict(f"bucket {name!r} is never removed")

    def _expire(self, name: str, days: int | None) -> None:
        """Set our own rule and leave those of others."""
        rules = [rule for rule in self._lifecycle(name) if rule.get("ID") != EXPIRY]
        if days is not None:
            rules.append({"ID": EXPIRY, "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": days}})
        what = f"expiry of bucket {name!r}"
        if rules:
            ask(what, self._s3.put_bucket_lifecycle_configuration, Bucket=name, LifecycleConfiguration={"Rules": rules})
        else:
            ask(what, self._s3.delete_bucket_lifecycle, Bucket=name)

    def _lifecycle(self, name: str) -> list[dict[str, Any]]:
        operation = self._s3.get_bucket_lifecycle_configuration
        answer = ask(f"expiry of bucket {name!r}", operation, "NoSuchLifecycleConfiguration", Bucket=name)
        return list((answer or {}).get("Rules") or ())

    @property
    def _s3(self) -> S3Client:
        return self._connection.s3
