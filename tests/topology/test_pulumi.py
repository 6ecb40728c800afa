"""The topology as a Pulumi component, built against mocks of the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.environments import environment_with
from tests.sharing import made_once

from postroad.topology import chat_topology, render_cloudformation, transfers_topology

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "topology.md"
ACCOUNT, REGION = "123456789012", "eu-central-1"
Made = dict[str, dict[tuple[str, str], dict[str, Any]]]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Every resource of every program, by program, type and name. Pulumi takes long to import, so it runs once."""

    def make(folder: Path) -> None:
        (folder / "made.json").write_text(output_of(sys.executable))

    return read((made_once(tmp_path_factory, "pulumi", make) / "made.json").read_text())


def output_of(python: str) -> str:
    """What the programs make when that Python runs them, as JSON."""
    command = [python, "-m", "tests.topology.pulumi_engine", ACCOUNT, REGION]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    page = PAGE.read_text()
    done = subprocess.run(command, cwd=ROOT, env=environment, input=page, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(output: str) -> Made:
    programs = json.loads(output)
    return {name: {(kind, each): inputs for kind, each, inputs in resources} for name, resources in programs.items()}


def test_each_declaration_is_one_resource_with_its_name_behind_that_of_the_component(made: Made) -> None:
    topology = chat_topology("rtchat", "prod")

    found = made["chat"]

    assert ("postroad:topology:Topology", "everything") in found
    queues = {name: inputs["name"] for (kind, name), inputs in found.items() if kind == "aws:sqs/queue:Queue"}
    alarms = [name for kind, name in found if kind == "aws:cloudwatch/metricAlarm:MetricAlarm"]
    assert queues == {f"everything-{each.name}": each.name for each in topology.of("queue")}
    assert sorted(alarms) == sorted(f"everything-{each.name}" for each in topology.of("alarm"))
    assert ("aws:sns/topic:Topic", "everything-rtchat-prod-alerts") in found


def test_each_dead_letter_queue_says_who_may_use_it(made: Made) -> None:
    found = made["chat"]

    allowed = found["aws:sqs/redriveAllowPolicy:RedriveAllowPolicy", "everything-rtchat-prod-push-dlq-redrive-allow"]
    assert json.loads(allowed["redriveAllowPolicy"]) == {
        "redrivePermission": "byQueue",
        "sourceQueueArns": [f"arn:aws:sqs:{REGION}:{ACCOUNT}:rtchat-prod-push-queue"],
    }
    assert (
        "aws:sqs/redriveAllowPolicy:RedriveAllowPolicy",
        "everything-rtchat-prod-offline-dlq-redrive-allow",
    ) in found


def test_a_queue_has_the_values_of_the_cloudformation_template(made: Made) -> None:
    topology = transfers_topology()
    template = render_cloudformation(topology)["Resources"]["GatewayUsdcFifoQueue"]["Properties"]

    queue = made["transfers"]["aws:sqs/queue:Queue", "everything-gateway-usdc.fifo"]

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

    policy = json.loads(found["aws:iam/rolePolicy:RolePolicy", "everything-producer-policy"]["policy"])

    [statement] = policy["Statement"]
    assert statement["Resource"] == [f"arn:aws:sns:{REGION}:{ACCOUNT}:events-transfers.fifo"]


def test_functions_rules_tables_and_buckets_are_made(made: Made) -> None:
    found = made["tasks"]

    alert = found["aws:lambda/function:Function", "everything-dev-eventbridge-dlq-alert"]
    assert alert["s3Bucket"] == "code"
    assert alert["environment"]["variables"]["ARCHIVE_QUEUE_URL"] == "https://sqs/dev-eventbridge-archive"
    assert found["aws:dynamodb/table:Table", "everything-events-dev"]["ttl"] == {
        "attributeName": "ttl",
        "enabled": True,
    }
    bucket = found["aws:s3/bucket:Bucket", "everything-events-dev-overflow-${AWS::AccountId}"]
    assert bucket["bucket"] == f"events-dev-overflow-{ACCOUNT}"
    target = found["aws:cloudwatch/eventTarget:EventTarget", "everything-dev-save-event-to-dynamo-target"]
    assert target["targetId"] == "dev-SaveEventToDynamo"
    assert target["deadLetterConfig"]["arn"].endswith(":dev-eventbridge-target-dlq")


def test_a_stream_of_a_table_calls_its_function(made: Made) -> None:
    found = made["agents"]

    trigger = found["aws:lambda/eventSourceMapping:EventSourceMapping", "everything-publisher-table-SubscriberEvents"]
    assert trigger["eventSourceArn"] == "arn:stream:SubscriberEvents"
    assert (trigger["bisectBatchOnFunctionError"], trigger["maximumRetryAttempts"]) == (True, -1)


def test_the_buses_of_agents_deduplicate_by_group(made: Made) -> None:
    found = made["bus"]

    assert found["aws:sqs/queue:Queue", "everything-agent-control.fifo"]["deduplicationScope"] == "messageGroup"
    assert "fifoQueue" not in found["aws:sqs/queue:Queue", "everything-agent-telemetry"]


def test_two_topologies_stand_in_one_stack(made: Made) -> None:
    roles = {name: inputs["name"] for (kind, name), inputs in made["two"].items() if kind == "aws:iam/role:Role"}

    assert roles["prod-workers"] == "rtchat-prod-workers"
    assert roles["dev-workers"] == "rtchat-dev-workers"


def test_account_and_region_are_those_of_the_provider_that_the_component_was_given(made: Made) -> None:
    queue = made["elsewhere"]["aws:sqs/queue:Queue", "everything-gateway-usdc.fifo"]

    assert json.loads(queue["redrivePolicy"])["deadLetterTargetArn"].startswith(f"arn:aws:sqs:us-east-2:{ACCOUNT}:")


def test_the_program_of_the_documentation_runs(made: Made) -> None:
    found = made["page"]

    assert ("postroad:topology:Topology", "chat") in found
    assert found["aws:sqs/queue:Queue", "chat-rtchat-prod-push-queue"]["name"] == "rtchat-prod-push-queue"


@pytest.mark.long
def test_the_oldest_versions_that_are_declared_make_the_same(made: Made) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    oldest = [requirement.replace(">=", "==") for requirement in extras["pulumi"]]

    python = environment_with("pulumi", oldest)

    assert read(output_of(str(python))) == made
