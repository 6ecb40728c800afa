"""Topics with their subscriptions on SNS, and event buses with their rules on EventBridge."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from postroad.connections import AwsConnection, ask, aws_resources as resources, pages, translated
from postroad.errors import TopicNotFound, TopologyConflict, Unavailable
from postroad.topology.aws_properties import Form
from postroad.topology.names import Place

DEFAULTS: Mapping[str, Any] = {"content_dedup": False}
"""Settings that SNS returns only if they differ from these."""
_MISSING = ("NotFound", "NotFoundException", "ResourceNotFound", "ResourceNotFoundException")


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one account and region."""

    aws: AwsConnection
    place: Place

    def read(self, form: Form) -> dict[str, Any] | None:
        arn = self.place.arn("topic", form.name)
        answer = ask(f"topic {form.name!r}", self.aws.sns.get_topic_attributes, *_MISSING, TopicArn=arn)
        if answer is None:
            return None
        tags = ask(f"tags of topic {form.name!r}", self.aws.sns.list_tags_for_resource, *_MISSING, ResourceArn=arn)
        dedup = answer["Attributes"].get("ContentBasedDeduplication", None if form.settings["fifo"] else "false")
        settings = {"fifo": form.settings["fifo"], "tags": resources.tags_of(tags)}
        return settings if dedup is None else {**settings, "content_dedup": dedup == "true"}

    def create(self, form: Form) -> None:
        with translated(f"making topic {form.name!r}"):
            resources.make_topic(self.aws.sns, form.name, **form.settings)

    def update(self, form: Form, fields: Collection[str]) -> None:
        arn = self.place.arn("topic", form.name)
        if "content_dedup" in fields:
            value = "true" if form.settings["content_dedup"] else "false"
            change = {"AttributeName": "ContentBasedDeduplication", "AttributeValue": value}
            ask(f"changing topic {form.name!r}", self.aws.sns.set_topic_attributes, TopicArn=arn, **change)
        if "tags" in fields:
            tags = resources.tag_pairs(form.settings["tags"])
            ask(f"tagging topic {form.name!r}", self.aws.sns.tag_resource, ResourceArn=arn, Tags=tags)

    def delete(self, name: str) -> None:
        ask(f"removing topic {name!r}", self.aws.sns.delete_topic, TopicArn=self.place.arn("topic", name))


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The subscriptions of topics; SNS keeps no tags for them."""

    aws: AwsConnection
    _subscribed: dict[str, dict[str, str]] = field(default_factory=dict)

    def read(self, form: Form) -> dict[str, Any] | None:
        topic, queue = form.settings["topic"], form.settings["queue"]
        if (arn := self._of(topic).get(queue)) is None:
            return None
        operation = self.aws.sns.get_subscription_attributes
        if (answer := ask(f"subscription {form.name!r}", operation, *_MISSING, SubscriptionArn=arn)) is None:
            return None
        attributes: dict[str, str] = answer["Attributes"]
        policy = json.loads(attributes.get("FilterPolicy") or "{}")
        raw = attributes.get("RawMessageDelivery", "false").lower() == "true"
        return {"topic": topic, "queue": queue, "filter": _in_order(policy, form.settings["filter"]), "raw": raw}

    def create(self, form: Form) -> None:
        settings = form.settings
        with translated(f"subscribing {form.name!r}"):
            resources.make_subscription(
                self.aws.sns, settings["topic"], settings["queue"], filter=settings["filter"], raw=settings["raw"]
            )

    def update(self, form: Form, fields: Collection[str]) -> None:
        arn = self._of(form.settings["topic"]).get(form.settings["queue"])
        if arn is None:
            raise TopicNotFound(f"subscription {form.name!r} is gone")
        values = {
            "filter": ("FilterPolicy", json.dumps(form.settings["filter"])),
            "raw": ("RawMessageDelivery", "true" if form.settings["raw"] else "false"),
        }
        operation = self.aws.sns.set_subscription_attributes
        for each in fields:
            change = dict(zip(("AttributeName", "AttributeValue"), values[each], strict=True))
            ask(f"changing subscription {form.name!r}", operation, SubscriptionArn=arn, **change)

    def delete(self, name: str) -> None:
        raise TopicNotFound(f"subscription {name!r} belongs to nobody")

    def _of(self, topic: str) -> dict[str, str]:
        """Return the subscriptions of a topic by the ARNs of their queues, read once."""
        if topic not in self._subscribed:
            operation = self.aws.sns.list_subscriptions_by_topic
            found = pages(f"subscriptions of {topic}", operation, *_MISSING, TopicArn=topic)
            listed = (each for page in found for each in page.get("Subscriptions", []))
            self._subscribed[topic] = {each["Endpoint"]: each["SubscriptionArn"] for each in listed}
        return self._subscribed[topic]


def _in_order(policy: dict[str, Any], wanted: dict[str, list[str]]) -> dict[str, Any]:
    """Return the filter with its values in the order in which they are declared, which means nothing to SNS."""

    def alike(values: Any, wanted: list[str]) -> bool:
        texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
        return texts and sorted(values) == sorted(wanted)

    same = {name for name, values in policy.items() if name in wanted and alike(values, wanted[name])}
    return {name: wanted[name] if name in same else values for name, values in policy.items()}


_NO_BUS = ("ResourceNotFoundException",)


@dataclass(frozen=True, slots=True)
class Buses:
    """The event buses of one account and region."""

    aws: AwsConnection
    place: Place

    def read(self, form: Form) -> dict[str, Any] | None:
        what = f"bus {form.name!r}"
        if ask(what, self.aws.events.describe_event_bus, *_NO_BUS, Name=form.name) is None:
            return None
        arn = self.place.arn("bus", form.name)
        return {"tags": resources.tags_of(ask(what, self.aws.events.list_tags_for_resource, *_NO_BUS, ResourceARN=arn))}

    def create(self, form: Form) -> None:
        with translated(f"making bus {form.name!r}"):
            resources.make_event_bus(self.aws.events, form.name, tags=form.settings["tags"])

    def update(self, form: Form, fields: Collection[str]) -> None:
        arn, tags = self.place.arn("bus", form.name), resources.tag_pairs(form.settings["tags"])
        ask(f"tagging bus {form.name!r}", self.aws.events.tag_resource, ResourceARN=arn, Tags=tags)

    def delete(self, name: str) -> None:
        ask(f"removing bus {name!r}", self.aws.events.delete_event_bus, Name=name)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of those buses, each with its one target."""

    aws: AwsConnection
    place: Place

    def read(self, form: Form) -> dict[str, Any] | None:
        what, bus = f"rule {form.name!r}", form.settings["bus"]
        answer = ask(what, self.aws.events.describe_rule, *_NO_BUS, Name=form.name, EventBusName=bus)
        if answer is None:
            return None
        targets = ask(what, self.aws.events.list_targets_by_rule, *_NO_BUS, Rule=form.name, EventBusName=bus) or {}
        tags = ask(what, self.aws.events.list_tags_for_resource, *_NO_BUS, ResourceARN=self._arn(form))
        wanted = (form.settings["target"] or {}).get("id")
        found = [each for each in targets.get("Targets") or () if each["Id"] == wanted]
        return {
            "bus": bus,
            "pattern": json.loads(answer["EventPattern"]) if answer.get("EventPattern") else None,
            "schedule": answer.get("ScheduleExpression") or None,
            "target": _target(found[0]) if found else None,
            "tags": resources.tags_of(tags),
        }

    def create(self, form: Form) -> None:
        self._put_rule(form, form.settings["tags"])
        if form.settings["target"] is not None:
            self._put_target(form)

    def update(self, form: Form, fields: Collection[str]) -> None:
        if {"pattern", "schedule"} & set(fields):
            self._put_rule(form)
        if "target" in fields:
            self._put_target(form)
        if "tags" in fields:
            tags = resources.tag_pairs(form.settings["tags"])
            ask(f"tagging rule {form.name!r}", self.aws.events.tag_resource, ResourceARN=self._arn(form), Tags=tags)

    def delete(self, name: str) -> None:
        """Remove the rule `BUS/NAME` with its targets."""
        bus, _, rule = name.rpartition("/")
        if not bus:
            raise TopologyConflict(f"rule {name!r}: its bus is not known")
        what = f"removing rule {name!r}"
        targets = ask(what, self.aws.events.list_targets_by_rule, *_NO_BUS, Rule=rule, EventBusName=bus) or {}
        if ids := [each["Id"] for each in targets.get("Targets") or ()]:
            ask(what, self.aws.events.remove_targets, Rule=rule, EventBusName=bus, Ids=ids)
        ask(what, self.aws.events.delete_rule, *_NO_BUS, Name=rule, EventBusName=bus)

    def _put_rule(self, form: Form, tags: Mapping[str, str] | None = None) -> None:
        bus, when = form.settings["bus"], {name: form.settings[name] for name in ("pattern", "schedule")}
        with translated(f"making rule {form.name!r}"):
            resources.put_rule(self.aws.events, form.name, bus, **when, tags=tags)

    def _put_target(self, form: Form) -> None:
        what, bus, target = f"target of rule {form.name!r}", form.settings["bus"], form.settings["target"]
        with translated(what):
            refusal = resources.put_target(self.aws.events, form.name, bus, target_definition(target))
        if refusal is not None:
            raise Unavailable(f"{what}: {refusal}")

    def _arn(self, form: Form) -> str:
        return self.place.arn("rule", f"{form.settings['bus']}/{form.name}")


def target_definition(target: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule's target in the form of EventBridge."""
    definition: dict[str, Any] = {
        "Id": target["id"],
        "Arn": target["arn"],
        "RetryPolicy": {
            "MaximumRetryAttempts": target["max_attempts"],
            "MaximumEventAgeInSeconds": target["max_event_age"],
        },
    }
    if target["dead_letter"] is not None:
        definition["DeadLetterConfig"] = {"Arn": target["dead_letter"]}
    return definition


def _target(found: Mapping[str, Any]) -> dict[str, Any]:
    retry = found.get("RetryPolicy") or {}
    return {
        "id": found["Id"],
        "arn": found["Arn"],
        "dead_letter": (found.get("DeadLetterConfig") or {}).get("Arn"),
        "max_attempts": retry.get("MaximumRetryAttempts"),
        "max_event_age": retry.get("MaximumEventAgeInSeconds"),
    }
