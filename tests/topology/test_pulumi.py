"""The topology as a Pulumi component, built against mocks of the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from postroad.topology import chat_topology, render_cloudformation, transfers_topology

ACCOUNT, REGION = "123456789012", "eu-central-1"
Made = dict[str, dict[tuple[str, str], dict[str, Any]]]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made() -> Made:
    """Every resource of every template, by template, type and name."""
    command = [sys.executable, "-m", "tests.topology.pulumi_engine", ACCOUNT, REGION]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)
    return {name: {(kind, each): inputs for kind, each, inputs in resources} for name, resources in built.items()}


def test_each_declaration_is_one_resource_of_its_own_name(made: Made) -> None:
    topology = chat_topology("rtchat", "prod")

    found = made["chat"]

    assert ("postroad:topology:Topology", "everything") in found
    queues = [name for kind, name in found if kind == "aws:sqs/queue:Queue"]
    alarms = [name for kind, name in found if kind == "aws:cloudwatch/metricAlarm:MetricAlarm"]
    assert sorted(queues) == sorted(each.name for each in topology.of("queue"))
    assert sorted(alarms) == sorted(each.name for each in topology.of("alarm"))
    assert ("aws:sns/topic:Topic", "rtchat-prod-alerts") in found


def test_each_dead_letter_queue_says_who_may_use_it(made: Made) -> None:
    found = made["chat"]

    allowed = found["aws:sqs/redriveAllowPolicy:RedriveAllowPolicy", "rtchat-prod-push-dlq-redrive-allow"]
    assert json.loads(allowed["redriveAllowPolicy"]) == {
        "redrivePermission": "byQueue",
        "sourceQueueArns": [f"arn:aws:sqs:{REGION}:{ACCOUNT}:rtchat-prod-push-queue"],
    }
    assert ("aws:sqs/redriveAllowPolicy:RedriveAllowPolicy", "rtchat-prod-offline-dlq-redrive-allow") in found


def test_a_queue_has_the_values_of_the_cloudformation_template(made: Made) -> None:
    topology = transfers_topology()
    template = render_cloudformation(topology)["Resources"]["GatewayUsdcFifoQueue"]["Properties"]

    queue = made["transfers"]["aws:sqs/queue:Queue", "gateway-usdc.fifo"]

    assert queue["name"] == template["QueueName"]
    assert queue["visibilityTimeoutSeconds"] == template["VisibilityTimeout"] == 60
    assert queue["messageRetentionSeconds"] == template["MessageRetentionPeriod"]
    assert queue["sqsManagedSseEnabled"] is template["SqsManagedSseEnabled"] is True
    assert queue["fifoQueue"] is template["FifoQueue"] is True
    assert json.loads(queue["redrivePolicy"]) == {
        "deadLetterTargetArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:gateway-usdc-dlq.fifo",
        "maxReceiveCount": template["RedrivePolicy"]["maxReceiveCount"],
    }


def test_a_role_has_exact_arns(made: Made) -> None:
    found = made["transfers"]

    policy = json.loads(found["aws:iam/rolePolicy:RolePolicy", "producer-policy"]["policy"])

    [statement] = policy["Statement"]
    assert statement["Resource"] == [f"arn:aws:sns:{REGION}:{ACCOUNT}:events-transfers.fifo"]


def test_functions_rules_tables_and_buckets_are_made(made: Made) -> None:
    found = made["tasks"]

    alert = found["aws:lambda/function:Function", "dev-eventbridge-dlq-alert"]
    assert alert["s3Bucket"] == "code"
    assert alert["environment"]["variables"]["ARCHIVE_QUEUE_URL"] == "https://sqs/dev-eventbridge-archive"
    assert found["aws:dynamodb/table:Table", "events-dev"]["ttl"] == {"attributeName": "ttl", "enabled": True}
    bucket = found["aws:s3/bucket:Bucket", "events-dev-overflow-${AWS::AccountId}"]
    assert bucket["bucket"] == f"events-dev-overflow-{ACCOUNT}"
    target = found["aws:cloudwatch/eventTarget:EventTarget", "dev-save-event-to-dynamo-target"]
    assert target["targetId"] == "dev-SaveEventToDynamo"
    assert target["deadLetterConfig"]["arn"].endswith(":dev-eventbridge-target-dlq")


def test_a_stream_of_a_table_calls_its_function(made: Made) -> None:
    found = made["agents"]

    trigger = found["aws:lambda/eventSourceMapping:EventSourceMapping", "publisher-SubscriberEvents"]
    assert trigger["eventSourceArn"] == "arn:stream:SubscriberEvents"
    assert (trigger["bisectBatchOnFunctionError"], trigger["maximumRetryAttempts"]) == (True, 5)


def test_the_buses_of_agents_deduplicate_by_group(made: Made) -> None:
    found = made["bus"]

    assert found["aws:sqs/queue:Queue", "agent-control.fifo"]["deduplicationScope"] == "messageGroup"
    assert "fifoQueue" not in found["aws:sqs/queue:Queue", "agent-telemetry"]
