"""The topology as a CloudFormation template."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from postroad.connections import INVOKE, PRIVATE, tag_pairs
from postroad.topology.aws.alarms import alarm_definition
from postroad.topology.aws.functions import POLICY, RUNTIME, trigger_definition
from postroad.topology.aws.stores import EXPIRY, shape_of
from postroad.topology.aws.topics import target_definition
from postroad.topology.declarations import AlarmDecl
from postroad.topology.forms import Form, forms
from postroad.topology.lint import check
from postroad.topology.names import SOMEWHERE, TOKENS
from postroad.topology.references import URL, Key
from postroad.topology.topology import Topology

_CODE = {
    "CodeBucket": {"Type": "String", "Description": "The bucket that holds the functions' archive."},
    "CodeKey": {"Type": "String", "Description": "The key of the functions' archive in that bucket."},
}
_ALERT_EMAIL = {
    "AlertEmail": {"Type": "String", "Default": "", "Description": "Who gets the alarms by mail; nobody if empty."}
}
_HAS_EMAIL = "HasAlertEmail"
_KEPT = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}


def render_cloudformation(topology: Topology) -> dict[str, Any]:
    """The template that makes everything the topology declares, roles included."""
    check(topology)
    return _Template(topology).document()


def count_resources(topology: Topology) -> int:
    """How many resources the template of a topology without errors has; one declaration may become several."""
    return len(_Template(topology).document()["Resources"])


class _Template:
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
            for suffix, resource in getattr(self, f"_{form.kind}")(form):
                self._add(form, suffix, resource)
        urls = {f"{self._id(form)}Url": form for form in self._forms if form.kind == "queue"}
        document = {
            "AWSTemplateFormatVersion": "2010-09-09",
            "Description": f"Topology {self._topology.name}, made by Postroad.",
            "Parameters": self._parameters,
            "Conditions": self._conditions,
            "Resources": self._resources,
            "Outputs": {
                name: {"Description": f"The URL of queue {form.name}.", "Value": {"Ref": self._id(form)}}
                for name, form in urls.items()
            },
        }
        return {key: value for key, value in document.items() if value}

    def _add(self, form: Form, suffix: str, resource: dict[str, Any]) -> None:
        resource["Properties"] = self._substituted(resource["Properties"])
        after = {self._ids[key] for key in form.needs if key in self._ids} - set(_referred(resource["Properties"]))
        if suffix == "" and after:
            resource["DependsOn"] = sorted(after)
        self._resources[self._id(form) + suffix] = resource

    def _id(self, form: Form) -> str:
        return self._ids[form.kind, form.name]

    def _substituted(self, value: Any) -> Any:
        """The value with what is known only when deploying put in by CloudFormation."""
        if isinstance(value, dict):
            return {key: self._substituted(each) for key, each in value.items() if each is not None}
        if isinstance(value, list):
            return [self._substituted(each) for each in value]
        if not isinstance(value, str) or not (URL.search(value) or any(token in value for token in TOKENS)):
            return value
        return {"Fn::Sub": URL.sub(lambda match: f"${{{self._ids['queue', match[1]]}}}", value)}

    def _queue(self, form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "", _resource("AWS::SQS::Queue", {"QueueName": form.name, **queue_properties(form)})
        policy = {"Queues": [{"Ref": self._id(form)}], "PolicyDocument": form.settings["policy"]}
        yield "Policy", _resource("AWS::SQS::QueuePolicy", policy)

    def _topic(self, form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
        properties: dict[str, Any] = {"TopicName": form.name, "Tags": tag_pairs(form.settings["tags"])}
        if form.settings["fifo"]:
            properties |= {"FifoTopic": True, "ContentBasedDeduplication": form.settings["content_dedup"]}
        yield "", _resource("AWS::SNS::Topic", properties)
        if form.name in self._notified:
            self._parameters |= _ALERT_EMAIL
            self._conditions[_HAS_EMAIL] = {"Fn::Not": [{"Fn::Equals": [{"Ref": "AlertEmail"}, ""]}]}
            to = {"TopicArn": {"Ref": self._id(form)}, "Protocol": "email", "Endpoint": {"Ref": "AlertEmail"}}
            yield "Email", {**_resource("AWS::SNS::Subscription", to), "Condition": _HAS_EMAIL}

    def _subscription(self, form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
        settings = form.settings
        properties = {
            "TopicArn": settings["topic"],
            "Protocol": "sqs",
            "Endpoint": settings["queue"],
            "RawMessageDelivery": settings["raw"],
            "FilterPolicy": settings["filter"] or None,
        }
        yield "", _resource("AWS::SNS::Subscription", properties)

    def _stream(self, form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
        properties = {
            "Name": form.name,
            "ShardCount": form.settings["shards"],
            "RetentionPeriodHours": form.settings["retention_hours"],
            "Tags": tag_pairs(form.settings["tags"]),
        }
        yield "", _resource("AWS::Kinesis::Stream", properties)

    def _table(self, form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
        settings = form.settings
        properties = {"TableName": form.name, **shape_of(form).definition(), "Tags": tag_pairs(settings["tags"])}
        if settings["ttl_attribute"]:
            properties["TimeToLiveSpecification"] = {"AttributeName": settings["ttl_attribute"], "Enabled": True}
        if settings["stream"]:
            properties["StreamSpecification"] = {"StreamViewType": settings["stream"]}
        yield "", {**_resource("AWS::DynamoDB::Table", properties), **_KEPT}

    def _bucket(self, form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
        days = form.settings["expire_days"]
        rule = {"Id": EXPIRY, "Status": "Enabled", "ExpirationInDays": days}
        properties = {
            "BucketName": form.settings["bucket"],
            "PublicAccessBlockConfiguration": dict(PRIVATE),
            "LifecycleConfiguration": {"Rules": [rule]} if days else None,
            "Tags": tag_pairs(form.settings["tags"]),
        }
        yield "", {**_resource("AWS::S3::Bucket", properties), **_KEPT}

    def _bus(self, form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "", _resource("AWS::Events::EventBus", {"Name": form.name, "Tags": tag_pairs(form.settings["tags"])})

    def _rule(self, form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
        settings = form.settings
        properties = {
            "Name": form.name,
            "EventBusName": settings["bus"],
            "State": "ENABLED",
            "EventPattern": settings["pattern"],
            "ScheduleExpression": settings["schedule"],
            "Targets": [target_definition(settings["target"])],
            "Tags": tag_pairs(settings["tags"]),
        }
        yield "", _resource("AWS::Events::Rule", properties)

    def _function(self, form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
        settings = form.settings
        self._parameters |= _CODE
        properties = {
            "FunctionName": form.name,
            "Handler": settings["handler"],
            "Runtime": RUNTIME,
            "Role": {"Fn::GetAtt": [self._ids["role", settings["component"]], "Arn"]},
            "Timeout": settings["timeout"],
            "MemorySize": settings["memory"],
            "Environment": {"Variables": self._variables(settings["environment"])},
            "Code": {"S3Bucket": {"Ref": "CodeBucket"}, "S3Key": {"Ref": "CodeKey"}},
            "Tags": tag_pairs(settings["tags"]),
        }
        yield "", _resource("AWS::Lambda::Function", properties)
        for rule, arn in settings["callers"].items():
            yield f"{_camel(rule)}Permission", _resource("AWS::Lambda::Permission", self._permission(form, arn))
        if settings["on_failure"] is not None:
            to = {"OnFailure": {"Destination": settings["on_failure"]}}
            config = {"FunctionName": {"Ref": self._id(form)}, "Qualifier": "$LATEST", "DestinationConfig": to}
            yield "Failures", _resource("AWS::Lambda::EventInvokeConfig", config)
        for trigger in settings["triggers"]:
            yield f"{_camel(trigger['source'])}Trigger", self._trigger(form, trigger)

    def _variables(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """The variables; an empty one becomes a parameter that whoever deploys fills."""
        variables: dict[str, Any] = dict(environment)
        for name in [name for name, value in environment.items() if not value]:
            parameter = _camel(name.lower().replace("_", "-"))
            self._parameters[parameter] = {"Type": "String", "NoEcho": True, "Default": ""}
            variables[name] = {"Ref": parameter}
        return variables

    def _permission(self, form: Form, source_arn: str) -> dict[str, Any]:
        return {
            "FunctionName": {"Ref": self._id(form)},
            "Action": INVOKE,
            "Principal": "events.amazonaws.com",
            "SourceArn": source_arn,
        }

    def _trigger(self, form: Form, trigger: Mapping[str, Any]) -> dict[str, Any]:
        source: Any = trigger["arn"]
        if trigger["kind"] == "table":
            source = {"Fn::GetAtt": [self._ids["table", trigger["source"]], "StreamArn"]}
        properties = {
            "FunctionName": {"Ref": self._id(form)},
            "EventSourceArn": source,
            **trigger_definition(trigger),
            "StartingPosition": None if trigger["kind"] == "queue" else "TRIM_HORIZON",
        }
        return _resource("AWS::Lambda::EventSourceMapping", properties)

    def _alarm(self, form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
        properties = {
            "AlarmName": form.name,
            **alarm_definition(form.settings),
            "Tags": tag_pairs(form.settings["tags"]),
        }
        yield "", _resource("AWS::CloudWatch::Alarm", properties)

    def _role(self, form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
        policy = form.settings["policy"]
        inline = [{"PolicyName": POLICY, "PolicyDocument": policy}] if policy["Statement"] else None
        properties = {
            "RoleName": form.settings["role_name"],
            "AssumeRolePolicyDocument": form.settings["trust"],
            "Policies": inline,
            "Tags": tag_pairs(form.settings["tags"]),
        }
        yield "", _resource("AWS::IAM::Role", properties)


def queue_properties(form: Form) -> dict[str, Any]:
    """The settings of a queue but for its name and policy, as CloudFormation spells them."""
    settings = form.settings
    properties: dict[str, Any] = {
        "VisibilityTimeout": settings["visibility"],
        "MessageRetentionPeriod": settings["retention"],
        "DelaySeconds": settings["delay"],
        "ReceiveMessageWaitTimeSeconds": settings["receive_wait"],
        "MaximumMessageSize": settings["max_message_bytes"],
        "Tags": tag_pairs(settings["tags"]),
    }
    if settings["fifo"]:
        by_group = settings["dedup_scope"] == "group"
        properties |= {
            "FifoQueue": True,
            "ContentBasedDeduplication": settings["content_dedup"],
            "DeduplicationScope": "messageGroup" if by_group else "queue",
            "FifoThroughputLimit": "perMessageGroupId" if by_group else "perQueue",
        }
    return properties | _dead_letters(settings) | _encryption(settings["encryption"])


def _dead_letters(settings: Mapping[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    if settings["dead_letter"] is not None:
        arn = SOMEWHERE.arn("queue", settings["dead_letter"])
        properties["RedrivePolicy"] = {"deadLetterTargetArn": arn, "maxReceiveCount": settings["max_receives"]}
    if (policy := redrive_allow(settings["redrive_allow"])) is not None:
        properties["RedriveAllowPolicy"] = policy
    return properties


def redrive_allow(allowed: str | list[str]) -> dict[str, Any] | None:
    """Which queues may put their dead letters here, as SQS spells it; None for all."""
    if allowed == "all":
        return None
    if allowed == "none":
        return {"redrivePermission": "denyAll"}
    arns = [SOMEWHERE.arn("queue", name) for name in allowed]
    return {"redrivePermission": "byQueue", "sourceQueueArns": arns}


def _encryption(encryption: str) -> dict[str, Any]:
    if encryption in ("sqs", "none"):
        return {"SqsManagedSseEnabled": encryption == "sqs"}
    return {"KmsMasterKeyId": encryption}


def _referred(value: Any) -> Iterator[str]:
    """The logical ids that the value refers to, and behind which CloudFormation puts it by itself."""
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


def _resource(kind: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"Type": kind, "Properties": properties}


def _logical_ids(found: tuple[Form, ...]) -> dict[Key, str]:
    """A name made of letters and digits for each form, no two alike."""
    ids: dict[Key, str] = {}
    for form in found:
        candidate = _camel(form.name) + form.kind.title()
        if candidate in ids.values():
            candidate += hashlib.sha256(form.name.encode()).hexdigest()[:6]
        ids[form.kind, form.name] = candidate
    return ids


def _camel(name: str) -> str:
    words = re.split(r"[^A-Za-z0-9]+", re.sub(r"\$\{AWS::(\w+)\}", r"\1", name))
    return "".join(word[:1].upper() + word[1:] for word in words)
