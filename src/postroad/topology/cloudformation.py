"""The topology as a CloudFormation template."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from postroad.connections import aws_resources as resources, aws_rights as rights
from postroad.topology.aws.alarms import alarm_definition
from postroad.topology.aws.functions import POLICY, RUNTIME, trigger_definition
from postroad.topology.aws.queues import queue_definition
from postroad.topology.aws.stores import EXPIRY, shape_of
from postroad.topology.aws.topics import target_definition
from postroad.topology.aws_properties import Form, forms
from postroad.topology.declarations import AlarmDecl
from postroad.topology.lint import check
from postroad.topology.names import TOKENS, URL, Key
from postroad.topology.topology import Topology

_CODE = {
    "CodeBucket": {"Type": "String", "Description": "The bucket that holds the functions' archive."},
    "CodeKey": {"Type": "String", "Description": "The key of the functions' archive in that bucket."},
}
_ALERT_EMAIL = {
    "AlertEmail": {"Type": "String", "Default": "", "Description": "Who gets the alarms by mail; nobody if empty."}
}
_HAS_EMAIL = "HasAlertEmail"
_TYPES = {
    "queue": "AWS::SQS::Queue",
    "topic": "AWS::SNS::Topic",
    "subscription": "AWS::SNS::Subscription",
    "stream": "AWS::Kinesis::Stream",
    "table": "AWS::DynamoDB::Table",
    "bucket": "AWS::S3::Bucket",
    "bus": "AWS::Events::EventBus",
    "rule": "AWS::Events::Rule",
    "function": "AWS::Lambda::Function",
    "alarm": "AWS::CloudWatch::Alarm",
    "role": "AWS::IAM::Role",
}


def render_cloudformation(topology: Topology) -> dict[str, Any]:
    """Return the CloudFormation template that makes everything the topology declares, including roles.

    Args:
        topology: The topology to render.

    Raises:
        TopologyError: The topology has errors; the message lists them.

    Example:
        print(json.dumps(render_cloudformation(chat_topology("rtchat", "prod")), indent=2))
    """
    check(topology)
    return _Template(topology).document()


def count_resources(topology: Topology) -> int:
    """Return how many resources the template of a valid topology has; one declaration may become several."""
    return len(_Template(topology).document()["Resources"])


class _Template:
    """One template: `_KIND` returns the properties of a form, and `_add` puts a resource beside that of its form."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._forms = forms(topology)
        self._ids = _logical_ids(self._forms)
        self._resources: dict[str, Any] = {}
        self._parameters: dict[str, Any] = {}
        self._conditions: dict[str, Any] = {}
        self._notified = {alarm.notify for alarm in topology.resources if isinstance(alarm, AlarmDecl)}

    def document(self) -> dict[str, Any]:
        for form in self._forms:
            name = self._ids[form.kind, form.name]
            # It comes before the resources that its properties add.
            resource: dict[str, Any] = {"Type": _TYPES[form.kind]}
            self._resources[name] = resource
            properties = self._substituted(getattr(self, f"_{form.kind}")(form))
            if "tags" in form.settings:
                properties["Tags"] = self._substituted(resources.tag_pairs(form.settings["tags"]))
            resource["Properties"] = properties
            if after := {self._ids[key] for key in form.needs if key in self._ids} - set(_referred(properties)):
                resource["DependsOn"] = sorted(after)
            if form.kind in ("table", "bucket"):
                resource |= {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}
        document = {
            "AWSTemplateFormatVersion": "2010-09-09",
            "Description": f"Topology {self._topology.name}, made by Postroad.",
            "Parameters": self._parameters,
            "Conditions": self._conditions,
            "Resources": self._resources,
            "Outputs": {
                f"{self._id(form)}Url": {"Description": f"The URL of queue {form.name}.", "Value": self._ref(form)}
                for form in self._forms
                if form.kind == "queue"
            },
        }
        return {key: value for key, value in document.items() if value}

    def _add(self, form: Form, suffix: str, kind: str, properties: dict[str, Any], **more: str) -> None:
        resource = {"Type": kind, "Properties": self._substituted(properties), **more}
        self._resources[self._id(form) + suffix] = resource

    def _id(self, form: Form) -> str:
        return self._ids[form.kind, form.name]

    def _ref(self, form: Form) -> dict[str, str]:
        return {"Ref": self._id(form)}

    def _substituted(self, value: Any) -> Any:
        """Return the value with references for what is known only at the time of the deployment."""
        if isinstance(value, dict):
            return {key: self._substituted(each) for key, each in value.items() if each is not None}
        if isinstance(value, list):
            return [self._substituted(each) for each in value]
        if not isinstance(value, str) or not (URL.search(value) or any(token in value for token in TOKENS)):
            return value
        return {"Fn::Sub": URL.sub(lambda match: f"${{{self._ids['queue', match[1]]}}}", value)}

    def _queue(self, form: Form) -> dict[str, Any]:
        policy = {"Queues": [self._ref(form)], "PolicyDocument": form.settings["policy"]}
        self._add(form, "Policy", "AWS::SQS::QueuePolicy", policy)
        return {"QueueName": form.name, **queue_definition(form)}

    def _topic(self, form: Form) -> dict[str, Any]:
        if form.name in self._notified:
            self._parameters |= _ALERT_EMAIL
            self._conditions[_HAS_EMAIL] = {"Fn::Not": [{"Fn::Equals": [{"Ref": "AlertEmail"}, ""]}]}
            to = {"TopicArn": self._ref(form), "Protocol": "email", "Endpoint": {"Ref": "AlertEmail"}}
            self._add(form, "Email", "AWS::SNS::Subscription", to, Condition=_HAS_EMAIL)
        dedup = form.settings["content_dedup"]
        fifo = {"FifoTopic": True, "ContentBasedDeduplication": dedup} if form.settings["fifo"] else {}
        return {"TopicName": form.name, **fifo}

    def _subscription(self, form: Form) -> dict[str, Any]:
        settings = form.settings
        return {
            "TopicArn": settings["topic"],
            "Protocol": "sqs",
            "Endpoint": settings["queue"],
            "RawMessageDelivery": settings["raw"],
            "FilterPolicy": settings["filter"] or None,
        }

    def _stream(self, form: Form) -> dict[str, Any]:
        shards, hours = form.settings["shards"], form.settings["retention_hours"]
        return {"Name": form.name, "ShardCount": shards, "RetentionPeriodHours": hours}

    def _table(self, form: Form) -> dict[str, Any]:
        expiry, view = form.settings["ttl_attribute"], form.settings["stream"]
        return {
            "TableName": form.name,
            **shape_of(form).definition(),
            "TimeToLiveSpecification": {"AttributeName": expiry, "Enabled": True} if expiry else None,
            "StreamSpecification": {"StreamViewType": view} if view else None,
        }

    def _bucket(self, form: Form) -> dict[str, Any]:
        days = form.settings["expire_days"]
        rule = {"Id": EXPIRY, "Status": "Enabled", "ExpirationInDays": days}
        return {
            "BucketName": form.settings["bucket"],
            "PublicAccessBlockConfiguration": dict(resources.PRIVATE),
            "LifecycleConfiguration": {"Rules": [rule]} if days else None,
        }

    def _bus(self, form: Form) -> dict[str, Any]:
        return {"Name": form.name}

    def _rule(self, form: Form) -> dict[str, Any]:
        settings = form.settings
        return {
            "Name": form.name,
            "EventBusName": settings["bus"],
            "State": "ENABLED",
            "EventPattern": settings["pattern"],
            "ScheduleExpression": settings["schedule"],
            "Targets": [target_definition(settings["target"])],
        }

    def _function(self, form: Form) -> dict[str, Any]:
        settings, function = form.settings, self._ref(form)
        self._parameters |= _CODE
        for rule, arn in settings["callers"].items():
            caller = {"Action": rights.INVOKE, "Principal": "events.amazonaws.com", "SourceArn": arn}
            permission = {"FunctionName": function, **caller}
            self._add(form, f"{_camel(rule)}Permission", "AWS::Lambda::Permission", permission)
        if settings["on_failure"] is not None:
            to = {"OnFailure": {"Destination": settings["on_failure"]}}
            config = {"FunctionName": function, "Qualifier": "$LATEST", "DestinationConfig": to}
            self._add(form, "Failures", "AWS::Lambda::EventInvokeConfig", config)
        for trigger in settings["triggers"]:
            self._trigger(form, trigger)
        return {
            "FunctionName": form.name,
            "Handler": settings["handler"],
            "Runtime": RUNTIME,
            "Role": {"Fn::GetAtt": [self._ids["role", settings["component"]], "Arn"]},
            "Timeout": settings["timeout"],
            "MemorySize": settings["memory"],
            "Environment": {"Variables": self._variables(settings["environment"])},
            "Code": {"S3Bucket": {"Ref": "CodeBucket"}, "S3Key": {"Ref": "CodeKey"}},
        }

    def _variables(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return the variables; an empty one becomes a parameter of the template."""
        variables: dict[str, Any] = dict(environment)
        for name in [name for name, value in environment.items() if not value]:
            parameter = _camel(name.lower().replace("_", "-"))
            self._parameters[parameter] = {"Type": "String", "NoEcho": True, "Default": ""}
            variables[name] = {"Ref": parameter}
        return variables

    def _trigger(self, form: Form, trigger: Mapping[str, Any]) -> None:
        source: Any = trigger["arn"]
        if trigger["kind"] == "table":
            source = {"Fn::GetAtt": [self._ids["table", trigger["source"]], "StreamArn"]}
        properties = {
            "FunctionName": self._ref(form),
            "EventSourceArn": source,
            **trigger_definition(trigger),
            "StartingPosition": None if trigger["kind"] == "queue" else "TRIM_HORIZON",
        }
        self._add(form, f"{_camel(trigger['source'])}Trigger", "AWS::Lambda::EventSourceMapping", properties)

    def _alarm(self, form: Form) -> dict[str, Any]:
        return {"AlarmName": form.name, **alarm_definition(form.settings)}

    def _role(self, form: Form) -> dict[str, Any]:
        policy = form.settings["policy"]
        return {
            "RoleName": form.settings["role_name"],
            "AssumeRolePolicyDocument": form.settings["trust"],
            "Policies": [{"PolicyName": POLICY, "PolicyDocument": policy}] if policy["Statement"] else None,
        }


def _referred(value: Any) -> Iterator[str]:
    """Yield the logical ids that the value refers to, which CloudFormation makes first by itself."""
    if isinstance(value, list):
        for each in value:
            yield from _referred(each)
    elif isinstance(value, dict):
        if set(value) == {"Ref"}:
            yield value["Ref"]
        elif set(value) == {"Fn::GetAtt"}:
            yield value["Fn::GetAtt"][0]
        elif set(value) == {"Fn::Sub"}:
            yield from re.findall(r"\$\{(\w+)\}", value["Fn::Sub"])
        else:
            yield from _referred(list(value.values()))


def _logical_ids(found: tuple[Form, ...]) -> dict[Key, str]:
    ids: dict[Key, str] = {}
    for form in found:
        candidate = _camel(form.name) + form.kind.title()
        if candidate in ids.values():
            candidate += hashlib.sha256(form.name.encode()).hexdigest()[:6]
        ids[form.kind, form.name] = candidate
    return ids


def _camel(name: str) -> str:
    parts = re.split(r"[^A-Za-z0-9]+", re.sub(r"\$\{AWS::(\w+)\}", r"\1", name))
    return "".join(part[:1].upper() + part[1:] for part in parts)
