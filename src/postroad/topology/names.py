"""Names: which ones AWS accepts, the ARNs that follow from them, and which resources name which others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

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
from postroad.topology.topology import Finding, Topology, refuse

ACCOUNT = "${AWS::AccountId}"
_FIFO = ".fifo"
_MARK = 8
_DIGITS = "000000000000"
_LONGEST = {
    "queue": 80,
    "topic": 256,
    "stream": 128,
    "table": 255,
    "bucket": 63,
    "bus": 256,
    "rule": 64,
    "function": 64,
    "alarm": 255,
    "component": 64,
    "role": 64,
    "topology": 128,
}
_SHORTEST = {"table": 3, "bucket": 3}
_FORMS = {
    "queue": r"[A-Za-z0-9_-]+(\.fifo)?",
    "topic": r"[A-Za-z0-9_-]+(\.fifo)?",
    "stream": r"[A-Za-z0-9_.-]+",
    "table": r"[A-Za-z0-9_.-]+",
    "bucket": r"[a-z0-9][a-z0-9.-]*[a-z0-9]",
    "bus": r"[A-Za-z0-9_.-]+",
    "rule": r"[A-Za-z0-9_.-]+",
    "function": r"[A-Za-z0-9_-]+",
    "alarm": r"[ -~]+",
    "component": r"[A-Za-z0-9_+=,.@-]+",
    "role": r"[A-Za-z0-9_+=,.@-]+",
    "topology": r"[A-Za-z0-9_.-]+",
}
_REMEDIES = {
    "queue": "Use 1 to 80 letters, digits, '-' or '_', with '.fifo' at the end exactly when it is FIFO.",
    "bucket": "Use 3 to 63 lower-case letters, digits, '-' or '.'.",
}


def aws_name(dotted: str, *, fifo: bool = False) -> str:
    """The name of a queue or topic for a dotted one: 'gateway.usdc' becomes 'gateway-usdc', with '.fifo' if FIFO."""
    name: object = dotted
    if isinstance(name, str):
        name = name.removesuffix(_FIFO).replace(".", "-") + (_FIFO if fifo else "")
    if (finding := name_finding("queue", name)) is not None:
        raise refuse([finding])
    return str(name)


def role_name(*parts: str) -> str:
    """The name of a role out of its parts; one that is too long for AWS ends in a hash instead of its tail."""
    name = "-".join(parts)
    if len(name) <= _LONGEST["role"]:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:_MARK]
    return f"{name[: _LONGEST['role'] - _MARK - 1]}-{mark}"


def name_finding(kind: str, name: object) -> Finding | None:
    """What is wrong with a name; None when AWS accepts it."""
    if kind not in _FORMS or _fits(kind, name):
        return None
    remedy = _REMEDIES.get(kind, f"Use {_SHORTEST.get(kind, 1)} to {_LONGEST[kind]} letters, digits, '-' or '_'.")
    shown = repr(name)[:120]
    return Finding("name-invalid", "error", str(name), f"{shown} is not the name of a {kind}", remedy)


def _fits(kind: str, name: object) -> bool:
    if not isinstance(name, str):
        return False
    plain = name.replace(ACCOUNT, _DIGITS) if kind == "bucket" else name
    within = _SHORTEST.get(kind, 1) <= len(plain) <= _LONGEST[kind]
    return within and re.fullmatch(_FORMS[kind], plain) is not None


TOKENS = ("${AWS::Partition}", "${AWS::Region}", "${AWS::AccountId}")
"""What stands for them while they are unknown, in CloudFormation's own spelling."""

_ARNS = {
    "queue": "arn:{partition}:sqs:{region}:{account}:{name}",
    "topic": "arn:{partition}:sns:{region}:{account}:{name}",
    "stream": "arn:{partition}:kinesis:{region}:{account}:stream/{name}",
    "table": "arn:{partition}:dynamodb:{region}:{account}:table/{name}",
    "bucket": "arn:{partition}:s3:::{name}",
    "bus": "arn:{partition}:events:{region}:{account}:event-bus/{name}",
    "function": "arn:{partition}:lambda:{region}:{account}:function:{name}",
    "alarm": "arn:{partition}:cloudwatch:{region}:{account}:alarm:{name}",
    "log": "arn:{partition}:logs:{region}:{account}:log-group:/aws/lambda/{name}:*",
    "role": "arn:{partition}:iam::{account}:role/{name}",
    "rule": "arn:{partition}:events:{region}:{account}:rule/{name}",
}


@dataclass(frozen=True, slots=True)
class Place:
    """One account in one region."""

    partition: str = TOKENS[0]
    region: str = TOKENS[1]
    account: str = TOKENS[2]

    def arn(self, kind: str, name: str) -> str:
        """The ARN of the resource of this kind and name; a rule's name is that of its bus, a slash and its own."""
        plain = name.removeprefix(f"{DEFAULT_BUS}/") if kind == "rule" else name
        arn = _ARNS[kind].format(partition=self.partition, region=self.region, account=self.account, name=plain)
        return str(self.fill(arn))

    def fill(self, value: Any) -> Any:
        """The value with the tokens inside it replaced."""
        if isinstance(value, str):
            return _fill(value, (self.partition, self.region, self.account))
        if isinstance(value, dict):
            return {self.fill(key): self.fill(each) for key, each in value.items()}
        return [self.fill(each) for each in value] if isinstance(value, list | tuple) else value


def _fill(text: str, values: tuple[str, str, str]) -> str:
    for token, value in zip(TOKENS, values, strict=True):
        text = text.replace(token, value)
    return text


SOMEWHERE = Place()
"""A place that is known only when the topology is deployed."""

_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-[0-9]+")
_ACCOUNT = re.compile(r"[0-9]{12}")
_PARTITION = re.compile(r"aws(-[a-z]+)*")


def is_region(text: object) -> bool:
    """Whether it looks like the name of a region."""
    return isinstance(text, str) and _REGION.fullmatch(text) is not None


def is_account(text: object) -> bool:
    """Whether it is an account's number."""
    return isinstance(text, str) and _ACCOUNT.fullmatch(text) is not None


def is_partition(text: object) -> bool:
    """Whether it looks like the name of a partition, such as aws or aws-us-gov."""
    return isinstance(text, str) and _PARTITION.fullmatch(text) is not None


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
