"""Functions on Lambda: the role they run with, what calls them, and where their failures go."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from postroad.connections import AwsConnection, ask, aws_resources as resources, aws_rights as rights, translated
from postroad.errors import InvalidInput, TopologyConflict
from postroad.topology.aws.queues import Queues
from postroad.topology.aws_properties import Form
from postroad.topology.names import URL, Place

_REPORT = "ReportBatchItemFailures"


def trigger_definition(trigger: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trigger without its source, in the form of Lambda."""
    definition: dict[str, Any] = {"BatchSize": trigger["batch_size"]}
    if trigger["report_item_failures"]:
        definition["FunctionResponseTypes"] = [_REPORT]
    if trigger["kind"] != "queue":
        definition["MaximumRetryAttempts"] = trigger["max_attempts"]
        definition["BisectBatchOnFunctionError"] = trigger["bisect"]
        if trigger["on_failure"] is not None:
            definition["DestinationConfig"] = {"OnFailure": {"Destination": trigger["on_failure"]}}
    return definition


def _mapping(found: list[Any], trigger: Mapping[str, Any]) -> Any:
    arns = ((str(each.get("EventSourceArn", "")), each) for each in found)
    stream = f"{trigger['arn']}/stream/"
    is_table = trigger["kind"] == "table"
    return next((each for arn, each in arns if arn == trigger["arn"] or (is_table and arn.startswith(stream))), None)


def _settings(trigger: Mapping[str, Any], mapping: Mapping[str, Any]) -> dict[str, Any]:
    settings = dict(trigger)
    settings["batch_size"] = mapping.get("BatchSize")
    settings["report_item_failures"] = _REPORT in (mapping.get("FunctionResponseTypes") or ())
    if trigger["kind"] != "queue":
        settings["max_attempts"] = mapping.get("MaximumRetryAttempts")
        settings["bisect"] = bool(mapping.get("BisectBatchOnFunctionError"))
        to = ((mapping.get("DestinationConfig") or {}).get("OnFailure") or {}).get("Destination")
        settings["on_failure"] = to
    return settings


RUNTIME = "python3.12"
POLICY = "postroad"
CODE_TAG = "postroad:code"
_MISSING = ("ResourceNotFoundException",)
_ROLE_ATTEMPTS = 10
_ROLE_SECONDS = 2.0
_WAIT: Any = {"Delay": 1, "MaxAttempts": 120}


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of one account and region; `settings["code"]` is the archive on S3 that they run."""

    aws: AwsConnection
    place: Place
    queues: Queues

    def read(self, form: Form) -> dict[str, Any] | None:
        what = f"function {form.name!r}"
        answer = ask(what, self.aws.functions.get_function, *_MISSING, FunctionName=form.name)
        if answer is None:
            return None
        configuration, tags = answer["Configuration"], dict(answer.get("Tags") or {})
        variables = (configuration.get("Environment") or {}).get("Variables") or {}
        invoked = self.aws.functions.get_function_event_invoke_config
        sent = ask(what, invoked, *_MISSING, FunctionName=form.name) or {}
        return {
            "handler": configuration["Handler"],
            "role": configuration["Role"],
            "timeout": configuration["Timeout"],
            "memory": configuration["MemorySize"],
            "environment": {name: variables.get(name) for name in form.settings["environment"]},
            "triggers": self._triggers(form),
            "on_failure": ((sent.get("DestinationConfig") or {}).get("OnFailure") or {}).get("Destination"),
            "callers": self._callers(form),
            "rights": self._rights(form),
            "code": tags.pop(CODE_TAG, None),
            "tags": tags,
        }

    def create(self, form: Form) -> None:
        self._make_role(form)
        settings = form.settings
        definition = {
            **self._configuration(form),
            "Runtime": RUNTIME,
            "Code": s3_code(settings["code"]),
            "Tags": {**settings["tags"], CODE_TAG: settings["code"]},
        }
        for attempt in range(_ROLE_ATTEMPTS):
            try:
                ask(f"making function {form.name!r}", self.aws.functions.create_function, **definition)
                break
            except InvalidInput as error:
                # A role that was just made takes some seconds until Lambda sees it.
                if "cannot be assumed" not in str(error) or attempt == _ROLE_ATTEMPTS - 1:
                    raise
                time.sleep(_ROLE_SECONDS)
        self._settled(form.name)
        self.update(form, ("callers", "on_failure", "triggers"))

    def update(self, form: Form, fields: Collection[str]) -> None:
        what = f"changing function {form.name!r}"
        if "rights" in fields:
            self._make_role(form)
        if "code" in fields:
            code = s3_code(form.settings["code"])
            ask(what, self.aws.functions.update_function_code, FunctionName=form.name, **code)
            self._settled(form.name)
        if {"handler", "role", "timeout", "memory", "environment"} & set(fields):
            ask(what, self.aws.functions.update_function_configuration, **self._configuration(form))
            self._settled(form.name)
        if "callers" in fields:
            self._permit(form)
        if "on_failure" in fields and form.settings["on_failure"] is not None:
            to = {"OnFailure": {"Destination": form.settings["on_failure"]}}
            ask(what, self.aws.functions.put_function_event_invoke_config, FunctionName=form.name, DestinationConfig=to)
        if "triggers" in fields:
            self._write_triggers(form)
        if {"tags", "code"} & set(fields):
            tags = {**form.settings["tags"], CODE_TAG: form.settings["code"]}
            ask(what, self.aws.functions.tag_resource, Resource=self.place.arn("function", form.name), Tags=tags)

    def delete(self, name: str) -> None:
        for mapping in self._mappings(name):
            ask(f"triggers of {name!r}", self.aws.functions.delete_event_source_mapping, UUID=mapping["UUID"])
        ask(f"removing function {name!r}", self.aws.functions.delete_function, *_MISSING, FunctionName=name)

    def _triggers(self, form: Form) -> list[dict[str, Any]]:
        found = self._mappings(form.name)
        wanted = ((trigger, _mapping(found, trigger)) for trigger in form.settings["triggers"])
        return [_settings(trigger, mapping) for trigger, mapping in wanted if mapping is not None]

    def _write_triggers(self, form: Form) -> None:
        found = self._mappings(form.name)
        for trigger in form.settings["triggers"]:
            mapping = _mapping(found, trigger)
            what = f"trigger {trigger['source']!r} of function {form.name!r}"
            if mapping is None:
                definition = {"EventSourceArn": self._trigger_source(trigger), **trigger_definition(trigger)}
                if trigger["kind"] != "queue":
                    definition["StartingPosition"] = "TRIM_HORIZON"
                ask(what, self.aws.functions.create_event_source_mapping, FunctionName=form.name, **definition)
            elif _settings(trigger, mapping) != trigger:
                changes = trigger_definition(trigger)
                ask(what, self.aws.functions.update_event_source_mapping, UUID=mapping["UUID"], **changes)

    def _mappings(self, function: str) -> list[Any]:
        operation = self.aws.functions.list_event_source_mappings
        answer = ask(f"triggers of {function!r}", operation, *_MISSING, FunctionName=function)
        return list((answer or {}).get("EventSourceMappings") or ())

    def _trigger_source(self, trigger: Mapping[str, Any]) -> str:
        """Return the ARN to read from; that of a table's stream is known only once the table exists."""
        if trigger["kind"] != "table":
            return str(trigger["arn"])
        name = trigger["source"]
        answer = ask(f"table {name!r}", self.aws.dynamodb.describe_table, TableName=name)
        if (arn := answer["Table"].get("LatestStreamArn")) is None:
            raise TopologyConflict(f"table {name!r} has no stream that could call a function")
        return str(arn)

    def wanted_environment(self, form: Form, have: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the variables with URLs filled in; an empty one keeps the value that it has."""
        found = (have or {}).get("environment") or {}
        variables: dict[str, str] = form.settings["environment"]
        return {
            name: URL.sub(lambda match: self.queues.url(match[1]) or match[0], value)
            if value
            else found.get(name) or ""
            for name, value in variables.items()
        }

    def _configuration(self, form: Form) -> dict[str, Any]:
        settings, operation = form.settings, self.aws.functions.get_function_configuration
        answer = ask(f"function {form.name!r}", operation, *_MISSING, FunctionName=form.name)
        before = ((answer or {}).get("Environment") or {}).get("Variables") or {}
        wanted = self.wanted_environment(form, {"environment": before})
        return {
            "FunctionName": form.name,
            "Handler": settings["handler"],
            "Role": settings["role"],
            "Timeout": settings["timeout"],
            "MemorySize": settings["memory"],
            "Environment": {"Variables": {**before, **wanted}},
        }

    def _make_role(self, form: Form) -> None:
        name = form.settings["role_name"]
        what = f"role {name!r}"
        trust, policy = json.dumps(form.settings["rights"]["trust"]), json.dumps(form.settings["rights"]["policy"])
        role = {"RoleName": name, "AssumeRolePolicyDocument": trust, "Tags": resources.tag_pairs(form.settings["tags"])}
        if ask(what, self.aws.iam.create_role, "EntityAlreadyExists", **role) is None:
            ask(what, self.aws.iam.update_assume_role_policy, RoleName=name, PolicyDocument=trust)
        ask(what, self.aws.iam.put_role_policy, RoleName=name, PolicyName=POLICY, PolicyDocument=policy)
        with translated(what):
            self.aws.iam.get_waiter("role_exists").wait(RoleName=name, WaiterConfig=_WAIT)

    def _rights(self, form: Form) -> dict[str, Any] | None:
        name = form.settings["role_name"]
        role = ask(f"role {name!r}", self.aws.iam.get_role, "NoSuchEntity", RoleName=name)
        policy = ask(f"role {name!r}", self.aws.iam.get_role_policy, "NoSuchEntity", RoleName=name, PolicyName=POLICY)
        if role is None or policy is None:
            return None
        return {"trust": role["Role"]["AssumeRolePolicyDocument"], "policy": policy["PolicyDocument"]}

    def _callers(self, form: Form) -> dict[str, str]:
        answer = ask(f"function {form.name!r}", self.aws.functions.get_policy, *_MISSING, FunctionName=form.name)
        statements = json.loads((answer or {}).get("Policy") or "{}").get("Statement", [])
        found = {each.get("Sid"): _source(each) for each in statements}
        return {name: found[name] for name in form.settings["callers"] if name in found}

    def _permit(self, form: Form) -> None:
        there = self._callers(form)
        for rule, arn in form.settings["callers"].items():
            if rule not in there:
                what, operation = f"permission of rule {rule!r}", self.aws.functions.add_permission
                caller = {"Action": rights.INVOKE, "Principal": "events.amazonaws.com", "SourceArn": arn}
                ask(what, operation, "ResourceConflictException", FunctionName=form.name, StatementId=rule, **caller)

    def _settled(self, name: str) -> None:
        with translated(f"function {name!r}"):
            self.aws.functions.get_waiter("function_updated_v2").wait(FunctionName=name, WaiterConfig=_WAIT)


def s3_code(url: str) -> dict[str, str]:
    """Return the archive `s3://bucket/key` in the form of Lambda."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return {"S3Bucket": bucket, "S3Key": key}


def _source(statement: Mapping[str, Any]) -> str:
    conditions = (statement.get("Condition") or {}).values()
    return next((str(each["AWS:SourceArn"]) for each in conditions if "AWS:SourceArn" in each), "")
