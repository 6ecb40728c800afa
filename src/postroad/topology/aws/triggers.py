"""What calls a function: queues, streams and the streams of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from postroad.connections.aws import AwsConnection
from postroad.errors import TopologyConflict
from postroad.topology.aws.calling import ask
from postroad.topology.forms import Form

if TYPE_CHECKING:
    from mypy_boto3_lambda.client import LambdaClient

_REPORT = "ReportBatchItemFailures"


class Triggers:
    """The event source mappings of functions."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    def read(self, form: Form) -> list[dict[str, Any]]:
        """The declared triggers that exist, as they are."""
        found = self._mappings(form.name)
        wanted = ((trigger, self._mapping(found, trigger)) for trigger in form.settings["triggers"])
        return [_settings(trigger, mapping) for trigger, mapping in wanted if mapping is not None]

    def write(self, form: Form) -> None:
        """Make the triggers that are missing and change those that differ."""
        found = self._mappings(form.name)
        for trigger in form.settings["triggers"]:
            mapping = self._mapping(found, trigger)
            what = f"trigger {trigger['source']!r} of function {form.name!r}"
            if mapping is None:
                definition = {"EventSourceArn": self._source(trigger), **trigger_definition(trigger)}
                if trigger["kind"] != "queue":
                    definition["StartingPosition"] = "TRIM_HORIZON"
                ask(what, self._lambda.create_event_source_mapping, FunctionName=form.name, **definition)
            elif _settings(trigger, mapping) != trigger:
                changes = trigger_definition(trigger)
                ask(what, self._lambda.update_event_source_mapping, UUID=mapping["UUID"], **changes)

    def delete(self, function: str) -> None:
        """Remove all triggers of the function."""
        for mapping in self._mappings(function):
            ask(f"triggers of {function!r}", self._lambda.delete_event_source_mapping, UUID=mapping["UUID"])

    def _mappings(self, function: str) -> list[Any]:
        answer = ask(
            f"triggers of {function!r}", self._lambda.list_event_source_mappings, "ResourceNotFoundException",
            FunctionName=function,
        )  # fmt: skip
        return list((answer or {}).get("EventSourceMappings") or ())

    def _mapping(self, found: list[Any], trigger: Mapping[str, Any]) -> Any:
        return next((each for each in found if _is_source(each.get("EventSourceArn", ""), trigger)), None)

    def _source(self, trigger: Mapping[str, Any]) -> str:
        """The ARN to read from; that of a table's stream is known only once the table is there."""
        if trigger["kind"] != "table":
            return str(trigger["arn"])
        name = trigger["source"]
        answer = ask(f"table {name!r}", self._connection.dynamodb.describe_table, TableName=name)
        if (arn := answer["Table"].get("LatestStreamArn")) is None:
            raise TopologyConflict(f"table {name!r} has no stream that could call a function")
        return str(arn)

    @property
    def _lambda(self) -> LambdaClient:
        return self._connection.functions


def trigger_definition(trigger: Mapping[str, Any]) -> dict[str, Any]:
    """A trigger without its source, as Lambda spells it."""
    definition: dict[str, Any] = {"BatchSize": trigger["batch_size"]}
    if trigger["report_item_failures"]:
        definition["FunctionResponseTypes"] = [_REPORT]
    if trigger["kind"] != "queue":
        definition["MaximumRetryAttempts"] = trigger["max_attempts"]
        definition["BisectBatchOnFunctionError"] = trigger["bisect"]
        if trigger["on_failure"] is not None:
            definition["DestinationConfig"] = {"OnFailure": {"Destination": trigger["on_failure"]}}
    return definition


def _is_source(arn: str, trigger: Mapping[str, Any]) -> bool:
    return arn == trigger["arn"] or (trigger["kind"] == "table" and arn.startswith(f"{trigger['arn']}/stream/"))


def _settings(trigger: Mapping[str, Any], mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The trigger with the values that the mapping has."""
    settings = dict(trigger)
    settings["batch_size"] = mapping.get("BatchSize")
    settings["report_item_failures"] = _REPORT in (mapping.get("FunctionResponseTypes") or ())
    if trigger["kind"] != "queue":
        settings["max_attempts"] = mapping.get("MaximumRetryAttempts")
        settings["bisect"] = bool(mapping.get("BisectBatchOnFunctionError"))
        to = ((mapping.get("DestinationConfig") or {}).get("OnFailure") or {}).get("Destination")
        settings["on_failure"] = to
    return settings
