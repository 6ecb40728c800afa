"""The topology as a Pulumi component; needs the extra `pulumi`.

Whoever has functions names their archive in the stack's configuration: `postroad:codeBucket` and `postroad:codeKey`.
A variable that is empty in the declaration is read from there too, as a secret under its own name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from postroad.connections import INVOKE
from postroad.errors import ConfigurationError
from postroad.topology.aws.alarms import OPERATORS
from postroad.topology.aws.functions import POLICY, RUNTIME
from postroad.topology.aws.stores import EXPIRY
from postroad.topology.cloudformation import redrive_allow
from postroad.topology.forms import Form, forms
from postroad.topology.lint import check
from postroad.topology.names import SOMEWHERE, TOKENS, Place
from postroad.topology.references import URL, Key, sources_of
from postroad.topology.topology import Topology

try:
    import pulumi
    import pulumi_aws
except ImportError as error:
    raise ConfigurationError("pulumi is not installed", remedy="pip install 'postroad[pulumi]'") from error

TYPE = "postroad:topology:Topology"
# Arguments come from tables of settings, which the overloads of the provider's classes cannot follow.
aws: Any = pulumi_aws


class TopologyComponent(pulumi.ComponentResource):
    """Everything the topology declares, one resource for each declaration.

    On AWS each has its declared name; in the stack's state the component's name stands before it, so that one stack
    holds several topologies. All are made, and account and region looked up, with the provider of the component.

    Args:
        name: The name of the component, of which there is one in a stack.
        topology: What to make; checked as `postroad topology lint` does.
        opts: Pulumi's options; `provider` chooses account and region.

    Raises:
        TopologyError: The topology has errors; its message names all of them.
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

    def _named(self, *parts: str) -> str:
        """A name in the stack's state, where the children of all components share one space of names."""
        return "-".join((self._component, *parts))

    def _options(self, form: Form, **options: Any) -> pulumi.ResourceOptions:
        after = [self._made[key] for key in form.needs if key in self._made]
        return pulumi.ResourceOptions(parent=self, depends_on=after, **options)

    def _beside(self, *after: Any) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=list(after))

    def _filled(self, text: Any) -> Any:
        """The text with account, region and URLs in it, once they are known."""
        if not isinstance(text, str):
            return text
        names = URL.findall(text)
        if not names and not any(token in text for token in TOKENS):
            return text
        urls = [self._made["queue", name].url for name in names]
        return pulumi.Output.all(self._place, *urls).apply(lambda known: _put_in(text, names, known))

    def _json(self, document: Any) -> Any:
        return self._filled(json.dumps(document))

    def _queue(self, form: Form) -> Any:
        settings = form.settings
        queue = aws.sqs.Queue(self._named(form.name), **self._queue_arguments(form), opts=self._options(form))
        policy = self._json(settings["policy"])
        aws.sqs.QueuePolicy(
            self._named(form.name, "policy"), queue_url=queue.url, policy=policy, opts=self._beside(queue)
        )
        if sources_of(self._topology, form.name) or settings["redrive_allow"] != "all":
            allowed = redrive_allow(settings["redrive_allow"]) or {"redrivePermission": "allowAll"}
            aws.sqs.RedriveAllowPolicy(
                self._named(form.name, "redrive-allow"),
                queue_url=queue.url,
                redrive_allow_policy=self._json(allowed),
                opts=self._beside(queue),
            )
        return queue

    def _queue_arguments(self, form: Form) -> dict[str, Any]:
        settings = form.settings
        arguments = {
            "name": form.name,
            "visibility_timeout_seconds": settings["visibility"],
            "message_retention_seconds": settings["retention"],
            "delay_seconds": settings["delay"],
            "receive_wait_time_seconds": settings["receive_wait"],
            "max_message_size": settings["max_message_bytes"],
            "tags": settings["tags"],
        }
        if settings["fifo"]:
            by_group = settings["dedup_scope"] == "group"
            arguments |= {
                "fifo_queue": True,
                "content_based_deduplication": settings["content_dedup"],
                "deduplication_scope": "messageGroup" if by_group else "queue",
                "fifo_throughput_limit": "perMessageGroupId" if by_group else "perQueue",
            }
        if settings["dead_letter"] is not None:
            target = SOMEWHERE.arn("queue", settings["dead_letter"])
            redrive = {"deadLetterTargetArn": target, "maxReceiveCount": settings["max_receives"]}
            arguments["redrive_policy"] = self._json(redrive)
        if settings["encryption"] in ("sqs", "none"):
            return {**arguments, "sqs_managed_sse_enabled": settings["encryption"] == "sqs"}
        return {**arguments, "kms_master_key_id": settings["encryption"]}

    def _topic(self, form: Form) -> Any:
        settings = form.settings
        fifo = (
            {"fifo_topic": True, "content_based_deduplication": settings["content_dedup"]} if settings["fifo"] else {}
        )
        return aws.sns.Topic(
            self._named(form.name), name=form.name, tags=settings["tags"], **fifo, opts=self._options(form)
        )

    def _subscription(self, form: Form) -> Any:
        settings = form.settings
        filters = {"filter_policy": json.dumps(settings["filter"])} if settings["filter"] else {}
        return aws.sns.TopicSubscription(
            self._named(form.name),
            topic=self._filled(settings["topic"]),
            protocol="sqs",
            endpoint=self._filled(settings["queue"]),
            raw_message_delivery=settings["raw"],
            **filters,
            opts=self._options(form),
        )

    def _stream(self, form: Form) -> Any:
        return aws.kinesis.Stream(
            self._named(form.name),
            name=form.name,
            shard_count=form.settings["shards"],
            retention_period=form.settings["retention_hours"],
            tags=form.settings["tags"],
            opts=self._options(form),
        )

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
            "tags": settings["tags"],
        }
        if settings["ttl_attribute"]:
            arguments["ttl"] = {"attribute_name": settings["ttl_attribute"], "enabled": True}
        if settings["stream"]:
            arguments |= {"stream_enabled": True, "stream_view_type": settings["stream"]}
        return aws.dynamodb.Table(self._named(form.name), **arguments, opts=self._options(form, retain_on_delete=True))

    def _bucket(self, form: Form) -> Any:
        options = self._options(form, retain_on_delete=True)
        name = self._filled(form.settings["bucket"])
        bucket = aws.s3.Bucket(self._named(form.name), bucket=name, tags=form.settings["tags"], opts=options)
        aws.s3.BucketPublicAccessBlock(
            self._named(form.name, "private"),
            bucket=bucket.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=self._beside(bucket),
        )
        if (days := form.settings["expire_days"]) is not None:
            rule = {"id": EXPIRY, "status": "Enabled", "filter": {"prefix": ""}, "expiration": {"days": days}}
            aws.s3.BucketLifecycleConfiguration(
                self._named(form.name, "expiry"), bucket=bucket.id, rules=[rule], opts=self._beside(bucket)
            )
        return bucket

    def _bus(self, form: Form) -> Any:
        options = self._options(form)
        return aws.cloudwatch.EventBus(self._named(form.name), name=form.name, tags=form.settings["tags"], opts=options)

    def _rule(self, form: Form) -> Any:
        settings, target = form.settings, form.settings["target"]
        when: dict[str, Any] = {"schedule_expression": settings["schedule"]}
        if settings["pattern"] is not None:
            when = {"event_pattern": json.dumps(settings["pattern"])}
        rule = aws.cloudwatch.EventRule(
            self._named(form.name),
            name=form.name,
            event_bus_name=settings["bus"],
            **when,
            tags=settings["tags"],
            opts=self._options(form),
        )
        dead = {"dead_letter_config": {"arn": self._filled(target["dead_letter"])}} if target["dead_letter"] else {}
        retry = {
            "maximum_retry_attempts": target["max_attempts"],
            "maximum_event_age_in_seconds": target["max_event_age"],
        }
        aws.cloudwatch.EventTarget(
            self._named(form.name, "target"),
            rule=rule.name,
            event_bus_name=settings["bus"],
            target_id=target["id"],
            arn=self._filled(target["arn"]),
            retry_policy=retry,
            **dead,
            opts=self._beside(rule),
        )
        return rule

    def _function(self, form: Form) -> Any:
        settings = form.settings
        function = aws.lambda_.Function(
            self._named(form.name),
            name=form.name,
            handler=settings["handler"],
            runtime=RUNTIME,
            role=self._made["role", settings["component"]].arn,
            timeout=settings["timeout"],
            memory_size=settings["memory"],
            s3_bucket=self._config.require("codeBucket"),
            s3_key=self._config.require("codeKey"),
            tags=settings["tags"],
            environment={"variables": self._variables(settings["environment"])},
            opts=self._options(form),
        )
        for rule, arn in settings["callers"].items():
            aws.lambda_.Permission(
                self._named(form.name, rule),
                function=function.name,
                action=INVOKE,
                principal="events.amazonaws.com",
                source_arn=self._filled(arn),
                opts=self._beside(function),
            )
        if settings["on_failure"] is not None:
            to = {"on_failure": {"destination": self._filled(settings["on_failure"])}}
            aws.lambda_.FunctionEventInvokeConfig(
                self._named(form.name, "failures"),
                function_name=function.name,
                destination_config=to,
                opts=self._beside(function),
            )
        for trigger in settings["triggers"]:
            self._trigger(function, form.name, trigger)
        return function

    def _variables(self, environment: Mapping[str, str]) -> dict[str, Any]:
        return {
            name: self._filled(value) if value else self._config.get_secret(name) or ""
            for name, value in environment.items()
        }

    def _trigger(self, function: Any, name: str, trigger: Mapping[str, Any]) -> None:
        arguments: dict[str, Any] = {"batch_size": trigger["batch_size"]}
        if trigger["report_item_failures"]:
            arguments["function_response_types"] = ["ReportBatchItemFailures"]
        source = self._filled(trigger["arn"])
        if trigger["kind"] == "table":
            source = self._made["table", trigger["source"]].stream_arn
        if trigger["kind"] != "queue":
            arguments |= {
                "starting_position": "TRIM_HORIZON",
                "maximum_retry_attempts": trigger["max_attempts"],
                "bisect_batch_on_function_error": trigger["bisect"],
            }
            if trigger["on_failure"] is not None:
                to = self._filled(trigger["on_failure"])
                arguments["destination_config"] = {"on_failure": {"destination_arn": to}}
        aws.lambda_.EventSourceMapping(
            self._named(name, trigger["kind"], trigger["source"]),
            function_name=function.name,
            event_source_arn=source,
            **arguments,
            opts=self._beside(function),
        )

    def _alarm(self, form: Form) -> Any:
        settings = form.settings
        notify = {"alarm_actions": [self._filled(settings["notify"])]} if settings["notify"] else {}
        return aws.cloudwatch.MetricAlarm(
            self._named(form.name),
            name=form.name,
            alarm_description=settings["description"],
            namespace=settings["namespace"],
            metric_name=settings["metric"],
            dimensions=settings["dimensions"],
            statistic=settings["statistic"],
            comparison_operator=OPERATORS[settings["comparison"]],
            threshold=settings["threshold"],
            period=settings["period"],
            evaluation_periods=settings["periods"],
            treat_missing_data=settings["missing"],
            **notify,
            tags=settings["tags"],
            opts=self._options(form),
        )

    def _role(self, form: Form) -> Any:
        settings = form.settings
        role = aws.iam.Role(
            self._named(form.name),
            name=settings["role_name"],
            assume_role_policy=json.dumps(settings["trust"]),
            tags=settings["tags"],
            opts=self._options(form),
        )
        if settings["policy"]["Statement"]:
            aws.iam.RolePolicy(
                self._named(form.name, "policy"),
                name=POLICY,
                role=role.name,
                policy=self._json(settings["policy"]),
                opts=self._beside(role),
            )
        return role


def _put_in(text: str, names: list[str], known: Any) -> str:
    place, *urls = known
    for name, url in zip(names, urls, strict=True):
        text = text.replace(f"${{Url:{name}}}", url)
    return str(Place(*place).fill(text))


def _key_arguments(keys: list[str]) -> dict[str, str]:
    return dict(zip(("hash_key", "range_key"), keys, strict=False))
