"""Declarations: one for each resource of a deployment, and a component for each program that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args

from msgspec import Meta

from postroad.arguments import FINITE
from postroad.connections import StreamView, TableShape
from postroad.queues import QueueSpec

Kind = Literal["queue", "topic", "subscription", "stream", "table", "bucket", "bus", "rule", "function", "alarm"]
Comparison = Literal[">", ">=", "<", "<="]
_Attribute = Annotated[str, Meta(min_length=1, description="the name of an attribute")]
DEFAULT_BUS = "default"


@dataclass(frozen=True, slots=True)
class QueueDecl:
    """A queue.

    Attributes:
        spec: Its name and settings.
        encryption: "sqs" for the keys of SQS, the default, "none" or the ARN of a KMS key.
        tags: Tags besides those of the topology.
    """

    kind: ClassVar[Kind] = "queue"
    spec: QueueSpec
    encryption: str = "sqs"
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class TopicDecl:
    """A topic.

    Attributes:
        name: Its name, which ends with '.fifo' exactly if it is FIFO.
        fifo: Whether it keeps the order of each group.
        content_dedup: Whether messages with the same body are duplicates.
        tags: Tags besides those of the topology.
    """

    kind: ClassVar[Kind] = "topic"
    name: str
    fifo: bool = False
    content_dedup: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionDecl:
    """A queue that gets a copy of the messages of a topic.

    Attributes:
        topic: The name of the topic.
        queue: The name of the queue.
        filter: Accepted values by attribute; by default every message is copied.
        raw: Whether the body arrives as it was published, the default, or inside an envelope of SNS.
    """

    kind: ClassVar[Kind] = "subscription"
    topic: str
    queue: str
    filter: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    raw: bool = True

    @property
    def name(self) -> str:
        return f"{self.topic}->{self.queue}"


@dataclass(frozen=True, slots=True)
class StreamDecl:
    """A stream of ordered records.

    Attributes:
        name: Its name.
        shards: How many shards it has, from 1 to 1,000.
        retention_hours: How long it keeps records, from 1 to 8,760 hours.
    """

    kind: ClassVar[Kind] = "stream"
    name: str
    shards: Annotated[int, Meta(ge=1, le=1_000)] = 1
    retention_hours: Annotated[int, Meta(ge=1, le=8_760)] = 24


@dataclass(frozen=True, slots=True)
class IndexDecl:
    """An index of a table.

    Attributes:
        name: Its name.
        hash_key: The attribute that items are found by.
        range_key: The attribute that they are sorted by, if any.
        projection: "ALL" for whole items or "KEYS_ONLY".
    """

    name: str
    hash_key: _Attribute
    range_key: _Attribute | None = None
    projection: Literal["ALL", "KEYS_ONLY"] = "ALL"


@dataclass(frozen=True, slots=True)
class TableDecl:
    """A table, billed by request. Its keys are text.

    Attributes:
        name: Its name.
        hash_key: The attribute that items are found by.
        range_key: The attribute that they are sorted by, if any.
        indexes: Its indexes.
        ttl_attribute: The attribute with the time at which an item expires, if any.
        stream: What its stream of changes holds, if it has one.
    """

    kind: ClassVar[Kind] = "table"
    name: str
    hash_key: _Attribute
    range_key: _Attribute | None = None
    indexes: tuple[IndexDecl, ...] = ()
    ttl_attribute: str | None = None
    stream: StreamView | None = None

    @classmethod
    def of(cls, name: str, shape: TableShape) -> TableDecl:
        """Return the declaration of the table `name`, whose `shape` its package declares."""
        indexes = (IndexDecl(name, *_two(index.keys)) for name, index in shape.indexes.items())
        expiry = shape.ttl_attribute
        return cls(name, *_two(shape.keys), indexes=tuple(indexes), ttl_attribute=expiry, stream=shape.stream_view)


@dataclass(frozen=True, slots=True)
class BucketDecl:
    """A bucket.

    Attributes:
        name: Its name, unique in all of AWS; `${AWS::AccountId}` in it stands for the account.
        expire_days: After how many days objects are removed; by default never.
    """

    kind: ClassVar[Kind] = "bucket"
    name: str
    expire_days: Annotated[int, Meta(ge=1)] | None = None


@dataclass(frozen=True, slots=True)
class BusDecl:
    """An event bus.

    Attributes:
        name: Its name.
    """

    kind: ClassVar[Kind] = "bus"
    name: str


@dataclass(frozen=True, slots=True)
class RuleDecl:
    """A rule by which a bus sends events that match a pattern, or a tick of a schedule, to a function or queue.

    Attributes:
        name: Its name.
        bus: The bus; schedules run on the bus "default" only.
        target: The name of the function or queue.
        target_id: The id of the target, unique within the rule.
        pattern: Which events to send, in the form of EventBridge.
        schedule: When to send a tick, such as "rate(5 minutes)", instead of a pattern.
        dead_letter: The queue for events that cannot be delivered.
        max_attempts: Retries of a delivery, from 0 to 185.
        max_event_age: Seconds after which a delivery is given up, from 60 to 86,400.
    """

    kind: ClassVar[Kind] = "rule"
    name: str
    bus: str
    target: str
    target_id: str
    pattern: Mapping[str, Any] | None = None
    schedule: str | None = None
    dead_letter: str | None = None
    max_attempts: Annotated[int, Meta(ge=0, le=185)] = 3
    max_event_age: Annotated[int, Meta(ge=60, le=86_400)] = 3600


@dataclass(frozen=True, slots=True)
class TriggerDecl:
    """A queue, a stream or a table's stream that calls a function.

    Attributes:
        source: The name of the queue, stream or table.
        batch_size: The most messages or records of one call.
        max_attempts: Retries of a batch of a stream before its records are lost; -1 to retry until they expire.
        bisect: Whether a failed batch of a stream is halved to find the record at fault.
        report_item_failures: Whether the function returns which messages failed, so that only these come again.
    """

    source: str
    batch_size: Annotated[int, Meta(ge=1, le=10_000)] = 10
    max_attempts: Annotated[int, Meta(ge=-1, le=10_000)] = 5
    bisect: bool = True
    report_item_failures: bool = True


@dataclass(frozen=True, slots=True)
class FunctionDecl:
    """A function on Lambda.

    Attributes:
        name: Its name.
        handler: The Python function, such as "postroad.lambdas.sweeper.handler".
        component: The component whose rights it has.
        timeout: Seconds that a call may take, from 1 to 900.
        memory: Megabytes, from 128 to 10,240.
        environment: Its variables. `${Url:NAME}` stands for the URL of a queue; an empty one is set at deployment.
        triggers: What calls it.
        on_failure: The queue for events of calls that failed.
    """

    kind: ClassVar[Kind] = "function"
    name: str
    handler: str
    component: str
    timeout: Annotated[int, Meta(ge=1, le=900)] = 30
    memory: Annotated[int, Meta(ge=128, le=10_240)] = 256
    environment: Mapping[str, str] = field(default_factory=dict)
    triggers: tuple[TriggerDecl, ...] = ()
    on_failure: str | None = None


@dataclass(frozen=True, slots=True)
class AlarmDecl:
    """An alarm on a metric of a resource.

    Attributes:
        name: Its name.
        metric: The name of the metric.
        resource: The name of the resource.
        threshold: The value that the metric is compared with.
        namespace: The namespace of the metric; "Postroad" for those that Postroad itself exports.
        statistic: How the values of a period are combined.
        comparison: The comparison of value and threshold that raises the alarm.
        period: Seconds of one period, from 10 to 86,400.
        periods: How many periods in a row raise the alarm, from 1 to 100.
        missing: What a period without values means.
        notify: The topic that is notified, if any.
    """

    kind: ClassVar[Kind] = "alarm"
    name: str
    metric: str
    resource: str
    threshold: Annotated[float, Meta(ge=-FINITE, le=FINITE, description="a number")]
    namespace: str = "AWS/SQS"
    statistic: Literal["Maximum", "Minimum", "Sum", "Average"] = "Maximum"
    comparison: Comparison = ">="
    period: Annotated[int, Meta(ge=10, le=86_400)] = 60
    periods: Annotated[int, Meta(ge=1, le=100)] = 1
    missing: Literal["notBreaching", "breaching", "ignore", "missing"] = "notBreaching"
    notify: str | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """A program and the resources that it uses, by their names; its role allows exactly this.

    Attributes:
        name: Its name.
        sends: Queues that it sends to.
        consumes: Queues that it receives from.
        publishes: Topics and buses that it publishes to.
        puts: Streams that it writes to.
        reads: Streams, tables and buckets that it reads.
        writes: Tables and buckets that it writes to.
        operates: Queues whose dead letters it redrives and purges.
        observes: Queues whose counters it reads.
        trust: The service that runs it.
        creates: Patterns of queues that it makes by itself, such as `agents-*.fifo`, for use in the fields above.
        measures: The namespace under which it reports metrics, if it does.
        role: The name of its role if the component's own name is not unique in the account.
    """

    name: str
    sends: tuple[str, ...] = ()
    consumes: tuple[str, ...] = ()
    publishes: tuple[str, ...] = ()
    puts: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    operates: tuple[str, ...] = ()
    observes: tuple[str, ...] = ()
    trust: str = "ecs-tasks.amazonaws.com"
    creates: tuple[str, ...] = ()
    measures: str | None = None
    # Two components that need the same are equal, whatever their roles are called.
    role: str | None = field(default=None, compare=False)

    @property
    def role_name(self) -> str:
        """The name of the component's role, among all roles of an account."""
        return self.name if self.role is None else self.role


Resource = (
    QueueDecl
    | TopicDecl
    | SubscriptionDecl
    | StreamDecl
    | TableDecl
    | BucketDecl
    | BusDecl
    | RuleDecl
    | FunctionDecl
    | AlarmDecl
)
DECLARATIONS: tuple[type[Resource], ...] = get_args(Resource)
BY_KIND: Mapping[str, type[Resource]] = {declared.kind: declared for declared in DECLARATIONS}


def _two(keys: tuple[str, ...]) -> tuple[str, str | None]:
    return keys[0], keys[1] if len(keys) > 1 else None
