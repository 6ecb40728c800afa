"""Who names whom: the references inside a topology, and the order that follows from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter

from postroad.topology.declarations import (
    DEFAULT_BUS,
    AlarmDecl,
    Component,
    FunctionDecl,
    QueueDecl,
    Resource,
    RuleDecl,
    SubscriptionDecl,
)
from postroad.topology.topology import Topology

Key = tuple[str, str]
"""A resource by its kind and name."""

URL = re.compile(r"\$\{Url:([^}]*)\}")
METRICS_OF = {
    "AWS/SQS": ("queue",),
    "AWS/SNS": ("topic",),
    "AWS/Kinesis": ("stream",),
    "AWS/DynamoDB": ("table",),
    "AWS/Lambda": ("function",),
    "AWS/Events": ("rule",),
}
_MEASURED = ("queue", "topic", "stream", "table", "function", "bus", "rule", "bucket")
NEEDS = {
    "sends": ("queue",),
    "consumes": ("queue",),
    "publishes": ("topic", "bus"),
    "puts": ("stream",),
    "reads": ("stream", "table", "bucket"),
    "writes": ("table", "bucket"),
    "operates": ("queue",),
    "observes": ("queue",),
}
"""What a component may need, and the kinds of resources that each need may name."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A name inside a declaration that must be that of a resource of one of the kinds."""

    field: str
    kinds: tuple[str, ...]
    name: str
    before: bool = True
    """Whether the resource has to be there first."""


def mentions(resource: Resource) -> Iterator[Mention]:
    """Every resource that this one names."""
    if isinstance(resource, QueueDecl):
        yield from _of_queue(resource)
    elif isinstance(resource, SubscriptionDecl):
        yield Mention("topic", ("topic",), resource.topic)
        yield Mention("queue", ("queue",), resource.queue)
    elif isinstance(resource, RuleDecl):
        yield from _of_rule(resource)
    elif isinstance(resource, FunctionDecl):
        yield from _of_function(resource)
    elif isinstance(resource, AlarmDecl):
        yield Mention("resource", METRICS_OF.get(resource.namespace, _MEASURED), resource.resource, before=False)
        if resource.notify is not None:
            yield Mention("notify", ("topic",), resource.notify)


def component_mentions(component: Component) -> Iterator[Mention]:
    """Every resource that this component needs."""
    for need, kinds in NEEDS.items():
        for name in getattr(component, need):
            yield Mention(need, kinds, name)


def _of_queue(resource: QueueDecl) -> Iterator[Mention]:
    if resource.spec.dead_letter is not None:
        yield Mention("dead_letter", ("queue",), resource.spec.dead_letter)
    if isinstance(resource.spec.redrive_allow, tuple):
        for name in resource.spec.redrive_allow:
            yield Mention("redrive_allow", ("queue",), name, before=False)


def _of_rule(resource: RuleDecl) -> Iterator[Mention]:
    if resource.bus != DEFAULT_BUS:
        yield Mention("bus", ("bus",), resource.bus)
    yield Mention("target", ("function", "queue"), resource.target)
    if resource.dead_letter is not None:
        yield Mention("dead_letter", ("queue",), resource.dead_letter)


def _of_function(resource: FunctionDecl) -> Iterator[Mention]:
    for trigger in resource.triggers:
        yield Mention("triggers", ("queue", "stream", "table"), trigger.source)
    if resource.on_failure is not None:
        yield Mention("on_failure", ("queue",), resource.on_failure)
    for name in sorted(name for value in resource.environment.values() for name in URL.findall(value)):
        yield Mention("environment", ("queue",), name)


def resolve(topology: Topology, mention: Mention) -> Resource | None:
    """The resource that is meant, or None when there is none."""
    found = (topology.find(kind, mention.name) for kind in mention.kinds)
    return next((resource for resource in found if resource is not None), None)


def needs(topology: Topology, resource: Resource) -> tuple[Key, ...]:
    """The resources that have to be there before this one."""
    named = [mention for mention in mentions(resource) if mention.before]
    if isinstance(resource, FunctionDecl):
        named += [
            m for each in topology.components if each.name == resource.component for m in component_mentions(each)
        ]
    found = (resolve(topology, mention) for mention in named)
    return tuple(dict.fromkeys((each.kind, each.name) for each in found if each is not None))


def ordered(topology: Topology) -> list[Resource]:
    """All resources, each behind those that it needs."""
    graph: TopologicalSorter[Key] = TopologicalSorter()
    for resource in topology.resources:
        graph.add((resource.kind, resource.name), *needs(topology, resource))
    return [topology.get(*key) for key in graph.static_order()]


def sources_of(topology: Topology, dead_letter: str) -> list[str]:
    """The queues that have this one for their dead letters."""
    queues = (each for each in topology.resources if isinstance(each, QueueDecl))
    return [each.name for each in queues if each.spec.dead_letter == dead_letter]
