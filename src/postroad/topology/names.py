"""Names: which ones AWS accepts, the ARNs that follow from them, and which resources name which others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from postroad.topology import declarations
from postroad.topology.topology import Finding, Topology, refuse

ACCOUNT = "${AWS::AccountId}"
_FIFO = ".fifo"
_HASH_LETTERS = 8
_NAMES = {
    "queue": (1, 80, r"[A-Za-z0-9_-]+(\.fifo)?"),
    "topic": (1, 256, r"[A-Za-z0-9_-]+(\.fifo)?"),
    "stream": (1, 128, r"[A-Za-z0-9_.-]+"),
    "table": (3, 255, r"[A-Za-z0-9_.-]+"),
    "bucket": (3, 63, r"[a-z0-9][a-z0-9.-]*[a-z0-9]"),
    "bus": (1, 256, r"[A-Za-z0-9_.-]+"),
    "rule": (1, 64, r"[A-Za-z0-9_.-]+"),
    "function": (1, 64, r"[A-Za-z0-9_-]+"),
    "alarm": (1, 255, r"[ -~]+"),
    "component": (1, 64, r"[A-Za-z0-9_+=,.@-]+"),
    "role": (1, 64, r"[A-Za-z0-9_+=,.@-]+"),
    "topology": (1, 128, r"[A-Za-z0-9_.-]+"),
}
"""The shortest and the longest name of each kind, and its pattern."""
_REMEDIES = {
    "queue": "Use 1 to 80 letters, digits, '-' or '_', with '.fifo' at the end exactly when it is FIFO.",
    "bucket": "Use 3 to 63 lower-case letters, digits, '-' or '.'.",
}


def aws_name(dotted: str, *, fifo: bool = False) -> str:
    """Return the name of a queue or topic for a dotted one: 'gateway.usdc' becomes 'gateway-usdc'.

    Args:
        dotted: The name with dots.
        fifo: Whether it is FIFO, which adds '.fifo'.

    Raises:
        TopologyError: AWS does not accept the name.

    Example:
        aws_name("gateway.usdc", fifo=True)  # 'gateway-usdc.fifo'
    """
    name: object = dotted
    if isinstance(name, str):
        name = name.removesuffix(_FIFO).replace(".", "-") + (_FIFO if fifo else "")
    if (finding := name_finding("queue", name)) is not None:
        raise refuse([finding])
    return str(name)


def role_name(*parts: str) -> str:
    """Return the name of a role made of these parts; if it is too long for AWS, a hash replaces its end."""
    name, longest = "-".join(parts), _NAMES["role"][1]
    if len(name) <= longest:
        return name
    return f"{name[: longest - _HASH_LETTERS - 1]}-{hashlib.sha256(name.encode()).hexdigest()[:_HASH_LETTERS]}"


def name_finding(kind: str, name: object) -> Finding | None:
    """Return what is wrong with a name, or None if AWS accepts it."""
    if kind not in _NAMES:
        return None
    shortest, longest, pattern = _NAMES[kind]
    if isinstance(name, str):
        plain = name.replace(ACCOUNT, "0" * 12) if kind == "bucket" else name
        if shortest <= len(plain) <= longest and re.fullmatch(pattern, plain):
            return None
    remedy = _REMEDIES.get(kind, f"Use {shortest} to {longest} letters, digits, '-' or '_'.")
    return Finding("name-invalid", "error", str(name), f"{repr(name)[:120]} is not the name of a {kind}", remedy)


TOKENS = ("${AWS::Partition}", "${AWS::Region}", ACCOUNT)
"""Placeholders for what is not known yet, in CloudFormation's own notation."""

ARNS = {
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
        """Return the ARN of a resource; the name of a rule is that of its bus, a slash and its own."""
        plain = name.removeprefix(f"{declarations.DEFAULT_BUS}/") if kind == "rule" else name
        arn = ARNS[kind].format(partition=self.partition, region=self.region, account=self.account, name=plain)
        return str(self.fill(arn))

    def fill(self, value: Any) -> Any:
        """Return the value with the placeholders inside it replaced."""
        if isinstance(value, str):
            for token, known in zip(TOKENS, (self.partition, self.region, self.account), strict=True):
                value = value.replace(token, known)
            return value
        if isinstance(value, dict):
            return {self.fill(key): self.fill(each) for key, each in value.items()}
        return [self.fill(each) for each in value] if isinstance(value, list | tuple) else value


SOMEWHERE = Place()
"""A place that is known only when the topology is deployed."""

Key = tuple[str, str]
"""A resource by its kind and name."""

URL = re.compile(r"\$\{Url:([^}]*)\}")
DIMENSIONS = {
    "AWS/SQS": ("queue", "QueueName"),
    "AWS/SNS": ("topic", "TopicName"),
    "AWS/Kinesis": ("stream", "StreamName"),
    "AWS/DynamoDB": ("table", "TableName"),
    "AWS/Lambda": ("function", "FunctionName"),
    "AWS/Events": ("rule", "RuleName"),
}
"""The kind of resource that the metrics of a namespace are about, and the dimension that names it."""
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
"""What a component may do, and the kinds of resources that it may do it to."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A name inside a declaration, which must be that of a resource of one of these kinds."""

    field: str
    kinds: tuple[str, ...]
    name: str
    before: bool = True
    """Whether the resource has to exist first."""


def mentions(resource: declarations.Resource) -> Iterator[Mention]:
    if isinstance(resource, declarations.QueueDecl):
        if resource.spec.dead_letter is not None:
            yield Mention("dead_letter", ("queue",), resource.spec.dead_letter)
        if isinstance(resource.spec.redrive_allow, tuple):
            yield from (
                Mention("redrive_allow", ("queue",), name, before=False) for name in resource.spec.redrive_allow
            )
    elif isinstance(resource, declarations.SubscriptionDecl):
        yield Mention("topic", ("topic",), resource.topic)
        yield Mention("queue", ("queue",), resource.queue)
    elif isinstance(resource, declarations.RuleDecl):
        if resource.bus != declarations.DEFAULT_BUS:
            yield Mention("bus", ("bus",), resource.bus)
        yield Mention("target", ("function", "queue"), resource.target)
        if resource.dead_letter is not None:
            yield Mention("dead_letter", ("queue",), resource.dead_letter)
    elif isinstance(resource, declarations.FunctionDecl):
        yield from (Mention("triggers", ("queue", "stream", "table"), each.source) for each in resource.triggers)
        if resource.on_failure is not None:
            yield Mention("on_failure", ("queue",), resource.on_failure)
        urls = sorted(name for value in resource.environment.values() for name in URL.findall(value))
        yield from (Mention("environment", ("queue",), name) for name in urls)
    elif isinstance(resource, declarations.AlarmDecl):
        kinds = DIMENSIONS[resource.namespace][:1] if resource.namespace in DIMENSIONS else _MEASURED
        yield Mention("resource", kinds, resource.resource, before=False)
        if resource.notify is not None:
            yield Mention("notify", ("topic",), resource.notify)


def component_mentions(component: declarations.Component) -> Iterator[Mention]:
    for need, kinds in NEEDS.items():
        for name in getattr(component, need):
            yield Mention(need, kinds, name)


def resolve(topology: Topology, mention: Mention) -> declarations.Resource | None:
    found = (topology.find(kind, mention.name) for kind in mention.kinds)
    return next((resource for resource in found if resource is not None), None)


def needs(topology: Topology, resource: declarations.Resource) -> tuple[Key, ...]:
    """Return the resources that have to exist before this one."""
    named = [mention for mention in mentions(resource) if mention.before]
    if isinstance(resource, declarations.FunctionDecl):
        components = [each for each in topology.components if each.name == resource.component]
        named += [mention for each in components for mention in component_mentions(each)]
    found = (resolve(topology, mention) for mention in named)
    return tuple(dict.fromkeys((each.kind, each.name) for each in found if each is not None))


def ordered(topology: Topology) -> list[declarations.Resource]:
    """Return all resources, each after those that it needs."""
    graph: TopologicalSorter[Key] = TopologicalSorter()
    for resource in topology.resources:
        graph.add((resource.kind, resource.name), *needs(topology, resource))
    return [topology.get(*key) for key in graph.static_order()]


def sources_of(topology: Topology, dead_letter: str) -> list[str]:
    """Return the queues that have this one for their dead letters."""
    queues = (each for each in topology.resources if isinstance(each, declarations.QueueDecl))
    return [each.name for each in queues if each.spec.dead_letter == dead_letter]
