"""Stores of data: tables on DynamoDB, streams on Kinesis and buckets on S3."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from postroad.connections import AwsConnection, ask, aws_resources as resources, translated
from postroad.errors import TopologyConflict
from postroad.topology.aws_properties import Form
from postroad.topology.names import Place

_MISSING = ("ResourceNotFoundException",)
_INDEX = "indexes."
_LOOK_AGAIN = 2.0


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one account and region. Each index is a separate field, `indexes.NAME`."""

    aws: AwsConnection
    place: Place

    def read(self, form: Form) -> dict[str, Any] | None:
        what = f"table {form.name!r}"
        answer = ask(what, self.aws.dynamodb.describe_table, *_MISSING, TableName=form.name)
        if answer is None:
            return None
        table = answer["Table"]
        arn = self.place.arn("table", form.name)
        expiry = ask(what, resources.expiry_of, *_MISSING, client=self.aws.dynamodb, name=form.name)
        tags = ask(what, self.aws.dynamodb.list_tags_of_resource, *_MISSING, ResourceArn=arn)
        stream = table.get("StreamSpecification") or {}
        return {
            "keys": list(resources.key_names(table)),
            **{f"{_INDEX}{index['IndexName']}": _index(index) for index in table.get("GlobalSecondaryIndexes") or ()},
            "ttl_attribute": expiry,
            "stream": stream.get("StreamViewType") if stream.get("StreamEnabled") else None,
            "tags": resources.tags_of(tags),
        }

    def create(self, form: Form) -> None:
        with translated(f"making table {form.name!r}"):
            resources.make_table(self.aws.dynamodb, form.name, shape_of(form), tags=form.settings["tags"])

    def update(self, form: Form, fields: Collection[str]) -> None:
        what = f"changing table {form.name!r}"
        if "stream" in fields:
            stream = shape_of(form).stream_specification()
            ask(what, self.aws.dynamodb.update_table, TableName=form.name, StreamSpecification=stream)
            self._settled(form.name)
        for name in [field.removeprefix(_INDEX) for field in fields if field.startswith(_INDEX)]:
            ask(what, self.aws.dynamodb.update_table, TableName=form.name, **shape_of(form).index_update(name))
            self._settled(form.name, index=name)
        if "ttl_attribute" in fields:
            self._expire(form)
        if "tags" in fields:
            arn, tags = self.place.arn("table", form.name), resources.tag_pairs(form.settings["tags"])
            ask(what, self.aws.dynamodb.tag_resource, ResourceArn=arn, Tags=tags)

    def delete(self, name: str) -> None:
        ask(f"removing table {name!r}", self.aws.dynamodb.delete_table, TableName=name)
        with translated(f"table {name!r}"):
            resources.wait_for_removal(self.aws.dynamodb, name)

    def holds_items(self, name: str) -> bool:
        answer = ask(f"table {name!r}", self.aws.dynamodb.scan, TableName=name, Limit=1, ConsistentRead=True)
        return bool(answer["Items"]) or "LastEvaluatedKey" in answer

    def _expire(self, form: Form) -> None:
        wanted = form.settings["ttl_attribute"]
        with translated(f"expiry of table {form.name!r}"):
            before = resources.expiry_of(self.aws.dynamodb, form.name)
            for attribute, enabled in ((before, False), (wanted, True)):
                if attribute is not None and before != wanted:
                    resources.set_expiry(self.aws.dynamodb, form.name, attribute, enabled=enabled)

    def _settled(self, name: str, *, index: str | None = None) -> None:
        with translated(f"table {name!r}"):
            resources.wait_for_table(self.aws.dynamodb, name)
            # DynamoDB builds one index at a time and accepts no other change until it is done.
            while index is not None:
                found = self.aws.dynamodb.describe_table(TableName=name)["Table"].get("GlobalSecondaryIndexes", ())
                if {each.get("IndexName"): each.get("IndexStatus") for each in found}.get(index) in (None, "ACTIVE"):
                    return
                time.sleep(_LOOK_AGAIN)


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a table with each index as a separate field."""
    others = {name: value for name, value in settings.items() if name != "indexes"}
    return others | {f"{_INDEX}{name}": index for name, index in settings["indexes"].items()}


def changed_keys(have: Mapping[str, Any], want: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields that differ and cannot be changed in place: the keys of the table and of existing indexes."""
    keys = [name for name in want if name == "keys" or (name.startswith(_INDEX) and name in have)]
    return tuple(name for name in keys if have[name] != want[name])


def _index(described: Mapping[str, Any]) -> dict[str, Any]:
    return {"keys": list(resources.key_names(described)), "projection": described["Projection"]["ProjectionType"]}


def shape_of(form: Form) -> resources.TableShape:
    """Return the table of this form without its name."""
    settings = form.settings
    indexes = {
        name: resources.TableIndex(keys=tuple(index["keys"]), projection=index["projection"])
        for name, index in settings["indexes"].items()
    }
    return resources.TableShape(
        keys=tuple(settings["keys"]),
        indexes=indexes,
        ttl_attribute=settings["ttl_attribute"],
        stream_view=settings["stream"],
    )


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of one account and region."""

    aws: AwsConnection

    def read(self, form: Form) -> dict[str, Any] | None:
        what = f"stream {form.name!r}"
        answer = ask(what, self.aws.kinesis.describe_stream_summary, *_MISSING, StreamName=form.name)
        if answer is None:
            return None
        summary = answer["StreamDescriptionSummary"]
        tags = ask(what, self.aws.kinesis.list_tags_for_stream, *_MISSING, StreamName=form.name)
        return {
            "shards": summary["OpenShardCount"],
            "retention_hours": summary["RetentionPeriodHours"],
            "tags": resources.tags_of(tags),
        }

    def create(self, form: Form) -> None:
        with translated(f"making stream {form.name!r}"):
            resources.make_stream(self.aws.kinesis, form.name, form.settings["shards"])
        self.update(form, ("retention_hours", "tags"))

    def update(self, form: Form, fields: Collection[str]) -> None:
        if "retention_hours" in fields:
            what, hours = f"retention of stream {form.name!r}", form.settings["retention_hours"]
            answer = ask(what, self.aws.kinesis.describe_stream_summary, StreamName=form.name)
            have = answer["StreamDescriptionSummary"]["RetentionPeriodHours"]
            if have != hours:
                verb = "increase" if hours > have else "decrease"
                operation = getattr(self.aws.kinesis, f"{verb}_stream_retention_period")
                ask(what, operation, StreamName=form.name, RetentionPeriodHours=hours)
        if "shards" in fields:
            change = {"TargetShardCount": form.settings["shards"], "ScalingType": "UNIFORM_SCALING"}
            operation = self.aws.kinesis.update_shard_count
            ask(f"resharding stream {form.name!r}", operation, StreamName=form.name, **change)
            with translated(f"stream {form.name!r}"):
                resources.wait_for_stream(self.aws.kinesis, form.name)
        if "tags" in fields:
            tags = form.settings["tags"]
            ask(f"tagging stream {form.name!r}", self.aws.kinesis.add_tags_to_stream, StreamName=form.name, Tags=tags)

    def delete(self, name: str) -> None:
        ask(f"removing stream {name!r}", self.aws.kinesis.delete_stream, StreamName=name)


EXPIRY = "postroad-expire"


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of one account."""

    aws: AwsConnection

    def read(self, form: Form) -> dict[str, Any] | None:
        name = form.settings["bucket"]
        what = f"bucket {name!r}"
        if ask(what, self.aws.s3.head_bucket, "404", "NoSuchBucket", Bucket=name) is None:
            return None
        tags = ask(what, self.aws.s3.get_bucket_tagging, "NoSuchTagSet", Bucket=name)
        days = [rule["Expiration"]["Days"] for rule in self._lifecycle(name) if rule.get("ID") == EXPIRY]
        return {"bucket": name, "expire_days": days[0] if days else None, "tags": resources.tags_of(tags, "TagSet")}

    def create(self, form: Form) -> None:
        name = form.settings["bucket"]
        with translated(f"making bucket {name!r}"):
            resources.make_bucket(self.aws.s3, name, self.aws.region)
        self.update(form, ("tags", "expire_days") if form.settings["expire_days"] else ("tags",))

    def update(self, form: Form, fields: Collection[str]) -> None:
        name = form.settings["bucket"]
        if "expire_days" in fields:
            self._expire(name, form.settings["expire_days"])
        if "tags" in fields:
            tags = ask(f"tags of bucket {name!r}", self.aws.s3.get_bucket_tagging, "NoSuchTagSet", Bucket=name)
            merged = {**resources.tags_of(tags, "TagSet"), **form.settings["tags"]}
            tagging = {"TagSet": resources.tag_pairs(merged)}
            ask(f"tagging bucket {name!r}", self.aws.s3.put_bucket_tagging, Bucket=name, Tagging=tagging)

    def delete(self, name: str) -> None:
        raise TopologyConflict(f"bucket {name!r} is never removed")

    def _expire(self, name: str, days: int | None) -> None:
        """Set our own rule and leave those of others."""
        rules = [rule for rule in self._lifecycle(name) if rule.get("ID") != EXPIRY]
        if days is not None:
            rules.append({"ID": EXPIRY, "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": days}})
        what = f"expiry of bucket {name!r}"
        if rules:
            operation = self.aws.s3.put_bucket_lifecycle_configuration
            ask(what, operation, Bucket=name, LifecycleConfiguration={"Rules": rules})
        else:
            ask(what, self.aws.s3.delete_bucket_lifecycle, Bucket=name)

    def _lifecycle(self, name: str) -> list[dict[str, Any]]:
        operation = self.aws.s3.get_bucket_lifecycle_configuration
        answer = ask(f"expiry of bucket {name!r}", operation, "NoSuchLifecycleConfiguration", Bucket=name)
        return list((answer or {}).get("Rules") or ())
