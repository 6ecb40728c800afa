"""The rights of each component, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroad.errors import TopologyError
from postroad.queues import QueueSpec
from postroad.topology import (
    Component,
    QueueDecl,
    Topology,
    agents_topology,
    bus_topology,
    chat_topology,
    consumer_policy,
    iam_policy,
    producer_policy,
    task_topology,
    transfers_topology,
)

REGION, ACCOUNT = "eu-central-1", "123456789012"
SQS = f"arn:aws:sqs:{REGION}:{ACCOUNT}"
KMS = "arn:aws:kms:eu-central-1:123456789012:key/k"
TEMPLATES = [
    chat_topology("rtchat", "prod"),
    transfers_topology(),
    task_topology("dev"),
    agents_topology(),
    bus_topology(),
]
EVERY = [(topology, component.name) for topology in TEMPLATES for component in topology.components]
WILD = {
    "arn:aws:dynamodb:eu-central-1:123456789012:table/SubscriberEvents/stream/*",
    "arn:aws:s3:::events-dev-overflow-123456789012/*",
    f"{SQS}:agents-*.fifo",
}
CONSUMES = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility", "sqs:GetQueueAttributes"}


def policy(topology: Topology, component: str) -> dict[str, Any]:
    return iam_policy(topology, component, region=REGION, account=ACCOUNT)


def rights(document: dict[str, Any]) -> dict[str, set[str]]:
    """The actions that are allowed on each resource."""
    allowed: dict[str, set[str]] = {}
    for statement in document["Statement"]:
        for resource in statement["Resource"]:
            allowed.setdefault(resource, set()).update(statement["Action"])
    return allowed


def resources(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for statement in document["Statement"]:
        yield from ((resource, statement) for resource in statement["Resource"])


@pytest.mark.parametrize(("topology", "component"), EVERY, ids=[f"{t.name}-{c}" for t, c in EVERY])
def test_sec11_no_action_is_wild_and_no_resource_but_where_aws_leaves_no_other_way(
    topology: Topology, component: str
) -> None:
    document = policy(topology, component)

    for resource, statement in resources(document):
        assert not any("*" in action for action in statement["Action"])
        wild = "*" in resource
        logs = resource.startswith("arn:aws:logs:") and resource.endswith(":*")
        lists = set(statement["Action"]) <= {"dynamodb:ListStreams", "kinesis:ListStreams"} and resource == "*"
        assert not wild or logs or lists or resource in WILD, resource
    actions = {action for actions in rights(document).values() for action in actions}
    assert not actions & {"sqs:PurgeQueue", "sqs:ListQueues", "dynamodb:Scan"}
    assert ("sqs:CreateQueue" in actions) is (component == "api")


def test_a_sender_may_send() -> None:
    assert rights(policy(chat_topology("rtchat", "prod"), "realtime")) == {
        f"{SQS}:rtchat-prod-offline-queue": {"sqs:SendMessage", "sqs:GetQueueUrl"}
    }


def test_a_consumer_may_consume_and_bury() -> None:
    allowed = rights(policy(transfers_topology(), "gateway-usdc"))

    assert allowed == {
        f"{SQS}:gateway-usdc.fifo": CONSUMES | {"sqs:GetQueueUrl"},
        f"{SQS}:gateway-usdc-dlq.fifo": {"sqs:SendMessage"},
    }


def test_sec11_a_producer_may_publish_and_nothing_else() -> None:
    topic = f"arn:aws:sns:{REGION}:{ACCOUNT}:events-transfers.fifo"

    assert rights(policy(transfers_topology(), "producer")) == {topic: {"sns:Publish"}}
    assert producer_policy(topic) == policy(transfers_topology(), "producer")


def test_sec11_a_consumer_of_one_queue_has_exactly_four_actions_on_it() -> None:
    queue = f"{SQS}:gateway-usdc.fifo"

    [statement] = consumer_policy(queue)["Statement"]

    assert (set(statement["Action"]), statement["Resource"]) == (CONSUMES, [queue])
    assert statement in policy(transfers_topology(), "gateway-usdc")["Statement"]
    assert rights(consumer_policy(queue, kms_key=KMS)) == {queue: CONSUMES, KMS: {"kms:Decrypt"}}


def test_an_operator_may_move_dead_letters_back() -> None:
    allowed = rights(policy(chat_topology("rtchat", "prod"), "operator"))

    move = {"sqs:StartMessageMoveTask", "sqs:CancelMessageMoveTask", "sqs:ListMessageMoveTasks"}
    assert allowed[f"{SQS}:rtchat-prod-push-dlq"] == move | CONSUMES | {"sqs:GetQueueUrl"}
    assert allowed[f"{SQS}:rtchat-prod-push-queue"] == {
        "sqs:SendMessage",
        "sqs:GetQueueUrl",
        "sqs:GetQueueAttributes",
    }


def test_an_observer_may_count() -> None:
    allowed = rights(policy(chat_topology("rtchat", "prod"), "dashboard"))

    assert len(allowed) == 4
    assert set.union(*allowed.values()) == {"sqs:GetQueueAttributes", "sqs:GetQueueUrl"}


def test_a_reader_of_a_table_may_query_its_indexes() -> None:
    table = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/events-dev"

    allowed = rights(policy(task_topology("dev"), "dev-worker"))

    reads = {"dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"}
    writes = {f"dynamodb:{verb}Item" for verb in ("Put", "Update", "Delete", "BatchWrite", "ConditionCheck")}
    assert allowed[table] == reads | writes
    assert all(allowed[f"{table}/index/GSI{number}-index"] == reads for number in range(1, 8))
    assert allowed["arn:aws:s3:::events-dev-overflow-123456789012/*"] == {"s3:GetObject", "s3:PutObject"}
    assert allowed[f"arn:aws:events:{REGION}:{ACCOUNT}:event-bus/events-dev"] == {"events:PutEvents"}


def test_a_function_may_read_what_calls_it_and_write_its_own_log() -> None:
    allowed = rights(policy(agents_topology(), "aggregator"))

    stream = f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/agent-events"
    log = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/lambda/aggregator:*"
    assert {"kinesis:GetRecords", "kinesis:GetShardIterator"} <= allowed[stream]
    assert allowed[log] == {"logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"}
    assert allowed["*"] == {"kinesis:ListStreams"}


def test_the_api_of_agents_puts_events_and_makes_their_queues() -> None:
    allowed = rights(policy(agents_topology(), "api"))

    assert allowed[f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/agent-events"] == {
        "kinesis:PutRecord",
        "kinesis:PutRecords",
    }
    assert {"sqs:CreateQueue", "sqs:DeleteQueue", "sqs:ReceiveMessage"} <= allowed[f"{SQS}:agents-*.fifo"]


def test_a_key_is_opened_for_those_who_need_it() -> None:
    topology = Topology(
        "secrets",
        (QueueDecl(QueueSpec("secrets"), encryption=KMS),),
        (Component("writer", sends=("secrets",)), Component("reader", consumes=("secrets",)), Component("idle")),
    )

    assert rights(policy(topology, "writer"))[KMS] == {"kms:GenerateDataKey", "kms:Decrypt"}
    assert rights(policy(topology, "reader"))[KMS] == {"kms:Decrypt"}
    assert policy(topology, "idle")["Statement"] == []


def test_metrics_are_put_into_one_namespace_only() -> None:
    topology = Topology("shop", (), (Component("app", measures="Postroad"),))

    [statement] = policy(topology, "app")["Statement"]

    assert statement["Action"] == ["cloudwatch:PutMetricData"]
    assert statement["Condition"] == {"StringEquals": {"cloudwatch:namespace": "Postroad"}}


def test_another_partition_is_in_every_arn() -> None:
    document = iam_policy(transfers_topology(), "producer", region="cn-north-1", account=ACCOUNT, partition="aws-cn")

    assert [arn for arn, _ in resources(document)] == [f"arn:aws-cn:sns:cn-north-1:{ACCOUNT}:events-transfers.fifo"]


@pytest.mark.parametrize("partition", ["*", "", "aws:", "azure"])
def test_a_wild_partition_is_refused(partition: str) -> None:
    with pytest.raises(TopologyError) as refused:
        iam_policy(chat_topology("rtchat", "prod"), "workers", region=REGION, account=ACCOUNT, partition=partition)

    assert refused.value.field == "partition"


@pytest.mark.parametrize(
    ("component", "region", "account", "field"),
    [
        ("worker", REGION, ACCOUNT, "component"),
        ("workers", "*", ACCOUNT, "region"),
        ("workers", "", ACCOUNT, "region"),
        ("workers", REGION, "*", "account"),
        ("workers", REGION, "12345", "account"),
        ("workers", REGION, 123456789012, "account"),
    ],
)
def test_what_would_widen_or_miss_the_policy_is_refused(component: str, region: str, account: Any, field: str) -> None:
    with pytest.raises(TopologyError) as refused:
        iam_policy(chat_topology("rtchat", "prod"), component, region=region, account=account)

    assert refused.value.field == field
    assert refused.value.nearest == ("workers" if field == "component" else None)
