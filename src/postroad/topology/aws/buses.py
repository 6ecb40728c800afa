"""Event buses and their rules on EventBridge."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from postroad.connections.aws import AwsConnection
from postroad.connections.aws_errors import translated
from postroad.connections.aws_resources import make_event_bus, put_rule, put_target, tag_pairs
from postroad.errors import TopologyConflict, Unavailable
from postroad.topology.aws.calling import ask, unpaired
from postroad.topology.forms import Form
from postroad.topology.place import Place

if TYPE_CHECKING:
    from mypy_boto3_events.client import EventBridgeClient

_MISSING = ("ResourceNotFoundException",)


class Buses:
    """The event buses of one account and region."""

    def __init__(self, connection: AwsConnection, place: Place) -> None:
        self._connection = connection
        self._place = place

    def read(self, form: Form) -> dict[str, Any] | None:
        what = f"bus {form.name!r}"
        if ask(what, self._events.describe_event_bus, *_MISSING, Name=form.name) is None:
            return None
        arn = self._place.arn("bus", form.name)
        return {"tags": unpaired(ask(what, self._events.list_tags_for_resource, *_MISSING, ResourceARN=arn))}

    def create(self, form: Form) -> None:
        with translated(f"making bus {form.name!r}"):
            make_event_bus(self._events, form.name, tags=form.settings["tags"])

    def update(self, form: Form, fields: Collection[str]) -> None:
        arn, tags = self._place.arn("bus", form.name), tag_pairs(form.settings["tags"])
        ask(f"tagging bus {form.name!r}", self._events.tag_resource, ResourceARN=arn, Tags=tags)

    def delete(self, name: str) -> None:
        ask(f"removing bus {name!r}", self._events.delete_event_bus, Name=name)

    @property
    def _events(self) -> EventBridgeClient:
        return self._connection.events


class Rules:
    """The rules of those buses, each with its one target."""

    def __init__(self, connection: AwsConnection, place: Place) -> None:
        self._connection = connection
        self._place = place

    def read(self, form: Form) -> dict[str, Any] | None:
        what, bus = f"rule {form.name!r}", form.settings["bus"]
        answer = ask(what, self._events.describe_rule, *_MISSING, Name=form.name, EventBusName=bus)
        if answer is None:
            return None
        targets = ask(what, self._events.list_targets_by_rule, *_MISSING, Rule=form.name, EventBusName=bus) or {}
        tags = ask(what, self._events.list_tags_for_resource, *_MISSING, ResourceARN=self._arn(form))
        wanted = (form.settings["target"] or {}).get("id")
        found = [each for each in targets.get("Targets") or () if each["Id"] == wanted]
        return {
            "bus": bus,
            "pattern": json.loads(answer["EventPattern"]) if answer.get("EventPattern") else None,
            "schedule": answer.get("ScheduleExpression") or None,
            "target": _target(found[0]) if found else None,
            "tags": unpaired(tags),
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
            tags = tag_pairs(form.settings["tags"])
            ask(f"tagging rule {form.name!r}", self._events.tag_resource, ResourceARN=self._arn(form), Tags=tags)

    def delete(self, name: str) -> None:
        """Remove the rule `BUS/NAME` with its targets."""
        bus, _, rule = name.rpartition("/")
        if not bus:
            raise TopologyConflict(f"rule {name!r}: its bus is not known")
        what = f"removing rule {name!r}"
        targets = ask(what, self._events.list_targets_by_rule, *_MISSING, Rule=rule, EventBusName=bus) or {}
        if ids := [each["Id"] for each in targets.get("Targets") or ()]:
            ask(what, self._events.remove_targets, Rule=rule, EventBusName=bus, Ids=ids)
        ask(what, self._events.delete_rule, *_MISSING, Name=rule, EventBusName=bus)

    def _put_rule(self, form: Form, tags: Mapping[str, str] | None = None) -> None:
        settings = form.settings
        with translated(f"making rule {form.name!r}"):
            put_rule(
                self._events, form.name, settings["bus"], pattern=settings["pattern"], schedule=settings["schedule"],
                tags=tags,
            )  # fmt: skip

    def _put_target(self, form: Form) -> None:
        what, settings = f"target of rule {form.name!r}", form.settings
        with translated(what):
            refusal = put_target(self._events, form.name, settings["bus"], target_definition(settings["target"]))
        if refusal is not None:
            raise Unavailable(f"{what}: {refusal}")

    def _arn(self, form: Form) -> str:
        return self._place.arn("rule", f"{form.settings['bus']}/{form.name}")

    @property
    def _events(self) -> EventBridgeClient:
        return self._connection.events


def target_definition(target: Mapping[str, Any]) -> dict[str, Any]:
    """A rule's target, as EventBridge spells it."""
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
