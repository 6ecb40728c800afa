"""Alarms on CloudWatch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.connections import AwsConnection, tag_pairs
from postroad.topology.aws.calls import ask, unpaired
from postroad.topology.forms import Form
from postroad.topology.names import Place

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch.client import CloudWatchClient

OPERATORS = {
    ">": "GreaterThanThreshold",
    ">=": "GreaterThanOrEqualToThreshold",
    "<": "LessThanThreshold",
    "<=": "LessThanOrEqualToThreshold",
}
_COMPARISONS = {name: sign for sign, name in OPERATORS.items()}
_MOST_NAMES = 100
_LATE_SECONDS = 600


class Alarms:
    """The alarms of one account and region, asked for a hundred at a time."""

    def __init__(self, connection: AwsConnection, place: Place, clock: Clock = SYSTEM_CLOCK) -> None:
        self._connection = connection
        self._place = place
        self._clock = clock
        self._found: dict[str, Mapping[str, Any]] | None = None
        self.names: Sequence[str] = ()
        """Every alarm that will be asked for."""

    def read(self, form: Form) -> dict[str, Any] | None:
        if self._found is None:
            self._found = {alarm["AlarmName"]: alarm for alarm in self._described()}
        alarm = self._found.get(form.name)
        if alarm is None:
            return None
        arn = self._place.arn("alarm", form.name)
        listed = self._cloudwatch.list_tags_for_resource
        tags = ask(f"alarm {form.name!r}", listed, "ResourceNotFoundException", ResourceARN=arn)
        return {**_settings(alarm), "tags": unpaired(tags)}

    def create(self, form: Form) -> None:
        definition = {
            **alarm_definition(form.settings),
            "AlarmName": form.name,
            "Tags": tag_pairs(form.settings["tags"]),
        }
        ask(f"making alarm {form.name!r}", self._cloudwatch.put_metric_alarm, **definition)

    def update(self, form: Form, fields: Collection[str]) -> None:
        if set(fields) - {"tags"}:
            definition = {**alarm_definition(form.settings), "AlarmName": form.name}
            ask(f"changing alarm {form.name!r}", self._cloudwatch.put_metric_alarm, **definition)
        if "tags" in fields:
            arn, tags = self._place.arn("alarm", form.name), tag_pairs(form.settings["tags"])
            ask(f"tagging alarm {form.name!r}", self._cloudwatch.tag_resource, ResourceARN=arn, Tags=tags)

    def delete(self, name: str) -> None:
        ask(f"removing alarm {name!r}", self._cloudwatch.delete_alarms, AlarmNames=[name])

    def latest(self, form: Form) -> float | None:
        """The newest value of the alarm's metric in the last minutes, or None."""
        now, settings = self._clock.now(), form.settings
        answer = ask(
            f"metric of alarm {form.name!r}",
            self._cloudwatch.get_metric_statistics,
            Namespace=settings["namespace"],
            MetricName=settings["metric"],
            Statistics=[settings["statistic"]],
            Dimensions=dimensions(settings),
            Period=settings["period"],
            EndTime=now,
            StartTime=now - timedelta(seconds=max(_LATE_SECONDS, settings["period"] * settings["periods"])),
        )
        points = sorted(answer.get("Datapoints") or (), key=lambda point: point["Timestamp"])
        return float(points[-1][settings["statistic"]]) if points else None

    def _described(self) -> list[Any]:
        found: list[Any] = []
        for start in range(0, len(self.names), _MOST_NAMES):
            names = list(self.names[start : start + _MOST_NAMES])
            answer = ask("alarms", self._cloudwatch.describe_alarms, AlarmNames=names, MaxRecords=_MOST_NAMES)
            found += answer["MetricAlarms"]
        return found

    @property
    def _cloudwatch(self) -> CloudWatchClient:
        return self._connection.cloudwatch


def alarm_definition(settings: Mapping[str, Any]) -> dict[str, Any]:
    """An alarm, as CloudWatch spells it."""
    definition = {
        "AlarmDescription": settings["description"],
        "Namespace": settings["namespace"],
        "MetricName": settings["metric"],
        "Dimensions": dimensions(settings),
        "Statistic": settings["statistic"],
        "ComparisonOperator": OPERATORS[settings["comparison"]],
        "Threshold": settings["threshold"],
        "Period": settings["period"],
        "EvaluationPeriods": settings["periods"],
        "TreatMissingData": settings["missing"],
    }
    if settings["notify"] is not None:
        definition["AlarmActions"] = [settings["notify"]]
    return definition


def dimensions(settings: Mapping[str, Any]) -> list[dict[str, str]]:
    """The dimensions of a metric, as CloudWatch spells them."""
    return [{"Name": name, "Value": value} for name, value in settings["dimensions"].items()]


def _settings(alarm: Mapping[str, Any]) -> dict[str, Any]:
    actions = alarm.get("AlarmActions") or [None]
    return {
        "metric": alarm.get("MetricName"),
        "namespace": alarm.get("Namespace"),
        "dimensions": {each["Name"]: each["Value"] for each in alarm.get("Dimensions") or ()},
        "statistic": alarm.get("Statistic"),
        "comparison": _COMPARISONS.get(alarm.get("ComparisonOperator", "")),
        "threshold": alarm.get("Threshold"),
        "period": alarm.get("Period"),
        "periods": alarm.get("EvaluationPeriods"),
        "missing": alarm.get("TreatMissingData"),
        "notify": actions[0],
        "description": alarm.get("AlarmDescription"),
    }
