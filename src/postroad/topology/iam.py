"""The least rights with which each component can do its work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from postroad.errors import TopologyError
from postroad.settings import nearest
from postroad.topology.declarations import Component, FunctionDecl, QueueDecl, TableDecl
from postroad.topology.linting import check
from postroad.topology.place import SOMEWHERE, Place, is_account, is_partition, is_region
from postroad.topology.references import Mention, resolve, sources_of
from postroad.topology.topology import Topology

Statement = dict[str, Any]
VERSION = "2012-10-17"
_CONSUME = ("ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes")
_OPERATE = ("StartMessageMoveTask", "CancelMessageMoveTask", "ListMessageMoveTasks", *_CONSUME, "GetQueueUrl")
_CREATE = ("CreateQueue", "DeleteQueue", "SetQueueAttributes", "GetQueueAttributes", "GetQueueUrl", "TagQueue")
_READ_STREAM = ("DescribeStream", "DescribeStreamSummary", "GetRecords", "GetShardIterator", "ListShards")
_READ_TABLE = ("GetItem", "BatchGetItem", "Query")
_WRITE_TABLE = ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "ConditionCheckItem")
_READ_TABLE_STREAM = ("DescribeStream", "GetRecords", "GetShardIterator")
_LOG = ("CreateLogGroup", "CreateLogStream", "PutLogEvents")


def iam_policy(
    topology: Topology, component: str, *, region: str, account: str, partition: str = "aws"
) -> dict[str, Any]:
    """The policy of the component's role, with the exact ARNs of this account and region."""
    check(topology)
    if not is_region(region):
        raise TopologyError(f"region: {region!r} is not a region", field="region", remedy="Name one, as eu-central-1.")
    if not is_partition(partition):
        raise TopologyError(
            f"partition: {partition!r} is not a partition", field="partition", remedy="Name one, as aws or aws-cn."
        )
    if not is_account(account):
        raise TopologyError(f"account: {account!r} is not an account", field="account", remedy="Give its 12 digits.")
    return policy_of(topology, _component(topology, component), Place(partition, region, account))


def producer_policy(topic_arn: str) -> dict[str, Any]:
    """The rights of a service that publishes to this topic, and nothing else."""
    return _document([_publish([topic_arn])])


def consumer_policy(queue_arn: str, *, kms_key: str | None = None) -> dict[str, Any]:
    """The rights of a service that consumes this queue by its URL, and nothing else."""
    return _document([_consume([queue_arn]), *_decrypt([kms_key] if kms_key else [])])


def policy_of(topology: Topology, component: Component, place: Place = SOMEWHERE) -> dict[str, Any]:
    """The policy of the component's role at a place."""
    return _document(list(_Rights(topology, component, place).statements()))


def trust_policy(service: str) -> dict[str, Any]:
    """The policy by which a service may take on a role."""
    return _document([{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}])


def _component(topology: Topology, name: str) -> Component:
    for component in topology.components:
        if component.name == name:
            return component
    known = [component.name for component in topology.components]
    raise TopologyError(
        f"component: {name!r} is not declared", field="component", codes=["unknown-reference"],
        nearest=nearest(name, known), remedy=f"The components are {', '.join(known)}.",
    )  # fmt: skip


class _Rights:
    """The statements of one component, what its functions need included."""

    def __init__(self, topology: Topology, component: Component, place: Place) -> None:
        self._topology = topology
        self._component = component
        self._place = place
        functions = (each for each in topology.resources if isinstance(each, FunctionDecl))
        self._functions = [each for each in functions if each.component == component.name]

    def statements(self) -> Iterator[Statement]:
        consumed = [*self._component.consumes, *self._triggers("queue")]
        sent = [*self._component.sends, *(each.on_failure for each in self._functions if each.on_failure)]
        yield from _allow("Send", "sqs", ("SendMessage", "GetQueueUrl"), self._queues(sent))
        yield from self._consuming(consumed)
        yield from _allow(
            "Observe", "sqs", ("GetQueueAttributes", "GetQueueUrl"), self._queues(self._component.observes)
        )
        yield from self._operating(self._component.operates)
        yield from _allow("Create", "sqs", _CREATE, self._queues(self._component.creates))
        yield from self._keys(consumed=[*consumed, *self._component.operates], sent=sent)
        yield from self._publishing()
        yield from _allow("Put", "kinesis", ("PutRecord", "PutRecords"), self._arns("stream", self._component.puts))
        yield from self._reading()
        yield from self._writing()
        yield from self._running()

    def _consuming(self, names: Sequence[str]) -> Iterator[Statement]:
        if names:
            yield _consume(self._queues(names))
            yield from _allow("FindConsumed", "sqs", ("GetQueueUrl",), self._queues(names))
            yield from _allow("DeadLetter", "sqs", ("SendMessage",), self._queues(self._dead_letters(names)))

    def _operating(self, names: Sequence[str]) -> Iterator[Statement]:
        sources = [source for name in names for source in sources_of(self._topology, name)]
        yield from _allow("Operate", "sqs", _OPERATE, self._queues(names))
        yield from _allow(
            "Redrive", "sqs", ("SendMessage", "GetQueueUrl", "GetQueueAttributes"), self._queues(sources)
        )  # fmt: skip

    def _publishing(self) -> Iterator[Statement]:
        topics = self._arns("topic", self._named("topic", self._component.publishes))
        buses = self._arns("bus", self._named("bus", self._component.publishes))
        if topics:
            yield _publish(topics)
        yield from _allow("PutEvents", "events", ("PutEvents",), buses)

    def _reading(self) -> Iterator[Statement]:
        streams = [*self._named("stream", self._component.reads), *self._triggers("stream")]
        yield from _allow("ReadStream", "kinesis", _READ_STREAM, self._arns("stream", streams))
        yield from _allow("ReadTable", "dynamodb", _READ_TABLE, self._with_indexes(self._component.reads))
        changes = [f"{arn}/stream/*" for arn in self._arns("table", self._triggers("table"))]
        yield from _allow("ReadTableStream", "dynamodb", _READ_TABLE_STREAM, changes)
        if changes:
            yield from _allow("ListTableStreams", "dynamodb", ("ListStreams",), ["*"])
        if self._triggers("stream"):
            yield from _allow("ListStreams", "kinesis", ("ListStreams",), ["*"])
        yield from _allow("ReadObjects", "s3", ("GetObject",), self._objects(self._component.reads))

    def _writing(self) -> Iterator[Statement]:
        tables = self._arns("table", self._named("table", self._component.writes))
        yield from _allow("WriteTable", "dynamodb", _WRITE_TABLE, tables)
        yield from _allow("WriteObjects", "s3", ("PutObject",), self._objects(self._component.writes))

    def _running(self) -> Iterator[Statement]:
        yield from _allow("Log", "logs", _LOG, self._arns("log", [each.name for each in self._functions]))
        if self._component.measures is not None:
            condition = {"StringEquals": {"cloudwatch:namespace": self._component.measures}}
            [statement] = _allow("Measure", "cloudwatch", ("PutMetricData",), ["*"])
            yield {**statement, "Condition": condition}

    def _keys(self, *, consumed: Sequence[str], sent: Sequence[str]) -> Iterator[Statement]:
        dead = self._dead_letters(consumed)
        sources = [source for name in self._component.operates for source in sources_of(self._topology, name)]
        yield from _decrypt(self._kms(consumed))
        yield from _allow(
            "Encrypt", "kms", ("GenerateDataKey", "Decrypt"), self._kms([*sent, *dead, *sources])
        )  # fmt: skip

    def _kms(self, names: Sequence[str]) -> list[str]:
        found = (self._topology.find("queue", name) for name in names)
        keys = (each.encryption for each in found if isinstance(each, QueueDecl))
        return _unique([key for key in keys if key.startswith("arn:")])

    def _dead_letters(self, names: Sequence[str]) -> list[str]:
        found = (self._topology.find("queue", name) for name in names)
        return _unique(
            [each.spec.dead_letter for each in found if isinstance(each, QueueDecl) and each.spec.dead_letter]
        )

    def _with_indexes(self, names: Sequence[str]) -> list[str]:
        found = (self._topology.find("table", name) for name in names)
        tables = [each for each in found if isinstance(each, TableDecl)]
        return [
            arn
            for table in tables
            for arn in (
                self._place.arn("table", table.name),
                *(f"{self._place.arn('table', table.name)}/index/{index.name}" for index in table.indexes),
            )
        ]

    def _objects(self, names: Sequence[str]) -> list[str]:
        return [f"{arn}/*" for arn in self._arns("bucket", self._named("bucket", names))]

    def _triggers(self, kind: str) -> list[str]:
        sources = [trigger.source for function in self._functions for trigger in function.triggers]
        mentioned = (Mention("triggers", ("queue", "stream", "table"), name) for name in sources)
        found = (resolve(self._topology, mention) for mention in mentioned)
        return [each.name for each in found if each is not None and each.kind == kind]

    def _named(self, kind: str, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._topology.find(kind, name) is not None]

    def _queues(self, names: Sequence[str]) -> list[str]:
        return self._arns("queue", names)

    def _arns(self, kind: str, names: Sequence[str]) -> list[str]:
        return _unique([self._place.arn(kind, name) for name in names])


def _publish(topics: list[str]) -> Statement:
    [statement] = _allow("Publish", "sns", ("Publish",), topics)
    return statement


def _consume(queues: list[str]) -> Statement:
    [statement] = _allow("Consume", "sqs", _CONSUME, queues)
    return statement


def _decrypt(keys: list[str]) -> Iterator[Statement]:
    return _allow("Decrypt", "kms", ("Decrypt",), keys)


def _allow(sid: str, service: str, actions: Sequence[str], resources: list[str]) -> Iterator[Statement]:
    if resources:
        named = [f"{service}:{action}" for action in actions]
        yield {"Sid": sid, "Effect": "Allow", "Action": named, "Resource": resources}


def _document(statements: list[Statement]) -> dict[str, Any]:
    return {"Version": VERSION, "Statement": statements}


def _unique(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))
