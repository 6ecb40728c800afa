"""Resources of AWS: one function makes each kind, for all who need it.

A package declares its resources; `provision()`, `init()` and a topology's `apply` call these functions. Each of them
leaves a resource that exists as it is; callers compare it themselves. They raise botocore's errors, which
callers translate: only they know what a missing or refused resource means to their user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_events.client import EventBridgeClient
    from mypy_boto3_kinesis.client import KinesisClient
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_sns.client import SNSClient

StreamView = Literal["NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES", "KEYS_ONLY"]
Tags = Mapping[str, str]
BILLING: Final = "PAY_PER_REQUEST"
PRIVATE: Final[Any] = {
    "BlockPublicAcls": True,
    "BlockPublicPolicy": True,
    "IgnorePublicAcls": True,
    "RestrictPublicBuckets": True,
}
_FIRST_REGION: Final = "us-east-1"
_TABLE_WAIT: Final[Any] = {"Delay": 1, "MaxAttempts": 900}
_STREAM_WAIT: Final[Any] = {"Delay": 1, "MaxAttempts": 300}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIndex:
    """A global secondary index of a table."""

    keys: tuple[str, ...]
    projection: str = "ALL"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """The definition of a table: its keys, which are text, its indexes, when items expire, and its stream."""

    keys: tuple[str, ...]
    indexes: Mapping[str, TableIndex] = field(default_factory=dict)
    ttl_attribute: str | None = None
    stream_view: StreamView | None = None

    def definition(self) -> dict[str, Any]:
        """Return the table without name, expiry and stream, in the form of DynamoDB and CloudFormation."""
        definition: dict[str, Any] = {
            "BillingMode": BILLING,
            "KeySchema": _key_schema(self.keys),
            "AttributeDefinitions": self._attributes(self.indexes),
        }
        if self.indexes:
            definition["GlobalSecondaryIndexes"] = list(map(self._index, self.indexes))
        return definition

    def index_update(self, name: str) -> dict[str, Any]:
        """Return the change that adds one index to an existing table."""
        return {
            "AttributeDefinitions": self._attributes([name]),
            "GlobalSecondaryIndexUpdates": [{"Create": self._index(name)}],
        }

    def stream_specification(self) -> dict[str, Any]:
        view = self.stream_view
        return {"StreamEnabled": False} if view is None else {"StreamEnabled": True, "StreamViewType": view}

    def _index(self, name: str) -> dict[str, Any]:
        index = self.indexes[name]
        projection = {"ProjectionType": index.projection}
        return {"IndexName": name, "KeySchema": _key_schema(index.keys), "Projection": projection}

    def _attributes(self, indexes: Sequence[str] | Mapping[str, TableIndex]) -> list[dict[str, str]]:
        names = [*self.keys, *(key for name in indexes for key in self.indexes[name].keys)]
        return [{"AttributeName": name, "AttributeType": "S"} for name in dict.fromkeys(names)]


def make_table(
    client: DynamoDBClient,
    name: str,
    shape: TableShape,
    *,
    tags: Tags | None = None,
    check: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """Make the table if it is missing, wait until it can be used, and let its items expire.

    `check` gets DynamoDB's description of the table and raises if it is a different one, before any change to it.
    """
    parameters: dict[str, Any] = shape.definition() | ({"Tags": tag_pairs(tags)} if tags else {})
    if shape.stream_view is not None:
        parameters["StreamSpecification"] = shape.stream_specification()
    try:
        client.describe_table(TableName=name)
    except client.exceptions.ResourceNotFoundException:
        # Another program may make it at the same time.
        with suppress(client.exceptions.ResourceInUseException):
            client.create_table(TableName=name, **parameters)
    wait_for_table(client, name)
    if check is not None:
        check(client.describe_table(TableName=name)["Table"])
    # This completes an earlier call that was interrupted before this step.
    if shape.ttl_attribute is not None and expiry_of(client, name) is None:
        set_expiry(client, name, shape.ttl_attribute, enabled=True)


def wait_for_table(client: DynamoDBClient, name: str) -> None:
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig=_TABLE_WAIT)


def wait_for_removal(client: DynamoDBClient, name: str) -> None:
    client.get_waiter("table_not_exists").wait(TableName=name, WaiterConfig=_TABLE_WAIT)


def expiry_of(client: DynamoDBClient, name: str) -> str | None:
    """Return the attribute that holds the time at which items expire; None if they do not."""
    found: Mapping[str, Any] = client.describe_time_to_live(TableName=name).get("TimeToLiveDescription") or {}
    return found.get("AttributeName") if found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING") else None


def set_expiry(client: DynamoDBClient, name: str, attribute: str, *, enabled: bool) -> None:
    """Let items expire at the time in their attribute, or stop that."""
    specification: Any = {"Enabled": enabled, "AttributeName": attribute}
    client.update_time_to_live(TableName=name, TimeToLiveSpecification=specification)


def make_queue(
    client: Any, name: str, attributes: Mapping[str, str], *, fifo: bool, tags: Tags | None = None
) -> dict[str, Any]:
    """Make the queue; SQS refuses one that exists with other attributes."""
    wanted = {**attributes, "FifoQueue": "true"} if fifo else dict(attributes)
    answer: dict[str, Any] = client.create_queue(
        QueueName=name,
        Attributes={key: value for key, value in wanted.items() if value},
        **({"tags": dict(tags)} if tags else {}),
    )
    return answer


def make_topic(
    client: SNSClient, name: str, *, fifo: bool, content_dedup: bool = False, tags: Tags | None = None
) -> str:
    """Make the topic if it is missing, and return its ARN."""
    attributes = {"FifoTopic": "true"} if fifo else {}
    if content_dedup:
        attributes["ContentBasedDeduplication"] = "true"
    named: dict[str, Any] = {"Tags": tag_pairs(tags)} if tags else {}
    return client.create_topic(Name=name, Attributes=attributes, **named)["TopicArn"]


def make_subscription(
    client: SNSClient, topic_arn: str, queue_arn: str, *, filter: Mapping[str, Any] | None, raw: bool = True
) -> None:
    """Make the topic send a copy of what the filter lets through to the queue."""
    attributes = {"RawMessageDelivery": "true" if raw else "false"}
    if filter:
        attributes["FilterPolicy"] = msgspec.json.encode(filter).decode()
    client.subscribe(TopicArn=topic_arn, Protocol="sqs", Endpoint=queue_arn, Attributes=attributes)


def make_event_bus(client: EventBridgeClient, name: str, *, tags: Tags | None = None) -> None:
    named: dict[str, Any] = {"Tags": tag_pairs(tags)} if tags else {}
    with suppress(client.exceptions.ResourceAlreadyExistsException):
        client.create_event_bus(Name=name, **named)


def put_rule(
    client: EventBridgeClient,
    name: str,
    bus: str,
    *,
    pattern: Mapping[str, Any] | None,
    schedule: str | None = None,
    tags: Tags | None = None,
) -> str:
    """Make the rule or give it this pattern or schedule, and return its ARN."""
    parameters: dict[str, Any] = {"Name": name, "EventBusName": bus, "State": "ENABLED"}
    if pattern is not None:
        parameters["EventPattern"] = msgspec.json.encode(pattern).decode()
    if schedule is not None:
        parameters["ScheduleExpression"] = schedule
    if tags:
        parameters["Tags"] = tag_pairs(tags)
    return client.put_rule(**parameters)["RuleArn"]


def put_target(client: EventBridgeClient, rule: str, bus: str, target: Mapping[str, Any]) -> str | None:
    """Make the rule send to the target. Return why EventBridge refused it; None if it did not."""
    targets: Any = [target]
    answer = client.put_targets(Rule=rule, EventBusName=bus, Targets=targets)
    if not answer.get("FailedEntryCount"):
        return None
    failed = answer["FailedEntries"][0]
    return f"{failed.get('ErrorCode')}: {failed.get('ErrorMessage')}"


def make_stream(client: KinesisClient, name: str, shards: int) -> Mapping[str, Any]:
    """Make the stream if it is missing, wait until it can be used, and return its summary."""
    with suppress(client.exceptions.ResourceInUseException):
        client.create_stream(StreamName=name, ShardCount=shards)
    summary = client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    if summary["StreamStatus"] == "CREATING":
        wait_for_stream(client, name)
        summary = client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    return summary


def wait_for_stream(client: KinesisClient, name: str) -> None:
    client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig=_STREAM_WAIT)


def make_bucket(client: S3Client, name: str, region: str) -> None:
    """Make the bucket if it is missing, closed to the public."""
    where: dict[str, Any] = {"CreateBucketConfiguration": {"LocationConstraint": region}}
    with suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=name, **({} if region == _FIRST_REGION else where))
    client.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=PRIVATE)


def tag_pairs(tags: Tags | None) -> list[dict[str, str]]:
    """Return tags in the form that most services of AWS take."""
    return [{"Key": key, "Value": value} for key, value in (tags or {}).items()]


def tags_of(answer: Any, key: str = "Tags") -> dict[str, str]:
    """Return the tags in an answer of AWS, in the form that most of its services use."""
    return {entry["Key"]: entry["Value"] for entry in (answer or {}).get(key) or ()}


def _key_schema(keys: Sequence[str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in zip(keys, ("HASH", "RANGE"), strict=False)]


def key_names(described: Mapping[str, Any]) -> Iterator[str]:
    """Return the keys of a table or index that DynamoDB describes, the partition key first."""
    by_kind = {each["KeyType"]: each["AttributeName"] for each in described["KeySchema"]}
    return (by_kind[kind] for kind in ("HASH", "RANGE") if kind in by_kind)
