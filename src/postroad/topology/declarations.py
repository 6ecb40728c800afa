"""What a deployment is made of: one frozen declaration for each resource, one component for each role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from postroad.connections import StreamView, TableShape
from postroad.queues import QueueSpec

Kind = Literal["queue", "topic", "subscription", "stream", "table", "bucket", "bus", "rule", "function", "alarm"]
Comparison = Literal[">", ">=", "<", "<="]
DEFAULT_BUS = "default"


@dataclass(frozen=True, slots=True)
class QueueDecl:
    """A queue. `encryption` is "sqs" (SQS's own keys), "none" or the ARN of a KMS key."""

    kind: ClassVar[Kind] = "queue"
    spec: QueueSpec
    encryption: str = "sqs"
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class TopicDecl:
    """A topic to publish under."""

    kind: ClassVar[Kind] = "topic"
    name: str
    fifo: bool = False
    content_dedup: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionDecl:
    """A queue that gets a copy of what the filter lets through; `raw` leaves the body as it was published."""

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
    """An ordered stream in shards."""

    kind: ClassVar[Kind] = "stream"
    name: str
    shards: int = 1
    retention_hours: int = 24


@dataclass(frozen=True, slots=True)
class IndexDecl:
    """A second order of a table's items."""

    name: str
    hash_key: str
    range_key: str | None = None
    projection: Literal["ALL", "KEYS_ONLY"] = "ALL"


@dataclass(frozen=True, slots=True)
class TableDecl:
    """A table, billed by request; its keys are text."""

    kind: ClassVar[Kind] = "table"
    name: str
    hash_key: str
    range_key: str | None = None
    indexes: tuple[IndexDecl, ...] = ()
    ttl_attribute: str | None = None
    stream: StreamView | None = None

    @classmethod
    def of(cls, name: str, shape: TableShape) -> TableDecl:
        """The declaration of a table whose shape its package declares."""
        indexes = (IndexDecl(name, *_two(index.keys)) for name, index in shape.indexes.items())
        expiry = shape.ttl_attribute
        return cls(name, *_two(shape.keys), indexes=tuple(indexes), ttl_attribute=expiry, stream=shape.stream_view)


@dataclass(frozen=True, slots=True)
class BucketDecl:
    """A bucket. `${AWS::AccountId}` in the name stands for the account: all of AWS shares one space of bucket names."""

    kind: ClassVar[Kind] = "bucket"
    name: str
    expire_days: int | None = None


@dataclass(frozen=True, slots=True)
class BusDecl:
    """An event bus."""

    kind: ClassVar[Kind] = "bus"
    name: str


@dataclass(frozen=True, slots=True)
class RuleDecl:
    """What a bus sends to a function or queue: the events that fit the pattern, or a tick of the schedule."""

    kind: ClassVar[Kind] = "rule"
    name: str
    bus: str
    target: str
    target_id: str
    pattern: Mapping[str, Any] | None = None
    schedule: str | None = None
    dead_letter: str | None = None
    max_attempts: int = 3
    max_event_age: int = 3600


@dataclass(frozen=True, slots=True)
class TriggerDecl:
    """A queue, a stream or a table's stream that calls a function; the last three settings are for streams.

    `max_attempts` is how often a batch is tried again before it is given up: its records are lost then. With -1 it is
    tried until the records expire.
    """

    source: str
    batch_size: int = 10
    max_attempts: int = 5
    bisect: bool = True
    report_item_failures: bool = True


@dataclass(frozen=True, slots=True)
class FunctionDecl:
    """A function that runs with the rights of its component. A variable of the environment that is empty is filled
    by whoever deploys; `${Url:NAME}` stands for the URL of a queue."""

    kind: ClassVar[Kind] = "function"
    name: str
    handler: str
    component: str
    timeout: int = 30
    memory: int = 256
    environment: Mapping[str, str] = field(default_factory=dict)
    triggers: tuple[TriggerDecl, ...] = ()
    on_failure: str | None = None


@dataclass(frozen=True, slots=True)
class AlarmDecl:
    """A metric of a resource that somebody wants to hear about, through the topic `notify`."""

    kind: ClassVar[Kind] = "alarm"
    name: str
    metric: str
    resource: str
    threshold: float
    namespace: str = "AWS/SQS"
    statistic: Literal["Maximum", "Minimum", "Sum", "Average"] = "Maximum"
    comparison: Comparison = ">="
    period: int = 60
    periods: int = 1
    missing: Literal["notBreaching", "breaching", "ignore", "missing"] = "notBreaching"
    notify: str | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """A program and what it needs, by the names of the resources: its role.

    `creates` are patterns of queues that the program makes by itself, such as `agents-*.fifo`; what sends to or
    consumes from them names the pattern. `measures` is the namespace under which it puts metrics. `role` is the name
    of the role where the component's own name would not be the only one of its kind in an account."""

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
DECLARATIONS: tuple[type[Resource], ...] = (
    QueueDecl,
    TopicDecl,
    SubscriptionDecl,
    StreamDecl,
    TableDecl,
    BucketDecl,
    BusDecl,
    RuleDecl,
    FunctionDecl,
    AlarmDecl,
)
BY_KIND: Mapping[str, type[Resource]] = {declared.kind: declared for declared in DECLARATIONS}


def _two(keys: tuple[str, ...]) -> tuple[str, str | None]:
    """The partition key, and the sort key where there is one."""
    return keys[0], keys[1] if len(keys) > 1 else None
