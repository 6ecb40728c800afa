"""The one form between a declaration and whatever makes it: CloudFormation, Pulumi or calls to AWS."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from postroad.connections import VERSION, allow_source
from postroad.queues import rounded
from postroad.topology.alarms import runbook
from postroad.topology.declarations import (
    AlarmDecl,
    BucketDecl,
    BusDecl,
    Component,
    FunctionDecl,
    QueueDecl,
    Resource,
    RuleDecl,
    StreamDecl,
    SubscriptionDecl,
    TableDecl,
    TopicDecl,
    TriggerDecl,
)
from postroad.topology.iam import policy_of, trust_policy
from postroad.topology.names import SOMEWHERE, Place
from postroad.topology.references import Key, Mention, component_mentions, needs, ordered, resolve
from postroad.topology.topology import Topology

OWNER_TAG = "postroad:topology"
SECURE_TRANSPORT = "PostroadSecureTransport"
_RAW_SETTINGS = (
    "fifo",
    "content_dedup",
    "dedup_scope",
    "visibility",
    "retention",
    "delay",
    "receive_wait",
    "max_message_bytes",
    "dead_letter",
    "max_receives",
    "redrive_allow",
)


@dataclass(frozen=True, slots=True)
class Form:
    """One resource as it shall be: its settings in Postroad's words, its documents with exact ARNs."""

    kind: str
    name: str
    settings: Mapping[str, Any]
    needs: tuple[Key, ...] = ()


def forms(topology: Topology, place: Place = SOMEWHERE) -> tuple[Form, ...]:
    """A form for each resource, behind those it needs, and before the first function one for each role."""
    resources = [form_of(topology, resource, place) for resource in ordered(topology)]
    roles = [role_form(topology, component, place) for component in topology.components]
    first = next((index for index, form in enumerate(resources) if form.kind == "function"), len(resources))
    return (*resources[:first], *roles, *resources[first:])


def form_of(topology: Topology, resource: Resource, place: Place = SOMEWHERE) -> Form:
    """The form of one resource at a place."""
    make = _MAKERS[resource.kind]
    required = needs(topology, resource)
    if isinstance(resource, FunctionDecl):
        required = (("role", resource.component), *required)
    return Form(resource.kind, resource.name, make(topology, resource, place), required)


def role_form(topology: Topology, component: Component, place: Place = SOMEWHERE) -> Form:
    """The form of a component's role."""
    found = (resolve(topology, mention) for mention in component_mentions(component))
    required = tuple(dict.fromkeys((each.kind, each.name) for each in found if each is not None))
    policy = policy_of(topology, component, place)
    settings = {
        "role_name": component.role_name,
        "trust": trust_policy(component.trust),
        "policy": policy,
        "tags": _tags(topology, {}),
    }
    return Form("role", component.name, settings, required)


def _queue(topology: Topology, queue: QueueDecl, place: Place) -> dict[str, Any]:
    spec = rounded(queue.spec)
    settings = {name: getattr(spec, name) for name in _RAW_SETTINGS}
    allowed = spec.redrive_allow
    settings["redrive_allow"] = sorted(allowed) if isinstance(allowed, tuple) else allowed
    settings["encryption"] = queue.encryption
    settings["policy"] = queue_policy(topology, queue.name, place)
    settings["tags"] = _tags(topology, queue.tags)
    return settings


def queue_policy(topology: Topology, queue: str, place: Place) -> dict[str, Any]:
    """The queue's own policy: no plain HTTP, and each service only on behalf of what is declared."""
    arn = place.arn("queue", queue)
    secure = {
        "Sid": SECURE_TRANSPORT,
        "Effect": "Deny",
        "Principal": "*",
        "Action": "sqs:*",
        "Resource": arn,
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    policy = json.dumps({"Version": VERSION, "Statement": [secure]})
    for service, source in _senders(topology, queue, place):
        policy = allow_source(policy, service=service, source_arn=source, queue_arn=arn)
    document: dict[str, Any] = json.loads(policy)
    return document


def _senders(topology: Topology, queue: str, place: Place) -> list[tuple[str, str]]:
    senders: list[tuple[str, str]] = []
    for each in topology.resources:
        if isinstance(each, SubscriptionDecl) and each.queue == queue:
            senders.append(("sns.amazonaws.com", place.arn("topic", each.topic)))
        elif isinstance(each, RuleDecl) and queue in (each.target, each.dead_letter):
            senders.append(("events.amazonaws.com", place.arn("rule", f"{each.bus}/{each.name}")))
    return senders


def _topic(topology: Topology, topic: TopicDecl, place: Place) -> dict[str, Any]:
    return {"fifo": topic.fifo, "content_dedup": topic.content_dedup, "tags": _tags(topology, topic.tags)}


def _subscription(topology: Topology, each: SubscriptionDecl, place: Place) -> dict[str, Any]:
    return {
        "topic": place.arn("topic", each.topic),
        "queue": place.arn("queue", each.queue),
        "filter": {name: list(values) for name, values in each.filter.items()},
        "raw": each.raw,
    }


def _stream(topology: Topology, stream: StreamDecl, place: Place) -> dict[str, Any]:
    return {"shards": stream.shards, "retention_hours": stream.retention_hours, "tags": _tags(topology, {})}


def _table(topology: Topology, table: TableDecl, place: Place) -> dict[str, Any]:
    return {
        "keys": [table.hash_key, *filter(None, [table.range_key])],
        "indexes": {
            index.name: {"keys": [index.hash_key, *filter(None, [index.range_key])], "projection": index.projection}
            for index in table.indexes
        },
        "ttl_attribute": table.ttl_attribute,
        "stream": table.stream,
        "tags": _tags(topology, {}),
    }


def _bucket(topology: Topology, bucket: BucketDecl, place: Place) -> dict[str, Any]:
    return {"bucket": place.fill(bucket.name), "expire_days": bucket.expire_days, "tags": _tags(topology, {})}


def _bus(topology: Topology, bus: BusDecl, place: Place) -> dict[str, Any]:
    return {"tags": _tags(topology, {})}


def _rule(topology: Topology, rule: RuleDecl, place: Place) -> dict[str, Any]:
    kind = "function" if topology.find("function", rule.target) is not None else "queue"
    target = {
        "id": rule.target_id,
        "arn": place.arn(kind, rule.target),
        "dead_letter": place.arn("queue", rule.dead_letter) if rule.dead_letter else None,
        "max_attempts": rule.max_attempts,
        "max_event_age": rule.max_event_age,
    }
    return {
        "bus": rule.bus,
        "pattern": place.fill(dict(rule.pattern)) if rule.pattern else None,
        "schedule": rule.schedule,
        "target": target,
        "target_kind": kind,
        "target_name": rule.target,
        "tags": _tags(topology, {}),
    }


def _function(topology: Topology, function: FunctionDecl, place: Place) -> dict[str, Any]:
    calling = [each for each in topology.resources if isinstance(each, RuleDecl) and each.target == function.name]
    [role] = [each.role_name for each in topology.components if each.name == function.component]
    return {
        "handler": function.handler,
        "role": place.arn("role", role),
        "role_name": role,
        "component": function.component,
        "timeout": function.timeout,
        "memory": function.memory,
        "environment": place.fill(dict(function.environment)),
        "triggers": [_trigger(topology, function, trigger, place) for trigger in function.triggers],
        "on_failure": place.arn("queue", function.on_failure) if function.on_failure else None,
        "callers": {rule.name: place.arn("rule", f"{rule.bus}/{rule.name}") for rule in calling},
        "tags": _tags(topology, {}),
    }


def _trigger(topology: Topology, function: FunctionDecl, trigger: TriggerDecl, place: Place) -> dict[str, Any]:
    found = resolve(topology, Mention("triggers", ("queue", "stream", "table"), trigger.source))
    kind = "queue" if found is None else found.kind
    settings: dict[str, Any] = {
        "source": trigger.source,
        "kind": kind,
        "arn": place.arn(kind, trigger.source),
        "batch_size": trigger.batch_size,
        "report_item_failures": trigger.report_item_failures,
    }
    if kind != "queue":
        settings |= {"max_attempts": trigger.max_attempts, "bisect": trigger.bisect}
        settings["on_failure"] = place.arn("queue", function.on_failure) if function.on_failure else None
    return settings


def _alarm(topology: Topology, alarm: AlarmDecl, place: Place) -> dict[str, Any]:
    dimension = _DIMENSIONS.get(alarm.namespace)
    return {
        "metric": alarm.metric,
        "namespace": alarm.namespace,
        "dimensions": {dimension: alarm.resource} if dimension else {},
        "statistic": alarm.statistic,
        "comparison": alarm.comparison,
        "threshold": float(alarm.threshold),
        "period": alarm.period,
        "periods": alarm.periods,
        "missing": alarm.missing,
        "notify": place.arn("topic", alarm.notify) if alarm.notify else None,
        "description": runbook(alarm),
        "tags": _tags(topology, {}),
    }


_DIMENSIONS = {
    "AWS/SQS": "QueueName",
    "AWS/SNS": "TopicName",
    "AWS/Kinesis": "StreamName",
    "AWS/DynamoDB": "TableName",
    "AWS/Lambda": "FunctionName",
    "AWS/Events": "RuleName",
}


def _tags(topology: Topology, own: Mapping[str, str]) -> dict[str, str]:
    return {**topology.tags, **own, OWNER_TAG: topology.name}


_MAKERS: dict[str, Callable[[Topology, Any, Place], dict[str, Any]]] = {
    "queue": _queue,
    "topic": _topic,
    "subscription": _subscription,
    "stream": _stream,
    "table": _table,
    "bucket": _bucket,
    "bus": _bus,
    "rule": _rule,
    "function": _function,
    "alarm": _alarm,
}
