"""The least rights with which each component can do its work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from postroad.connections import Statement, aws_rights as rights, document
from postroad.errors import TopologyError
from postroad.settings import nearest
from postroad.topology.declarations import Component, FunctionDecl, QueueDecl, TableDecl
from postroad.topology.lint import check
from postroad.topology.names import SOMEWHERE, Mention, Place, is_account, is_partition, is_region, resolve, sources_of
from postroad.topology.topology import Topology


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
    return document(list(_allow("Publish", rights.PUBLISH, [topic_arn])))


def consumer_policy(queue_arn: str, *, kms_key: str | None = None) -> dict[str, Any]:
    """The rights of a service that consumes this queue by its URL, and nothing else."""
    keys = [kms_key] if kms_key else []
    return document([*_allow("Consume", rights.CONSUME, [queue_arn]), *_allow("Decrypt", rights.DECRYPT, keys)])


def policy_of(topology: Topology, component: Component, place: Place = SOMEWHERE) -> dict[str, Any]:
    """The policy of the component's role at a place."""
    return document(list(_Rights(topology, component, place).statements()))


def trust_policy(service: str) -> dict[str, Any]:
    """The policy by which a service may take on a role."""
    return document([{"Effect": "Allow", "Principal": {"Service": service}, "Action": rights.ASSUME}])


def _component(topology: Topology, name: str) -> Component:
    for component in topology.components:
        if component.name == name:
            return component
    known = [component.name for component in topology.components]
    raise TopologyError(
        f"component: {name!r} is not declared",
        field="component",
        codes=["unknown-reference"],
        nearest=nearest(name, known),
        remedy=f"The components are {', '.join(known)}.",
    )


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
        yield from _allow("Send", (*rights.SEND, *rights.FIND), self._queues(sent))
        yield from self._consuming(consumed)
        yield from _allow("Observe", (*rights.OBSERVE, *rights.FIND), self._queues(self._component.observes))
        yield from self._operating(self._component.operates)
        yield from _allow("Create", rights.CREATE, self._queues(self._component.creates))
        yield from self._keys(consumed=[*consumed, *self._component.operates], sent=sent)
        yield from self._publishing()
        yield from _allow("Put", rights.PUT_RECORDS, self._arns("stream", self._component.puts))
        yield from self._reading()
        yield from self._writing()
        yield from self._running()

    def _consuming(self, names: Sequence[str]) -> Iterator[Statement]:
        if names:
            yield from _allow("Consume", rights.CONSUME, self._queues(names))
            yield from _allow("FindConsumed", rights.FIND, self._queues(names))
            yield from _allow("DeadLetter", rights.SEND, self._queues(self._dead_letters(names)))

    def _operating(self, names: Sequence[str]) -> Iterator[Statement]:
        sources = [source for name in names for source in sources_of(self._topology, name)]
        operated = (*rights.MOVE, *rights.CONSUME, *rights.FIND)
        yield from _allow("Operate", operated, self._queues(names))
        yield from _allow("Redrive", (*rights.SEND, *rights.FIND, *rights.OBSERVE), self._queues(sources))

    def _publishing(self) -> Iterator[Statement]:
        topics = self._arns("topic", self._named("topic", self._component.publishes))
        buses = self._arns("bus", self._named("bus", self._component.publishes))
        yield from _allow("Publish", rights.PUBLISH, topics)
        yield from _allow("PutEvents", rights.PUT_EVENTS, buses)

    def _reading(self) -> Iterator[Statement]:
        streams = [*self._named("stream", self._component.reads), *self._triggers("stream")]
        yield from _allow("ReadStream", rights.READ_STREAM, self._arns("stream", streams))
        yield from _allow("ReadTable", rights.READ_TABLE, self._with_indexes(self._component.reads))
        changes = [f"{arn}/stream/*" for arn in self._arns("table", self._triggers("table"))]
        yield from _allow("ReadTableStream", rights.READ_TABLE_STREAM, changes)
        if changes:
            yield from _allow("ListTableStreams", rights.LIST_TABLE_STREAMS, ["*"])
        if self._triggers("stream"):
            yield from _allow("ListStreams", rights.LIST_STREAMS, ["*"])
        yield from _allow("ReadObjects", rights.READ_OBJECTS, self._objects(self._component.reads))

    def _writing(self) -> Iterator[Statement]:
        tables = self._arns("table", self._named("table", self._component.writes))
        yield from _allow("WriteTable", rights.WRITE_TABLE, tables)
        yield from _allow("WriteObjects", rights.WRITE_OBJECTS, self._objects(self._component.writes))

    def _running(self) -> Iterator[Statement]:
        yield from _allow("Log", rights.LOG, self._arns("log", [each.name for each in self._functions]))
        if self._component.measures is not None:
            condition = {"StringEquals": {"cloudwatch:namespace": self._component.measures}}
            [statement] = _allow("Measure", rights.MEASURE, ["*"])
            yield {**statement, "Condition": condition}

    def _keys(self, *, consumed: Sequence[str], sent: Sequence[str]) -> Iterator[Statement]:
        dead = self._dead_letters(consumed)
        sources = [source for name in self._component.operates for source in sources_of(self._topology, name)]
        yield from _allow("Decrypt", rights.DECRYPT, self._kms(consumed))
        yield from _allow("Encrypt", rights.ENCRYPT, self._kms([*sent, *dead, *sources]))

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


def _allow(sid: str, actions: Sequence[str], resources: list[str]) -> Iterator[Statement]:
    if resources:
        yield rights.allowed(actions, resources, sid=sid)


def _unique(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))
