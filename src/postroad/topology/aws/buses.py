"""Event buses and their rules on EventBridge."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from postroad.connections.aws import AwsConnection
from postroad.errors import TopologyConflict, Unavailable
from postroad.topology.aws.calling import ask, pairs, unpaired
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
        tags = pairs(form.settings["tags"])
        ask(f"making bus {form.name!r}", self._events.create_event_bus, Name=form.name, Tags=tags)

    def update(self, form: Form, fields: Collection[str]) -> None:
        arn, tags = self._place.arn("bus", form.name), pairs(form.settings["tags"])
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
        self._put_rule(form, {"Tags": pairs(form.settings["tags"])})
        if form.settings["target"] is not None:
            self._put_target(form)

    def update(self, form: Form, fields: Collection[str]) -> None:
        if {"pattern", "schedule"} & set(fields):
            self._put_rule(form, {})
        if "target" in fields:
            self._put_target(form)
        if "tags" in fields:
            tags = pairs(form.settings["tags"])
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

    def _put_rule(self, form: Form, besides: dict[str, Any]) -> None:
        parameters: dict[str, Any] = {"Name": form.name, "EventBusName": form.settings["bus"], **besides}
        if form.settings["pattern"] is not None:
            parameters["EventPattern"] = json.dumps(form.settings["pattern"])
        if form.settings["schedule"] is not None:
            parameters["ScheduleExpression"] = form.settings["schedule"]
        ask(f"making rule {form.name!r}", self._events.put_rule, **parameters)

    def _put_target(self, form: Form) -> None:
        target = target_definition(form.settings["target"])
        answer = ask(
            f"target of rule {form.name!r}", self._events.put_targets, Rule=form.name,
            EventBusName=form.settings["bus"], Targets=[target],
        )  # fmt: skip
        if answer.get("FailedEntryCount"):
            raise Unavailable(f"target of rule {form.name!r}: {answer['FailedEntries'][0].get('ErrorMessage')}")

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
