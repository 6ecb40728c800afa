"""Alarms on CloudWatch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from postroad.clock import SYSTEM_CLOCK
from postroad.connections import AwsConnection, ask, aws_resources as resources
from postroad.topology.aws_properties import Form
from postroad.topology.names import Place

OPERATORS = {
    ">": "GreaterThanThreshold",
    ">=": "GreaterThanOrEqualToThreshold",
    "<": "LessThanThreshold",
    "<=": "LessThanOrEqualToThreshold",
}
_COMPARISONS = {name: sign for sign, name in OPERATORS.items()}
_NAMES = {
    "metric": "MetricName",
    "namespace": "Namespace",
    "statistic": "Statistic",
    "threshold": "Threshold",
    "period": "Period",
    "periods": "EvaluationPeriods",
    "missing": "TreatMissingData",
    "description": "AlarmDescription",
}
"""The settings that CloudWatch has under other names."""
_MOST_NAMES = 100
_LATE_SECONDS = 600


@dataclass(slots=True)
class Alarms:
    """The alarms of one account and region, read a hundred at a time."""

    aws: AwsConnection
    place: Place
    names: Sequence[str] = ()
    """Every alarm that will be read."""
    _found: dict[str, Mapping[str, Any]] | None = None

    def read(self, form: Form) -> dict[str, Any] | None:
        if self._found is None:
            self._found = {}
            for start in range(0, len(self.names), _MOST_NAMES):
                names = list(self.names[start : start + _MOST_NAMES])
                answer = ask("alarms", self.aws.cloudwatch.describe_alarms, AlarmNames=names, MaxRecords=_MOST_NAMES)
                self._found |= {alarm["AlarmName"]: alarm for alarm in answer["MetricAlarms"]}
        alarm = self._found.get(form.name)
        if alarm is None:
            return None
        arn = self.place.arn("alarm", form.name)
        listed = self.aws.cloudwatch.list_tags_for_resource
        tags = ask(f"alarm {form.name!r}", listed, "ResourceNotFoundException", ResourceARN=arn)
        return {
            **{setting: alarm.get(name) for setting, name in _NAMES.items()},
            "dimensions": {each["Name"]: each["Value"] for each in alarm.get("Dimensions") or ()},
            "comparison": _COMPARISONS.get(alarm.get("ComparisonOperator", "")),
            "notify": (alarm.get("AlarmActions") or [None])[0],
            "tags": resources.tags_of(tags),
        }

    def create(self, form: Form) -> None:
        definition, tags = alarm_definition(form.settings), resources.tag_pairs(form.settings["tags"])
        put = self.aws.cloudwatch.put_metric_alarm
        ask(f"making alarm {form.name!r}", put, AlarmName=form.name, Tags=tags, **definition)

    def update(self, form: Form, fields: Collection[str]) -> None:
        if set(fields) - {"tags"}:
            definition, put = alarm_definition(form.settings), self.aws.cloudwatch.put_metric_alarm
            ask(f"changing alarm {form.name!r}", put, AlarmName=form.name, **definition)
        if "tags" in fields:
            arn, tags = self.place.arn("alarm", form.name), resources.tag_pairs(form.settings["tags"])
            ask(f"tagging alarm {form.name!r}", self.aws.cloudwatch.tag_resource, ResourceARN=arn, Tags=tags)

    def delete(self, name: str) -> None:
        ask(f"removing alarm {name!r}", self.aws.cloudwatch.delete_alarms, AlarmNames=[name])

    def latest(self, form: Form) -> float | None:
        """Return the newest value of the alarm's metric in the last minutes, or None."""
        now, settings = SYSTEM_CLOCK.now(), form.settings
        answer = ask(
            f"metric of alarm {form.name!r}",
            self.aws.cloudwatch.get_metric_statistics,
            Namespace=settings["namespace"],
            MetricName=settings["metric"],
            Statistics=[settings["statistic"]],
            Dimensions=_dimensions(settings),
            Period=settings["period"],
            EndTime=now,
            StartTime=now - timedelta(seconds=max(_LATE_SECONDS, settings["period"] * settings["periods"])),
        )
        points = sorted(answer.get("Datapoints") or (), key=lambda point: point["Timestamp"])
        return float(points[-1][settings["statistic"]]) if points else None


def alarm_definition(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an alarm in the form of CloudWatch."""
    return {
        **{name: settings[setting] for setting, name in _NAMES.items()},
        "Dimensions": _dimensions(settings),
        "ComparisonOperator": OPERATORS[settings["comparison"]],
        **({} if settings["notify"] is None else {"AlarmActions": [settings["notify"]]}),
    }


def _dimensions(settings: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"Name": name, "Value": value} for name, value in settings["dimensions"].items()]
