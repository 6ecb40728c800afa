"""IAM policies with the least rights that each component needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from postroad.arguments import check as check_argument, text
from postroad.connections import Statement, aws_rights as rights, document
from postroad.errors import TopologyError
from postroad.settings import nearest
from postroad.topology.declarations import Component, FunctionDecl, QueueDecl, TableDecl
from postroad.topology.lint import check
from postroad.topology.names import SOMEWHERE, Mention, Place, resolve, sources_of
from postroad.topology.topology import Topology

_Region = text(r"[a-z]{2,}(-[a-z]+)+-[0-9]+", "a region", remedy="Name one, as eu-central-1.")
_Partition = text(r"aws(-[a-z]+)*", "a partition", remedy="Name one, as aws or aws-cn.")
_Account = text(r"[0-9]{12}", "an account", remedy="Give its 12 digits.")


def iam_policy(
    topology: Topology, component: str, *, region: str, account: str, partition: str = "aws"
) -> dict[str, Any]:
    """Return the policy of a component's role, with the exact ARNs of one account and region.

    Args:
        topology: The topology that declares the component.
        component: The name of the component.
        region: The region, such as eu-central-1.
        account: The 12 digits of the account.
        partition: The partition, by default aws; aws-cn and aws-us-gov are others.

    Raises:
        TopologyError: The topology has errors, or an argument is not what it should be.

    Example:
        iam_policy(chat_topology("rtchat", "prod"), "workers", region="eu-central-1", account="123456789012")
    """
    check(topology)
    check_argument(region, _Region, "region", TopologyError)
    check_argument(partition, _Partition, "partition", TopologyError)
    check_argument(account, _Account, "account", TopologyError)
    components = {each.name: each for each in topology.components}
    if component not in components:
        raise TopologyError(
            f"component: {component!r} is not declared",
            field="component",
            codes=["unknown-reference"],
            nearest=nearest(component, components),
            remedy=f"The components are {', '.join(components)}.",
        )
    return policy_of(topology, components[component], Place(partition, region, account))


def producer_policy(topic_arn: str) -> dict[str, Any]:
    """Return a policy that allows publishing to this topic and nothing else.

    Args:
        topic_arn: The ARN of the topic.

    Example:
        producer_policy("arn:aws:sns:eu-central-1:123456789012:orders.fifo")
    """
    return document(list(_allow("Publish", rights.PUBLISH, [topic_arn])))


def consumer_policy(queue_arn: str, *, kms_key: str | None = None) -> dict[str, Any]:
    """Return a policy that allows consuming this queue by its URL and nothing else.

    Args:
        queue_arn: The ARN of the queue.
        kms_key: The ARN of the key that encrypts the queue, if it has one of its own.

    Example:
        consumer_policy("arn:aws:sqs:eu-central-1:123456789012:orders")
    """
    keys = [kms_key] if kms_key else []
    return document([*_allow("Consume", rights.CONSUME, [queue_arn]), *_allow("Decrypt", rights.DECRYPT, keys)])


def policy_of(topology: Topology, component: Component, place: Place = SOMEWHERE) -> dict[str, Any]:
    return document(list(_Rights(topology, component, place).statements()))


class _Rights:
    def __init__(self, topology: Topology, component: Component, place: Place) -> None:
        self._topology = topology
        self._component = component
        self._place = place
        functions = (each for each in topology.resources if isinstance(each, FunctionDecl))
        self._functions = [each for each in functions if each.component == component.name]

    def statements(self) -> Iterator[Statement]:
        published = self._component.publishes
        consumed = [*self._component.consumes, *self._triggers("queue")]
        sent = [*self._component.sends, *(each.on_failure for each in self._functions if each.on_failure)]
        yield from _allow("Send", (*rights.SEND, *rights.FIND), self._arns("queue", sent))
        yield from _allow("Consume", rights.CONSUME, self._arns("queue", consumed))
        yield from _allow("FindConsumed", rights.FIND, self._arns("queue", consumed))
        yield from _allow("DeadLetter", rights.SEND, self._arns("queue", self._dead_letters(consumed)))
        yield from _allow("Observe", (*rights.OBSERVE, *rights.FIND), self._arns("queue", self._component.observes))
        operated = self._arns("queue", self._component.operates)
        yield from _allow("Operate", (*rights.MOVE, *rights.CONSUME, *rights.FIND), operated)
        yield from _allow(
            "Redrive", (*rights.SEND, *rights.FIND, *rights.OBSERVE), self._arns("queue", self._redriven())
        )
        yield from _allow("Create", rights.CREATE, self._arns("queue", self._component.creates))
        read = [*consumed, *self._component.operates]
        yield from _allow("Decrypt", rights.DECRYPT, self._kms(read))
        written = [*sent, *self._dead_letters(read), *self._redriven()]
        yield from _allow("Encrypt", rights.ENCRYPT, self._kms(written))
        yield from _allow("Publish", rights.PUBLISH, self._arns("topic", self._named("topic", published)))
        yield from _allow("PutEvents", rights.PUT_EVENTS, self._arns("bus", self._named("bus", published)))
        yield from _allow("Put", rights.PUT_RECORDS, self._arns("stream", self._component.puts))
        yield from self._reading()
        tables = self._arns("table", self._named("table", self._component.writes))
        yield from _allow("WriteTable", rights.WRITE_TABLE, tables)
        yield from _allow("WriteObjects", rights.WRITE_OBJECTS, self._objects(self._component.writes))
        yield from _allow("Log", rights.LOG, self._arns("log", [each.name for each in self._functions]))
        if self._component.measures is not None:
            condition = {"StringEquals": {"cloudwatch:namespace": self._component.measures}}
            yield {**rights.allowed(rights.MEASURE, ["*"], sid="Measure"), "Condition": condition}

    def _reading(self) -> Iterator[Statement]:
        streams = [*self._named("stream", self._component.reads), *self._triggers("stream")]
        yield from _allow("ReadStream", rights.READ_STREAM, self._arns("stream", streams))
        found = (self._topology.find("table", name) for name in self._component.reads)
        tables = [each for each in found if isinstance(each, TableDecl)]
        named = ([each.name, *(f"{each.name}/index/{index.name}" for index in each.indexes)] for each in tables)
        arns = self._arns("table", [name for names in named for name in names])
        yield from _allow("ReadTable", rights.READ_TABLE, arns)
        changes = [f"{arn}/stream/*" for arn in self._arns("table", self._triggers("table"))]
        yield from _allow("ReadTableStream", rights.READ_TABLE_STREAM, changes)
        if changes:
            yield from _allow("ListTableStreams", rights.LIST_TABLE_STREAMS, ["*"])
        if self._triggers("stream"):
            yield from _allow("ListStreams", rights.LIST_STREAMS, ["*"])
        yield from _allow("ReadObjects", rights.READ_OBJECTS, self._objects(self._component.reads))

    def _redriven(self) -> list[str]:
        return [source for name in self._component.operates for source in sources_of(self._topology, name)]

    def _kms(self, names: Sequence[str]) -> list[str]:
        found = (self._topology.find("queue", name) for name in names)
        keys = (each.encryption for each in found if isinstance(each, QueueDecl))
        return _unique([key for key in keys if key.startswith("arn:")])

    def _dead_letters(self, names: Sequence[str]) -> list[str]:
        found = (self._topology.find("queue", name) for name in names)
        return _unique(
            [each.spec.dead_letter for each in found if isinstance(each, QueueDecl) and each.spec.dead_letter]
        )

    def _objects(self, names: Sequence[str]) -> list[str]:
        return [f"{arn}/*" for arn in self._arns("bucket", self._named("bucket", names))]

    def _triggers(self, kind: str) -> list[str]:
        sources = [trigger.source for function in self._functions for trigger in function.triggers]
        mentioned = (Mention("triggers", ("queue", "stream", "table"), name) for name in sources)
        found = (resolve(self._topology, mention) for mention in mentioned)
        return [each.name for each in found if each is not None and each.kind == kind]

    def _named(self, kind: str, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._topology.find(kind, name) is not None]

    def _arns(self, kind: str, names: Sequence[str]) -> list[str]:
        return _unique([self._place.arn(kind, name) for name in names])


def _allow(sid: str, actions: Sequence[str], resources: list[str]) -> Iterator[Statement]:
    if resources:
        yield rights.allowed(actions, resources, sid=sid)


def _unique(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))
