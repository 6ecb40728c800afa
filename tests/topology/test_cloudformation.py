"""The topology as a CloudFormation template."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.topology.shop import shop

from postroad.errors import TopologyError
from postroad.queues import QueueSpec
from postroad.topology import (
    BucketDecl,
    Component,
    QueueDecl,
    Topology,
    agents_topology,
    bus_topology,
    chat_topology,
    render_cloudformation,
    task_topology,
    transfers_topology,
)
from postroad.topology.aws_properties import forms

CFN_LINT = Path(sys.executable).parent / "cfn-lint"
KMS = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
TOPOLOGIES = [
    chat_topology("rtchat", "prod"),
    transfers_topology(),
    task_topology("dev"),
    agents_topology(),
    bus_topology(),
    shop("shop"),
    Topology("encrypted", (QueueDecl(QueueSpec("secrets"), encryption=KMS),), (Component("app", sends=("secrets",)),)),
    Topology("empty-role", (BucketDecl("blobs-of-ours"),), (Component("idle"),)),
]


def resources(template: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    found = template["Resources"].items()
    return {name: resource["Properties"] for name, resource in found if resource["Type"] == kind}


def statements(document: Any) -> Iterator[dict[str, Any]]:
    yield from document["Statement"]


@pytest.mark.slow
def test_cfn_lint_finds_nothing(tmp_path: Path) -> None:
    for topology in TOPOLOGIES:
        (tmp_path / f"{topology.name}.json").write_text(json.dumps(render_cloudformation(topology)))

    done = subprocess.run([CFN_LINT, *sorted(tmp_path.glob("*.json"))], capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)
def test_resources_have_their_declared_names(topology: Topology) -> None:
    template = render_cloudformation(topology)

    def named(kind: str, key: str) -> set[str]:
        return {properties[key] for properties in resources(template, kind).values()}

    assert named("AWS::SQS::Queue", "QueueName") == {each.name for each in topology.of("queue")}
    assert named("AWS::SNS::Topic", "TopicName") == {each.name for each in topology.of("topic")}
    assert named("AWS::DynamoDB::Table", "TableName") == {each.name for each in topology.of("table")}
    assert named("AWS::IAM::Role", "RoleName") == {component.role_name for component in topology.components}
    assert named("AWS::Lambda::Function", "FunctionName") == {each.name for each in topology.of("function")}


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)
def test_each_queue_tells_its_url(topology: Topology) -> None:
    template = render_cloudformation(topology)

    queues = resources(template, "AWS::SQS::Queue")

    assert template.get("Outputs", {}).keys() == {f"{name}Url" for name in queues}
    assert all(template["Outputs"][f"{name}Url"]["Value"] == {"Ref": name} for name in queues)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)
def test_every_queue_policy_refuses_plain_http_and_names_the_source_of_each_service(topology: Topology) -> None:
    template = render_cloudformation(topology)

    policies = resources(template, "AWS::SQS::QueuePolicy").values()

    assert len(policies) == len(topology.of("queue"))
    for policy in policies:
        deny, *allow = statements(policy["PolicyDocument"])
        assert (deny["Effect"], deny["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})
        assert all("aws:SourceArn" in each["Condition"]["ArnEquals"] for each in allow)
        assert all("Service" in each["Principal"] for each in allow)


def test_tables_and_buckets_are_kept() -> None:
    template = render_cloudformation(task_topology("dev"))

    kept = [
        each for each in template["Resources"].values() if each["Type"] in ("AWS::DynamoDB::Table", "AWS::S3::Bucket")
    ]

    assert len(kept) == 2
    assert all(each["DeletionPolicy"] == each["UpdateReplacePolicy"] == "Retain" for each in kept)


def test_the_dead_letters_of_rules_may_be_sent_by_those_rules_only() -> None:
    template = render_cloudformation(task_topology("dev"))

    policy = resources(template, "AWS::SQS::QueuePolicy")["DevEventbridgeTargetDlqQueuePolicy"]

    _, *allow = statements(policy["PolicyDocument"])
    assert {each["Principal"]["Service"] for each in allow} == {"events.amazonaws.com"}
    sources = [each["Condition"]["ArnEquals"]["aws:SourceArn"]["Fn::Sub"] for each in allow]
    assert sorted(source.rpartition(":")[2] for source in sources) == [
        "rule/dev-health-check",
        "rule/events-dev/dev-dispatcher",
        "rule/events-dev/dev-save-event-to-dynamo",
    ]


def test_a_rule_names_its_bus_literally_and_comes_after_it() -> None:
    rule = render_cloudformation(task_topology("dev"))["Resources"]["DevSaveEventToDynamoRule"]

    assert rule["Properties"]["EventBusName"] == "events-dev"
    assert "EventsDevBus" in rule["DependsOn"]


def test_code_is_a_parameter_where_there_are_functions() -> None:
    with_functions = render_cloudformation(agents_topology())
    without = render_cloudformation(transfers_topology())

    assert with_functions["Parameters"].keys() == {"CodeBucket", "CodeKey"}
    assert "Parameters" not in without


def test_what_the_deployer_fills_is_a_parameter_that_is_not_shown() -> None:
    template = render_cloudformation(task_topology("dev"))

    assert template["Parameters"]["SlackWebhookUrl"]["NoEcho"] is True
    function = template["Resources"]["DevEventbridgeDlqAlertFunction"]["Properties"]
    assert function["Environment"]["Variables"] == {
        "SLACK_WEBHOOK_URL": {"Ref": "SlackWebhookUrl"},
        "ARCHIVE_QUEUE_URL": {"Fn::Sub": "${DevEventbridgeArchiveQueue}"},
    }


def test_a_function_that_fails_leaves_the_event_in_the_rules_dead_letters() -> None:
    template = render_cloudformation(task_topology("dev"))

    failures = resources(template, "AWS::Lambda::EventInvokeConfig").values()

    ends = [each["DestinationConfig"]["OnFailure"]["Destination"]["Fn::Sub"] for each in failures]
    assert len(ends) == 3
    assert all(end.endswith(":dev-eventbridge-target-dlq") for end in ends)


def test_two_names_that_look_alike_have_ids_of_their_own() -> None:
    topology = Topology("alike", (QueueDecl(QueueSpec("a-b")), QueueDecl(QueueSpec("a_b"))))

    assert len(resources(render_cloudformation(topology), "AWS::SQS::Queue")) == 2


def test_tables_come_before_functions_and_functions_before_rules() -> None:
    template = render_cloudformation(task_topology("dev"))["Resources"]

    assert "EventsDevTable" in template["DevSaveEventToDynamoFunction"]["DependsOn"]
    assert "DevSaveEventToDynamoFunction" in template["DevSaveEventToDynamoRule"]["DependsOn"]
    assert list(template).index("EventsDevTable") < list(template).index("DevSaveEventToDynamoFunction")


def test_a_role_may_be_named_otherwise_than_its_component_and_keeps_its_name_on_paper() -> None:
    topology = Topology.from_json(agents_topology("eu-").to_json())

    roles = resources(render_cloudformation(topology), "AWS::IAM::Role")
    functions = {form.name: form.settings["role"] for form in forms(topology) if form.kind == "function"}

    assert {role["RoleName"] for role in roles.values()} == {"eu-aggregator", "eu-publisher", "eu-sweeper", "eu-api"}
    assert functions["eu-sweeper"].endswith(":role/eu-sweeper")


def test_a_role_that_aws_refuses_or_that_two_components_share_is_an_error() -> None:
    spaces = Topology("shop", (), (Component("api", role="a b"),))
    shared = Topology("shop", (), (Component("api", role="x"), Component("x")))

    with pytest.raises(TopologyError, match="name-invalid: 'a b' is not the name of a role"):
        render_cloudformation(spaces)
    with pytest.raises(TopologyError, match="name-clash"):
        render_cloudformation(shared)


def test_whoever_deploys_may_name_who_gets_the_alarms_by_mail() -> None:
    template = render_cloudformation(chat_topology("rtchat", "prod"))
    subscription = template["Resources"]["RtchatProdAlertsTopicEmail"]

    assert template["Parameters"]["AlertEmail"]["Default"] == ""
    assert subscription["Condition"] == "HasAlertEmail"
    assert subscription["Properties"] == {
        "TopicArn": {"Ref": "RtchatProdAlertsTopic"},
        "Protocol": "email",
        "Endpoint": {"Ref": "AlertEmail"},
    }
    assert template["Conditions"] == {"HasAlertEmail": {"Fn::Not": [{"Fn::Equals": [{"Ref": "AlertEmail"}, ""]}]}}


def test_a_topic_that_no_alarm_notifies_has_no_subscriber_by_mail() -> None:
    template = render_cloudformation(transfers_topology())

    assert "Conditions" not in template
    assert "AlertEmail" not in template.get("Parameters", {})
