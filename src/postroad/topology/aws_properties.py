"""Forms: what a declaration means on AWS, for CloudFormation, Pulumi and the calls that make it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from postroad.connections import aws_rights as rights
from postroad.queues import rounded
from postroad.topology import declarations, names
from postroad.topology.alarms import runbook
from postroad.topology.iam import policy_of
from postroad.topology.names import needs
from postroad.topology.topology import Topology

OWNER_TAG = "postroad:topology"
SECURE_TRANSPORT = "PostroadSecureTransport"


@dataclass(frozen=True, slots=True)
class Form:
    """One resource as it should be: its settings under Postroad's names, its documents with exact ARNs."""

    kind: str
    name: str
    settings: Mapping[str, Any]
    needs: tuple[names.Key, ...] = ()


def forms(topology: Topology) -> tuple[Form, ...]:
    """Return a form for each resource, after those it needs, and before the first function one for each role."""
    resources = [form_of(topology, resource) for resource in names.ordered(topology)]
    roles = [role_form(topology, component) for component in topology.components]
    first = next((index for index, form in enumerate(resources) if form.kind == "function"), len(resources))
    return (*resources[:first], *roles, *resources[first:])


def form_of(topology: Topology, resource: declarations.Resource, place: names.Place = names.SOMEWHERE) -> Form:
    required = needs(topology, resource)
    if isinstance(resource, declarations.FunctionDecl):
        required = (("role", resource.component), *required)
    settings: dict[str, Any] = getattr(_Settings(topology, place), resource.kind)(resource)
    if not isinstance(resource, declarations.SubscriptionDecl):
        own = resource.tags if isinstance(resource, declarations.QueueDecl | declarations.TopicDecl) else {}
        settings["tags"] = _tags(topology, own)
    return Form(resource.kind, resource.name, settings, required)


def role_form(topology: Topology, component: declarations.Component, place: names.Place = names.SOMEWHERE) -> Form:
    found = (names.resolve(topology, mention) for mention in names.component_mentions(component))
    required = tuple(dict.fromkeys((each.kind, each.name) for each in found if each is not None))
    trust = {"Effect": "Allow", "Principal": {"Service": component.trust}, "Action": rights.ASSUME}
    settings = {
        "role_name": component.role_name,
        "trust": rights.document([trust]),
        "policy": policy_of(topology, component, place),
        "tags": _tags(topology, {}),
    }
    return Form("role", component.name, settings, required)


def _tags(topology: Topology, own: Mapping[str, str]) -> dict[str, str]:
    return {**topology.tags, **own, OWNER_TAG: topology.name}


@dataclass(frozen=True, slots=True)
class _Settings:
    topology: Topology
    place: names.Place

    def queue(self, queue: declarations.QueueDecl) -> dict[str, Any]:
        settings = asdict(rounded(queue.spec))
        del settings["name"], settings["auto_delete_after"]
        allowed = settings["redrive_allow"]
        settings["redrive_allow"] = sorted(allowed) if isinstance(allowed, tuple) else allowed
        return settings | {"encryption": queue.encryption, "policy": self._queue_policy(queue.name)}

    def _queue_policy(self, queue: str) -> dict[str, Any]:
        """Return the queue's own policy: no plain HTTP, and each service only for what is declared."""
        arn = self.place.arn("queue", queue)
        secure = {
            "Sid": SECURE_TRANSPORT,
            "Effect": "Deny",
            "Principal": "*",
            "Action": "sqs:*",
            "Resource": arn,
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
        policy = json.dumps({"Version": rights.VERSION, "Statement": [secure]})
        for service, source in self._senders(queue):
            policy = rights.allow_source(policy, service=service, source_arn=source, queue_arn=arn)
        document: dict[str, Any] = json.loads(policy)
        return document

    def _senders(self, queue: str) -> Iterator[tuple[str, str]]:
        for each in self.topology.resources:
            if isinstance(each, declarations.SubscriptionDecl) and each.queue == queue:
                yield "sns.amazonaws.com", self.place.arn("topic", each.topic)
            elif isinstance(each, declarations.RuleDecl) and queue in (each.target, each.dead_letter):
                yield "events.amazonaws.com", self.place.arn("rule", f"{each.bus}/{each.name}")

    def topic(self, topic: declarations.TopicDecl) -> dict[str, Any]:
        return {"fifo": topic.fifo, "content_dedup": topic.content_dedup}

    def subscription(self, each: declarations.SubscriptionDecl) -> dict[str, Any]:
        return {
            "topic": self.place.arn("topic", each.topic),
            "queue": self.place.arn("queue", each.queue),
            "filter": {name: list(values) for name, values in each.filter.items()},
            "raw": each.raw,
        }

    def stream(self, stream: declarations.StreamDecl) -> dict[str, Any]:
        return {"shards": stream.shards, "retention_hours": stream.retention_hours}

    def table(self, table: declarations.TableDecl) -> dict[str, Any]:
        return {
            "keys": [table.hash_key, *filter(None, [table.range_key])],
            "indexes": {
                index.name: {"keys": [index.hash_key, *filter(None, [index.range_key])], "projection": index.projection}
                for index in table.indexes
            },
            "ttl_attribute": table.ttl_attribute,
            "stream": table.stream,
        }

    def bucket(self, bucket: declarations.BucketDecl) -> dict[str, Any]:
        return {"bucket": self.place.fill(bucket.name), "expire_days": bucket.expire_days}

    def bus(self, bus: declarations.BusDecl) -> dict[str, Any]:
        return {}

    def rule(self, rule: declarations.RuleDecl) -> dict[str, Any]:
        kind = "function" if self.topology.find("function", rule.target) is not None else "queue"
        target = {
            "id": rule.target_id,
            "arn": self.place.arn(kind, rule.target),
            "dead_letter": self._queue_arn(rule.dead_letter),
            "max_attempts": rule.max_attempts,
            "max_event_age": rule.max_event_age,
        }
        pattern = self.place.fill(dict(rule.pattern)) if rule.pattern else None
        return {"bus": rule.bus, "pattern": pattern, "schedule": rule.schedule, "target": target}

    def function(self, function: declarations.FunctionDecl) -> dict[str, Any]:
        rules = (each for each in self.topology.resources if isinstance(each, declarations.RuleDecl))
        calling = [each for each in rules if each.target == function.name]
        [role] = [each.role_name for each in self.topology.components if each.name == function.component]
        return {
            "handler": function.handler,
            "role": self.place.arn("role", role),
            "role_name": role,
            "component": function.component,
            "timeout": function.timeout,
            "memory": function.memory,
            "environment": self.place.fill(dict(function.environment)),
            "triggers": [self._trigger(function, trigger) for trigger in function.triggers],
            "on_failure": self._queue_arn(function.on_failure),
            "callers": {rule.name: self.place.arn("rule", f"{rule.bus}/{rule.name}") for rule in calling},
        }

    def _trigger(self, function: declarations.FunctionDecl, trigger: declarations.TriggerDecl) -> dict[str, Any]:
        found = names.resolve(self.topology, names.Mention("triggers", ("queue", "stream", "table"), trigger.source))
        kind = "queue" if found is None else found.kind
        settings = {**asdict(trigger), "kind": kind, "arn": self.place.arn(kind, trigger.source)}
        if kind == "queue":
            del settings["max_attempts"], settings["bisect"]
            return settings
        return settings | {"on_failure": self._queue_arn(function.on_failure)}

    def alarm(self, alarm: declarations.AlarmDecl) -> dict[str, Any]:
        settings = asdict(alarm)
        del settings["name"], settings["resource"]
        dimension = names.DIMENSIONS[alarm.namespace][1] if alarm.namespace in names.DIMENSIONS else None
        return settings | {
            "dimensions": {dimension: alarm.resource} if dimension else {},
            "threshold": float(alarm.threshold),
            "notify": self.place.arn("topic", alarm.notify) if alarm.notify else None,
            "description": runbook(alarm),
        }

    def _queue_arn(self, name: str | None) -> str | None:
        return self.place.arn("queue", name) if name else None
