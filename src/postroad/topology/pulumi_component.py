"""The topology as a Pulumi component; needs the extra `pulumi`.

If the topology has functions, the stack's configuration names the archive of their code: `postroad:codeBucket` and
`postroad:codeKey`. The value of a variable that is declared empty is read from the secret of the same name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from postroad.connections import aws_resources as resources, aws_rights as rights
from postroad.errors import ConfigurationError
from postroad.queues import redrive_allow_policy
from postroad.topology.aws.alarms import alarm_definition
from postroad.topology.aws.functions import POLICY, RUNTIME, trigger_definition
from postroad.topology.aws.queues import queue_definition
from postroad.topology.aws.stores import EXPIRY
from postroad.topology.aws_properties import Form, forms
from postroad.topology.lint import check
from postroad.topology.names import SOMEWHERE, TOKENS, URL, Key, Place, sources_of
from postroad.topology.topology import Topology

try:
    import pulumi
    import pulumi_aws
except ImportError as error:
    raise ConfigurationError("pulumi is not installed", remedy="pip install 'postroad[pulumi]'") from error

TYPE = "postroad:topology:Topology"
_QUEUE = {
    "visibility_timeout": "visibility_timeout_seconds",
    "message_retention_period": "message_retention_seconds",
    "receive_message_wait_time_seconds": "receive_wait_time_seconds",
    "maximum_message_size": "max_message_size",
}
"""What Pulumi calls otherwise than CloudFormation does."""
# Arguments come from tables of settings, which the overloads of the provider's classes cannot follow.
aws: Any = pulumi_aws


class TopologyComponent(pulumi.ComponentResource):
    """Everything that a topology declares, one resource for each declaration.

    On AWS each has its declared name. In the stack's state its name begins with that of the component, so that one
    stack can hold several topologies. The provider of the component makes all of them in its account and region.

    Args:
        name: The name of the component, unique in the stack.
        topology: What to make.
        opts: Pulumi's options; `provider` selects account and region.

    Raises:
        TopologyError: The topology has errors; the message lists them.

    Example:
        TopologyComponent("chat", chat_topology("rtchat", "prod"))
    """

    def __init__(self, name: str, topology: Topology, opts: pulumi.ResourceOptions | None = None) -> None:
        check(topology)
        super().__init__(TYPE, name, None, opts)
        self._component = name
        self._topology = topology
        self._config = pulumi.Config("postroad")
        self._made: dict[Key, Any] = {}
        here = pulumi.InvokeOptions(parent=self)
        self._place = pulumi.Output.all(
            aws.get_partition_output(opts=here).partition,
            aws.get_region_output(opts=here).region,
            aws.get_caller_identity_output(opts=here).account_id,
        )
        for form in forms(topology):
            self._made[form.kind, form.name] = getattr(self, f"_{form.kind}")(form)
        self.queue_urls = {name: made.url for (kind, name), made in self._made.items() if kind == "queue"}
        self.register_outputs({"queue_urls": self.queue_urls})

    def _make(self, kind: Any, form: Form, *, retain_on_delete: bool = False, **arguments: Any) -> Any:
        after = [self._made[key] for key in form.needs if key in self._made]
        options = pulumi.ResourceOptions(parent=self, depends_on=after, retain_on_delete=retain_on_delete)
        # In the stack's state the children of all components share one space of names.
        name = f"{self._component}-{form.name}"
        tags = {"tags": form.settings["tags"]} if "tags" in form.settings else {}
        return kind(name, **tags, **arguments, opts=options)

    def _add(self, kind: Any, to: Any, *name: str, **arguments: Any) -> None:
        options = pulumi.ResourceOptions(parent=self, depends_on=[to])
        kind("-".join((self._component, *name)), **arguments, opts=options)

    def _filled(self, text: Any) -> Any:
        """Return the text with account, region and URLs filled in, once they are known."""
        if not isinstance(text, str):
            return text
        names = URL.findall(text)
        if not names and not any(token in text for token in TOKENS):
            return text
        urls = [self._made["queue", name].url for name in names]

        def put_in(known: Any) -> str:
            place, *urls = known
            filled = dict(zip(names, urls, strict=True))
            return str(Place(*place).fill(URL.sub(lambda match: filled[match[1]], text)))

        return pulumi.Output.all(self._place, *urls).apply(put_in)

    def _json(self, document: Any) -> Any:
        return self._filled(json.dumps(document))

    def _queue(self, form: Form) -> Any:
        settings = form.settings
        arguments = {_QUEUE.get(name, name): value for name, value in _snake(queue_definition(form)).items()}
        arguments.pop("redrive_allow_policy", None)
        if "redrive_policy" in arguments:
            arguments["redrive_policy"] = self._json(arguments["redrive_policy"])
        queue = self._make(aws.sqs.Queue, form, name=form.name, **arguments)
        policy = self._json(settings["policy"])
        self._add(aws.sqs.QueuePolicy, queue, form.name, "policy", queue_url=queue.url, policy=policy)
        if sources_of(self._topology, form.name) or settings["redrive_allow"] != "all":
            allowed = redrive_allow_policy(settings["redrive_allow"], SOMEWHERE.arn("queue", form.name))
            arguments = {"queue_url": queue.url, "redrive_allow_policy": self._json(allowed)}
            self._add(aws.sqs.RedriveAllowPolicy, queue, form.name, "redrive-allow", **arguments)
        return queue

    def _topic(self, form: Form) -> Any:
        dedup = form.settings["content_dedup"]
        fifo = {"fifo_topic": True, "content_based_deduplication": dedup} if form.settings["fifo"] else {}
        return self._make(aws.sns.Topic, form, name=form.name, **fifo)

    def _subscription(self, form: Form) -> Any:
        settings = form.settings
        arguments = {
            "topic": self._filled(settings["topic"]),
            "protocol": "sqs",
            "endpoint": self._filled(settings["queue"]),
            "raw_message_delivery": settings["raw"],
        }
        if settings["filter"]:
            arguments["filter_policy"] = json.dumps(settings["filter"])
        return self._make(aws.sns.TopicSubscription, form, **arguments)

    def _stream(self, form: Form) -> Any:
        shards, hours = form.settings["shards"], form.settings["retention_hours"]
        return self._make(aws.kinesis.Stream, form, name=form.name, shard_count=shards, retention_period=hours)

    def _table(self, form: Form) -> Any:
        settings = form.settings
        used = [*settings["keys"], *(key for index in settings["indexes"].values() for key in index["keys"])]
        arguments: dict[str, Any] = {
            "name": form.name,
            "billing_mode": "PAY_PER_REQUEST",
            **_key_arguments(settings["keys"]),
            "attributes": [{"name": key, "type": "S"} for key in dict.fromkeys(used)],
            "global_secondary_indexes": [
                {"name": name, **_key_arguments(index["keys"]), "projection_type": index["projection"]}
                for name, index in settings["indexes"].items()
            ],
        }
        if settings["ttl_attribute"]:
            arguments["ttl"] = {"attribute_name": settings["ttl_attribute"], "enabled": True}
        if settings["stream"]:
            arguments |= {"stream_enabled": True, "stream_view_type": settings["stream"]}
        return self._make(aws.dynamodb.Table, form, retain_on_delete=True, **arguments)

    def _bucket(self, form: Form) -> Any:
        name = self._filled(form.settings["bucket"])
        bucket = self._make(aws.s3.Bucket, form, retain_on_delete=True, bucket=name)
        closed = _snake(resources.PRIVATE)
        self._add(aws.s3.BucketPublicAccessBlock, bucket, form.name, "private", bucket=bucket.id, **closed)
        if (days := form.settings["expire_days"]) is not None:
            rule = {"id": EXPIRY, "status": "Enabled", "filter": {"prefix": ""}, "expiration": {"days": days}}
            lifecycle = aws.s3.BucketLifecycleConfiguration
            self._add(lifecycle, bucket, form.name, "expiry", bucket=bucket.id, rules=[rule])
        return bucket

    def _bus(self, form: Form) -> Any:
        return self._make(aws.cloudwatch.EventBus, form, name=form.name)

    def _rule(self, form: Form) -> Any:
        settings, target = form.settings, form.settings["target"]
        when: dict[str, Any] = {"schedule_expression": settings["schedule"]}
        if settings["pattern"] is not None:
            when = {"event_pattern": json.dumps(settings["pattern"])}
        rule = self._make(aws.cloudwatch.EventRule, form, name=form.name, event_bus_name=settings["bus"], **when)
        arguments = {
            "rule": rule.name,
            "event_bus_name": settings["bus"],
            "target_id": target["id"],
            "arn": self._filled(target["arn"]),
            "retry_policy": {
                "maximum_retry_attempts": target["max_attempts"],
                "maximum_event_age_in_seconds": target["max_event_age"],
            },
        }
        if target["dead_letter"]:
            arguments["dead_letter_config"] = {"arn": self._filled(target["dead_letter"])}
        self._add(aws.cloudwatch.EventTarget, rule, form.name, "target", **arguments)
        return rule

    def _function(self, form: Form) -> Any:
        settings = form.settings
        function = self._make(
            aws.lambda_.Function,
            form,
            name=form.name,
            handler=settings["handler"],
            runtime=RUNTIME,
            role=self._made["role", settings["component"]].arn,
            timeout=settings["timeout"],
            memory_size=settings["memory"],
            s3_bucket=self._config.require("codeBucket"),
            s3_key=self._config.require("codeKey"),
            environment={
                "variables": {
                    name: self._filled(value) if value else self._config.get_secret(name) or ""
                    for name, value in settings["environment"].items()
                }
            },
        )
        for rule, arn in settings["callers"].items():
            caller = {"action": rights.INVOKE, "principal": "events.amazonaws.com", "source_arn": self._filled(arn)}
            self._add(aws.lambda_.Permission, function, form.name, rule, function=function.name, **caller)
        if settings["on_failure"] is not None:
            to = {"on_failure": {"destination": self._filled(settings["on_failure"])}}
            arguments = {"function_name": function.name, "destination_config": to}
            self._add(aws.lambda_.FunctionEventInvokeConfig, function, form.name, "failures", **arguments)
        for trigger in settings["triggers"]:
            self._trigger(function, form.name, trigger)
        return function

    def _trigger(self, function: Any, name: str, trigger: Mapping[str, Any]) -> None:
        arguments = {"function_name": function.name, **_snake(trigger_definition(trigger))}
        source = self._filled(trigger["arn"])
        if trigger["kind"] == "table":
            source = self._made["table", trigger["source"]].stream_arn
        if trigger["kind"] != "queue":
            arguments["starting_position"] = "TRIM_HORIZON"
        if "destination_config" in arguments:
            arguments["destination_config"] = {"on_failure": {"destination_arn": self._filled(trigger["on_failure"])}}
        parts = (name, trigger["kind"], trigger["source"])
        self._add(aws.lambda_.EventSourceMapping, function, *parts, event_source_arn=source, **arguments)

    def _alarm(self, form: Form) -> Any:
        settings = form.settings
        arguments = _snake(alarm_definition(settings)) | {"name": form.name, "dimensions": settings["dimensions"]}
        if settings["notify"]:
            arguments["alarm_actions"] = [self._filled(settings["notify"])]
        return self._make(aws.cloudwatch.MetricAlarm, form, **arguments)

    def _role(self, form: Form) -> Any:
        settings = form.settings
        trust = json.dumps(settings["trust"])
        role = self._make(aws.iam.Role, form, name=settings["role_name"], assume_role_policy=trust)
        if settings["policy"]["Statement"]:
            policy = self._json(settings["policy"])
            self._add(aws.iam.RolePolicy, role, form.name, "policy", name=POLICY, role=role.name, policy=policy)
        return role


def _snake(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of AWS under the names that Pulumi gives them."""
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): value for name, value in settings.items()}


def _key_arguments(keys: list[str]) -> dict[str, str]:
    return dict(zip(("hash_key", "range_key"), keys, strict=False))
