"""Templates deployed by emulated CloudFormation, and messages that flow through what was made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.topology.conftest import Aws
from tests.topology.shop import shop

from postroad.queues import OutgoingMessage
from postroad.topology import (
    Topology,
    agents_topology,
    apply,
    bus_topology,
    chat_topology,
    plan,
    render_cloudformation,
    task_topology,
    transfers_topology,
)

pytestmark = pytest.mark.aws
Unique = Callable[[str], str]


def deploy(aws: Aws, topology: Topology, parameters: Mapping[str, str] | None = None) -> dict[str, str]:
    """Make a stack of the template; its outputs."""
    client = aws.client("cloudformation")
    given = [{"ParameterKey": key, "ParameterValue": value} for key, value in (parameters or {}).items()]
    body = json.dumps(render_cloudformation(topology))
    client.create_stack(
        StackName=topology.name, TemplateBody=body, Parameters=given, Capabilities=["CAPABILITY_NAMED_IAM"]
    )
    client.get_waiter("stack_create_complete").wait(
        StackName=topology.name, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
    )
    [stack] = client.describe_stacks(StackName=topology.name)["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])}


def code_of(url: str) -> dict[str, str]:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return {"CodeBucket": bucket, "CodeKey": key}


def test_a_message_sent_through_a_deployed_queue_arrives(aws: Aws, unique: Unique) -> None:
    topology = chat_topology(unique("t"), "prod")

    outputs = deploy(aws, topology)

    assert len(outputs) == 4
    name = f"{topology.name}-push-queue"
    assert any(url.endswith(name) for url in outputs.values())
    queue = aws.backend.queue(name)
    queue.send([OutgoingMessage("hello")])
    assert [each.body for each in queue.receive(wait=5)] == [b"hello"]
    spec = aws.backend.queue_spec(name)
    assert (spec.visibility, spec.dead_letter, spec.max_receives) == (60, f"{topology.name}-push-dlq", 3)


def test_two_environments_of_one_chat_stand_in_one_account(aws: Aws, unique: Unique) -> None:
    project = unique("t")

    for env in ("prod", "dev"):
        deploy(aws, chat_topology(project, env))

    iam = aws.client("iam")
    policies = {
        env: iam.get_role_policy(RoleName=f"{project}-{env}-realtime", PolicyName="postroad")["PolicyDocument"]
        for env in ("prod", "dev")
    }
    assert all(f"{project}-{env}-offline-queue" in str(policy) for env, policy in policies.items())


def test_apply_finds_deployed_queues_as_declared(aws: Aws, unique: Unique) -> None:
    topology = bus_topology(f"{unique('t')}-")
    deploy(aws, topology)

    changed = {field for action in plan(topology, aws.backend).actions for field in action.changes}

    # One emulator's CloudFormation leaves out policies, tags and some settings; nothing else may differ.
    assert changed <= {"policy", "tags", "encryption", "redrive_allow", "max_message_bytes", "dedup_scope"}


def test_a_published_transfer_reaches_its_queues(aws: Aws, unique: Unique) -> None:
    prefix = f"{unique('t')}-"
    topology = transfers_topology(prefix)
    deploy(aws, topology)
    # moto's CloudFormation leaves out subscriptions; apply makes what is missing.
    apply(topology, aws.backend)
    topic = aws.backend.topic(f"{prefix}events-transfers.fifo", fifo=True)

    kind = {"EventType": "events.transfers.submitted.usdc"}
    [published] = topic.publish([OutgoingMessage("transfer", kind, group="g", dedup_id="1")])

    assert published.ok
    for name in ("gateway-usdc", "ledger-postings", "projections-timeline"):
        assert [each.body for each in aws.backend.queue(f"{prefix}{name}.fifo").receive(wait=5)] == [b"transfer"]


def test_every_kind_is_deployed(aws: Aws, unique: Unique) -> None:
    topology = shop(unique("t"))

    deploy(aws, topology)

    mark = topology.name
    assert aws.client("dynamodb").describe_table(TableName=f"{mark}-items")["Table"]["KeySchema"]
    assert aws.client("kinesis").describe_stream_summary(StreamName=f"{mark}-clicks")
    assert aws.client("s3").head_bucket(Bucket=f"{mark}-blobs")
    assert aws.client("events").describe_rule(Name=f"{mark}-rule", EventBusName=f"{mark}-bus")


@pytest.mark.parametrize("template", ["tasks", "agents"])
def test_functions_are_deployed_with_their_roles(aws: Aws, unique: Unique, code: str, template: str) -> None:
    mark = unique("t")
    topology = task_topology(mark) if template == "tasks" else agents_topology(f"{mark}-")

    deploy(aws, topology, code_of(code))

    functions: Any = aws.client("lambda")
    for each in topology.of("function"):
        configuration = functions.get_function(FunctionName=each.name)["Configuration"]
        assert configuration["Handler"] == each.handler  # type: ignore[union-attr]  # it is a function
        assert ":role/" in configuration["Role"]
