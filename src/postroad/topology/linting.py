"""What is wrong with a topology before anything is made of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping

from postroad.settings import nearest
from postroad.topology.declarations import AlarmDecl, QueueDecl, RuleDecl, SubscriptionDecl, TopicDecl
from postroad.topology.findings import Finding, refuse
from postroad.topology.names import name_finding
from postroad.topology.queue_linting import lint_queues, unencrypted
from postroad.topology.references import Mention, component_mentions, mentions, resolve, sources_of
from postroad.topology.topology import Topology
from postroad.topology.values import check_values

_MOST_RESOURCES = 500
_PERHAPS_TOO_MANY = 150
_MOST_POLICY_BYTES = 10_240
_FIFO_REMEDY = "Make both FIFO or both standard."


def lint(topology: Topology, *, handler_p99: Mapping[str, float] | None = None) -> tuple[Finding, ...]:
    """Everything doubtful about the topology; `handler_p99` are seconds by queue, as far as they are known."""
    specs = {each.name: each.spec for each in topology.resources if isinstance(each, QueueDecl)}
    findings = (
        *_names(topology),
        *_references(topology),
        *lint_queues(specs, handler_p99=handler_p99 or {}, ends=_ends(topology)),
        *_encryption(topology),
        *_types(topology),
        *_alarms(topology),
    )
    is_sound = all(finding.severity != "error" for finding in findings)
    return (*findings, *(_sizes(topology) if is_sound else ()))


def check(topology: Topology) -> None:
    """Raise `TopologyError` with all findings if one of them is an error, or with a setting that no store accepts."""
    findings = lint(topology)
    if any(finding.severity == "error" for finding in findings):
        raise refuse(findings)
    check_values(topology)


def _sizes(topology: Topology) -> Iterator[Finding]:
    """What CloudFormation or IAM would refuse for its size."""
    from postroad.topology.cloudformation import count_resources
    from postroad.topology.iam import policy_of

    count = len(topology.resources)
    if _PERHAPS_TOO_MANY < count <= _MOST_RESOURCES:
        count = count_resources(topology)
    if count > _MOST_RESOURCES:
        message = f"{topology.name}: {count:,} resources, and a template of CloudFormation holds {_MOST_RESOURCES}"
        yield Finding("too-many-resources", "warning", topology.name, message, "Divide it into several topologies.")
    for component in topology.components:
        size = len(json.dumps(policy_of(topology, component), separators=(",", ":")))
        if size > _MOST_POLICY_BYTES:
            message = f"{component.name}: its policy has {size:,} bytes, and a role holds {_MOST_POLICY_BYTES:,}"
            yield Finding("policy-too-large", "warning", component.name, message, "Divide it into several components.")


def _names(topology: Topology) -> Iterator[Finding]:
    named = [("topology", topology.name), *((each.kind, each.name) for each in topology.resources)]
    named += [("component", component.name) for component in topology.components]
    if any(component.role is not None for component in topology.components):
        named += [("role", component.role_name) for component in topology.components]
    same: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for kind, name in named:
        if (finding := name_finding(kind, name)) is not None:
            yield finding
        same[kind, _as_on_aws(str(name))].append(str(name))
    for (kind, shared), names in same.items():
        if len(names) > 1:
            told = " and ".join(repr(name) for name in names)
            message = f"{told} are both the {kind} {shared!r}"
            yield Finding("name-clash", "error", shared, message, "Rename one of them.")


def _as_on_aws(name: str) -> str:
    stem = name.removesuffix(".fifo")
    return stem.replace(".", "-") + name[len(stem) :]


def _references(topology: Topology) -> Iterator[Finding]:
    patterns = {pattern for component in topology.components for pattern in component.creates}
    named = [(each.name, mention) for each in topology.resources for mention in mentions(each)]
    named += [(each.name, mention) for each in topology.components for mention in component_mentions(each)]
    for owner, mention in named:
        if mention.name not in patterns and resolve(topology, mention) is None:
            yield _unknown(topology, owner, mention)
    components = [component.name for component in topology.components]
    for function in topology.of("function"):
        wanted = getattr(function, "component", "")
        if wanted not in components:
            message = f"{function.name}: component {wanted!r} is not declared"
            yield Finding("unknown-reference", "error", function.name, message, "Declare the component.")


def _unknown(topology: Topology, owner: str, mention: Mention) -> Finding:
    known = [resource.name for kind in mention.kinds for resource in topology.of(kind)]
    meant = nearest(mention.name, known)
    hint = f"Did you mean {meant!r}?" if meant else f"Declare it, or name another {' or '.join(mention.kinds)}."
    message = f"{owner}: {mention.field} {mention.name!r} is not declared"
    return Finding("unknown-reference", "error", owner, message, hint)


def _ends(topology: Topology) -> set[str]:
    """The queues in which failures of rules and functions end, or that somebody operates as dead letters."""
    failed = {getattr(each, field, None) for each in topology.resources for field in ("dead_letter", "on_failure")}
    operated = {name for component in topology.components for name in component.operates}
    return {name for name in failed | operated if name is not None}


def _encryption(topology: Topology) -> Iterator[Finding]:
    for queue in topology.resources:
        if not isinstance(queue, QueueDecl) or queue.encryption == "sqs":
            continue
        if queue.encryption == "none":
            yield unencrypted(queue.name)
        elif not queue.encryption.startswith("arn:"):
            message = f"{queue.name}: encryption {queue.encryption!r} is neither 'sqs', 'none' nor the ARN of a key"
            yield Finding("unknown-reference", "error", queue.name, message, "Give the ARN of a KMS key.")


def _types(topology: Topology) -> Iterator[Finding]:
    for each in topology.resources:
        if isinstance(each, TopicDecl) and each.fifo is not each.name.endswith(".fifo"):
            message = f"{each.name}: the name and fifo={each.fifo} disagree"
            yield Finding("fifo-mismatch", "error", each.name, message, "End the name with '.fifo' exactly when FIFO.")
        elif isinstance(each, SubscriptionDecl) and each.topic.endswith(".fifo") is not each.queue.endswith(".fifo"):
            message = f"{each.name}: the topic and the queue are of different types"
            yield Finding("fifo-mismatch", "error", each.name, message, _FIFO_REMEDY)
        elif isinstance(each, RuleDecl):
            yield from _rule_types(each)


def _rule_types(rule: RuleDecl) -> Iterator[Finding]:
    if rule.target.endswith(".fifo"):
        message = f"{rule.name}: a bus keeps no order for the FIFO queue {rule.target!r}"
        yield Finding("fifo-mismatch", "error", rule.name, message, "Send to a standard queue.")
    if rule.dead_letter is not None and rule.dead_letter.endswith(".fifo"):
        message = f"{rule.name}: a rule cannot have the FIFO queue {rule.dead_letter!r} for its dead letters"
        yield Finding("rule-dlq-fifo", "error", rule.name, message, "Name a standard queue.")


def _alarms(topology: Topology) -> Iterator[Finding]:
    ends = _ends(topology)
    for alarm in topology.resources:
        if not isinstance(alarm, AlarmDecl) or (alarm.comparison, alarm.threshold) != (">", 1):
            continue
        if alarm.resource in ends or sources_of(topology, alarm.resource) or "dlq" in alarm.resource:
            message = f"{alarm.name}: '> 1' sleeps through the first dead letter"
            yield Finding("alarm-threshold", "warning", alarm.name, message, 'Use ">=" 1.')
