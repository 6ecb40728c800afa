"""Plan, apply, drift and prune on emulated AWS."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse, HeadersDict
from tests.topology.conftest import Aws
from tests.topology.shop import shop

from postroad.errors import PlanChanged, TopologyConflict
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.tasks.messages import ensure_queues
from postroad.topology import (
    Drift,
    IndexDecl,
    QueueDecl,
    TableDecl,
    Topology,
    agents_topology,
    apply,
    bus_topology,
    chat_topology,
    drift,
    evaluate_alarms,
    plan,
    task_topology,
    transfers_topology,
)
from postroad.wiring import connect

pytestmark = pytest.mark.aws
Unique = Callable[[str], str]


def named(topology: Topology, kind: str, ending: str = "") -> str:
    return next(each.name for each in topology.of(kind) if each.name.endswith(ending))


@pytest.mark.parametrize("template", ["chat", "transfers", "bus"])
def test_a_template_is_made_and_a_second_apply_writes_nothing(aws: Aws, unique: Unique, template: str) -> None:
    prefix = unique("t")
    topology = (
        chat_topology(prefix, "prod")
        if template == "chat"
        else (transfers_topology(f"{prefix}-") if template == "transfers" else bus_topology(f"{prefix}-"))
    )

    first = apply(topology, aws.backend)
    calls = aws.calls()
    second = apply(topology, aws.backend)

    assert first.failed == ()
    assert len(first.applied) == len(topology.resources)
    assert second.applied == ()
    assert calls.writes() == {}


def test_a_plan_writes_nothing_and_asks_at_most_three_times_for_each_resource(aws: Aws, unique: Unique) -> None:
    topology = chat_topology(unique("t"), "prod")
    apply(topology, aws.backend)
    calls = aws.calls()

    assert plan(topology, aws.backend).empty

    assert calls.writes() == {}
    assert sum(calls.made.values()) <= 3 * len(topology.resources)


def test_every_kind_is_made_and_found_as_declared(aws: Aws, unique: Unique) -> None:
    topology = shop(unique("t"))

    done = apply(topology, aws.backend)

    assert done.failed == ()
    assert len(done.applied) == len(topology.resources)
    assert drift(topology, aws.backend) == ()
    assert apply(topology, aws.backend).applied == ()


def test_what_an_endpoint_never_tells_is_named_and_not_set_again_and_again(aws: Aws, unique: Unique) -> None:
    topology = chat_topology(unique("t"), "prod")
    apply(topology, aws.backend)

    found = plan(topology, aws.backend)

    forgotten = [f"queue {each.name}: redrive_allow" for each in topology.of("queue") if each.name.endswith("dlq")]
    tells = aws.client("sqs").get_queue_attributes(
        QueueUrl=aws.client("sqs").get_queue_url(QueueName=named(topology, "queue", "push-dlq"))["QueueUrl"],
        AttributeNames=["All"],
    )["Attributes"]
    assert found.empty
    assert list(found.unverifiable) == ([] if "RedriveAllowPolicy" in tells else forgotten)


def test_messages_flow_from_topic_and_bus_to_the_queue(aws: Aws, unique: Unique) -> None:
    topology = shop(unique("t"))
    apply(topology, aws.backend)

    aws.backend.topic(named(topology, "topic")).publish([OutgoingMessage("let through", {"kind": "a"})])
    aws.backend.topic(named(topology, "topic")).publish([OutgoingMessage("kept out", {"kind": "c"})])
    entry = {"Source": "test", "DetailType": "placed", "Detail": "{}", "EventBusName": named(topology, "bus")}
    aws.client("events").put_events(Entries=[entry])

    queue = aws.backend.queue(named(topology, "queue", "-orders"))
    bodies: list[bytes] = []
    while len(bodies) < 2 and (received := queue.receive(max_messages=10, wait=5)):
        bodies += [each.body for each in received]
    assert b"let through" in bodies
    assert [b'"placed"' in body for body in bodies if body != b"let through"] == [True]


@pytest.mark.parametrize("field", ["visibility", "retention", "receive_wait"])
def test_a_setting_changed_by_hand_is_one_drift_and_apply_changes_that_field_only(
    aws: Aws, unique: Unique, field: str
) -> None:
    topology = chat_topology(unique("t"), "prod")
    apply(topology, aws.backend)
    name = named(topology, "queue", "push-queue")
    other: Any = {field: 3 if field == "receive_wait" else 61}
    aws.backend.update_queue(replace(aws.backend.queue_spec(name), **other))

    [found] = drift(topology, aws.backend)
    done = apply(topology, aws.backend)

    assert (found.kind, found.name, found.field) == ("queue", name, field)
    assert [tuple(action.changes) for action in done.applied] == [(field,)]
    assert drift(topology, aws.backend) == ()


def test_a_deleted_resource_is_a_drift_without_a_field(aws: Aws, unique: Unique) -> None:
    topology = chat_topology(unique("t"), "prod")
    apply(topology, aws.backend)
    alarm = named(topology, "alarm")
    aws.client("cloudwatch").delete_alarms(AlarmNames=[alarm])

    [found] = drift(topology, aws.backend)

    assert (found.name, found.field, found.have) == (alarm, "", None)


@pytest.mark.parametrize(
    "table", [TableDecl("items", "id"), TableDecl("items", "pk", "sk", (IndexDecl("by-kind", "day"),))]
)
def test_other_keys_are_a_replacement_that_has_to_be_allowed(aws: Aws, unique: Unique, table: TableDecl) -> None:
    mark = unique("m")
    apply(Topology(mark, (TableDecl(f"{mark}-items", "pk", "sk", (IndexDecl("by-kind", "kind"),)),)), aws.backend)
    other = Topology(mark, (replace(table, name=f"{mark}-items"),))

    assert [action.verb for action in plan(other, aws.backend).actions] == ["replace"]
    with pytest.raises(TopologyConflict, match="cannot be changed in place"):
        apply(other, aws.backend)
    done = apply(other, aws.backend, allow_replace=True)

    assert done.failed == ()
    assert plan(other, aws.backend).empty


def test_a_table_that_holds_an_item_is_never_replaced(aws: Aws, unique: Unique) -> None:
    name = unique("items")
    apply(Topology(name, (TableDecl(name, "pk"),)), aws.backend)
    dynamodb = aws.client("dynamodb")
    dynamodb.put_item(TableName=name, Item={"pk": {"S": "one"}})

    with pytest.raises(TopologyConflict, match="holds an item"):
        apply(Topology(name, (TableDecl(name, "id"),)), aws.backend, allow_replace=True)

    assert dynamodb.scan(TableName=name)["Count"] == 1


def test_functions_without_code_are_skipped_and_made_when_there_is_some(aws: Aws, unique: Unique, code: str) -> None:
    topology = task_topology(unique("t"))

    without = apply(topology, aws.backend)
    given = apply(topology, aws.backend, code=code)
    calls = aws.calls()
    again = apply(topology, aws.backend, code=code)

    assert {(action.kind, action.reason) for action in without.skipped} == {("function", "no code given")}
    assert without.failed == given.failed == ()
    assert {(action.verb, action.kind) for action in given.applied} == {("create", "function"), ("update", "rule")}
    assert again.applied == ()
    assert calls.writes() == {}


def test_a_function_runs_with_its_rights_and_is_called_by_its_queue(aws: Aws, unique: Unique, code: str) -> None:
    stage = unique("t")
    apply(task_topology(stage), aws.backend, code=code)
    functions = aws.client("lambda")
    name = f"{stage}-eventbridge-dlq-alert"

    configuration = functions.get_function(FunctionName=name)["Configuration"]
    [mapping] = functions.list_event_source_mappings(FunctionName=name)["EventSourceMappings"]
    rights = aws.client("iam").get_role_policy(RoleName=name, PolicyName="postroad")["PolicyDocument"]

    assert configuration["Environment"]["Variables"]["ARCHIVE_QUEUE_URL"].endswith(f"{stage}-eventbridge-archive")
    assert (mapping["BatchSize"], mapping["EventSourceArn"].split(":")[-1]) == (1, f"{stage}-eventbridge-target-dlq")
    assert {action for each in rights["Statement"] for action in each["Action"]} >= {"sqs:ReceiveMessage"}


def test_a_variable_that_the_deployer_filled_is_kept(aws: Aws, unique: Unique, code: str) -> None:
    stage = unique("t")
    topology = task_topology(stage)
    apply(topology, aws.backend, code=code)
    functions = aws.client("lambda")
    name = f"{stage}-eventbridge-dlq-alert"
    variables = functions.get_function(FunctionName=name)["Configuration"]["Environment"]["Variables"]
    filled = {**variables, "SLACK_WEBHOOK_URL": "https://hooks.slack.com/x", "OTHER": "kept"}
    functions.update_function_configuration(FunctionName=name, Environment={"Variables": filled}, Timeout=31)

    done = apply(topology, aws.backend, code=code)

    assert [tuple(action.changes) for action in done.applied] == [("timeout",)]
    after = functions.get_function(FunctionName=name)["Configuration"]["Environment"]["Variables"]
    assert (after["SLACK_WEBHOOK_URL"], after["OTHER"]) == ("https://hooks.slack.com/x", "kept")


def test_the_agents_stream_calls_their_functions(aws: Aws, unique: Unique, code: str) -> None:
    topology = agents_topology(f"{unique('t')}-")

    done = apply(topology, aws.backend, code=code)

    assert done.failed == ()
    assert apply(topology, aws.backend, code=code).applied == ()


def test_prune_removes_what_carries_the_topologys_tag_and_nothing_else(aws: Aws, unique: Unique) -> None:
    topology = shop(unique("t"))
    other = unique("other")
    aws.backend.create_queue(QueueSpec(other))
    apply(topology, aws.backend)
    kept = [each for each in topology.resources if each.kind in ("table", "bucket")]

    done = apply(Topology(topology.name, ()), aws.backend, prune=True)

    removed = {action.kind for action in done.applied}
    assert done.failed == ()
    # Not every emulator tells the tags of rules and alarms to whoever asks for all of them.
    assert {"queue", "topic", "bus"} <= removed
    assert not removed & {"table", "bucket"}
    assert other in aws.backend.queues()
    assert named(topology, "queue") not in aws.backend.queues()
    assert drift(Topology(topology.name, tuple(kept)), aws.backend) == ()


def test_prune_keeps_a_queue_with_messages(aws: Aws, unique: Unique) -> None:
    name = unique("orders")
    apply(Topology(name, (QueueDecl(QueueSpec(name)),)), aws.backend)
    aws.backend.queue(name).send([OutgoingMessage("one")])

    done = apply(Topology(name, ()), aws.backend, prune=True)

    assert done.applied == ()
    assert [action.reason for action in done.skipped if action.name == name] == ["it holds messages"]


# ministack does not list the sources of a dead-letter queue.
@pytest.mark.parametrize("aws", ["moto"], indirect=True)
def test_prune_keeps_the_dead_letters_of_queues_that_stay(aws: Aws, unique: Unique) -> None:
    name, dead = unique("orders"), unique("dead")
    parts = (QueueDecl(QueueSpec(dead, retention=1_209_600)), QueueDecl(QueueSpec(name, dead_letter=dead)))
    apply(Topology(name, parts), aws.backend)
    aws.backend.queue(name).send([OutgoingMessage("one")])

    done = apply(Topology(name, ()), aws.backend, prune=True)

    assert done.applied == ()
    assert {action.name: action.reason for action in done.skipped} == {
        name: "it holds messages",
        dead: f"queue {name!r} has its dead letters there",
    }


def test_a_queue_of_another_topology_keeps_its_owner(aws: Aws, unique: Unique) -> None:
    name = unique("orders")
    apply(Topology(f"{name}-first", (QueueDecl(QueueSpec(name)),)), aws.backend)

    done = apply(Topology(f"{name}-second", (QueueDecl(QueueSpec(name, visibility=5)),)), aws.backend)

    assert [tuple(action.changes) for action in done.applied] == [("visibility",)]
    assert apply(Topology(f"{name}-second", ()), aws.backend, prune=True).applied == ()


def test_statements_of_others_in_a_queues_policy_stay(aws: Aws, unique: Unique) -> None:
    topology = shop(unique("t"))
    apply(topology, aws.backend)
    sqs = aws.client("sqs")
    url = sqs.get_queue_url(QueueName=named(topology, "queue", "-orders"))["QueueUrl"]
    theirs = {
        "Sid": "theirs",
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::111122223333:root"},
        "Action": "sqs:SendMessage",
        "Resource": "*",
    }
    policy = {"Version": "2012-10-17", "Statement": [theirs]}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(policy)})

    [found] = drift(topology, aws.backend)
    apply(topology, aws.backend)

    assert found.field == "policy"
    after = json.loads(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"])
    assert theirs in after["Statement"]
    assert len(after["Statement"]) == 4
    assert drift(topology, aws.backend) == ()


def test_a_stale_digest_changes_nothing(aws: Aws, unique: Unique) -> None:
    topology = chat_topology(unique("t"), "prod")
    agreed = plan(topology, aws.backend).digest
    aws.backend.create_queue(QueueSpec(named(topology, "queue", "push-dlq")))
    calls = aws.calls()

    with pytest.raises(PlanChanged):
        apply(topology, aws.backend, expect=agreed)

    assert calls.writes() == {}


def test_one_failure_stops_what_depends_on_it_and_nothing_else(aws: Aws, unique: Unique) -> None:
    mark = unique("t")

    with aws.refusing("kinesis", "CreateStream", "LimitExceededException"):
        first = apply(shop(mark), aws.backend)
    second = apply(shop(mark), aws.backend)

    assert [(action.kind, "LimitExceededException" in why) for action, why in first.failed] == [("stream", True)]
    assert {"queue", "topic", "table", "rule", "alarm"} <= {action.kind for action in first.applied}
    assert second.failed == ()
    assert drift(shop(mark), aws.backend) == ()


def test_alarms_count_what_queues_hold(aws: Aws, unique: Unique) -> None:
    topology = chat_topology(unique("t"), "prod")
    apply(topology, aws.backend)
    aws.backend.queue(named(topology, "queue", "push-dlq")).send([OutgoingMessage("dead")])

    states = {state.name: state.state for state in evaluate_alarms(topology, aws.backend)}

    assert states[named(topology, "alarm", "push-dlq")] == "alarm"
    assert states[named(topology, "alarm", "offline-dlq")] == "ok"
    assert states[named(topology, "alarm", "push-oldest")] == "no_data"


def test_a_drift_says_what_is_wanted_and_what_is_there(aws: Aws, unique: Unique) -> None:
    name = unique("orders")
    aws.backend.create_queue(QueueSpec(name, visibility=5))
    topology = Topology(name, (QueueDecl(QueueSpec(name, visibility=60)),))

    found = drift(topology, aws.backend)

    assert Drift("queue", name, "visibility", 60, 5) in found


def answered(url: str, status: int, body: bytes) -> AWSResponse:
    """What AWS says in the place of doing it."""
    headers: Any = HeadersDict({"Content-Type": "application/x-amz-json-1.0"})
    return AWSResponse(url, status, headers, SimpleNamespace(stream=lambda **_: iter([body])))


def throttle(aws: Aws, share: float) -> None:
    """Answer this share of all calls of the backend's site as AWS does when it is asked too often."""
    chance = random.Random(7)

    def throttled(request: Any, **_: Any) -> AWSResponse | None:
        if chance.random() >= share:
            return None
        body = b"<ErrorResponse><Error><Code>Throttling</Code><Message>Rate exceeded</Message></Error></ErrorResponse>"
        if "X-Amz-Target" in request.headers:
            body = b'{"__type": "ThrottlingException", "message": "Rate exceeded"}'
        return answered(request.url, 400, body)

    site: Any = aws.backend.site()
    for service in ("sqs", "sns", "cloudwatch", "iam", "sts", "events", "dynamodb", "kinesis", "s3"):
        site._connection.client(service).meta.events.register("before-send", throttled)


@pytest.mark.slow
def test_a_throttled_apply_goes_on_and_reports_what_it_did(aws: Aws, unique: Unique) -> None:
    topology = chat_topology(unique("t"), "prod")
    throttle(aws, 0.3)

    result = apply(topology, aws.backend)

    assert result.failed == ()
    assert len(result.applied) == len(topology.resources)


def test_an_alarm_that_may_not_be_measured_has_no_data_and_the_others_are_judged(aws: Aws, unique: Unique) -> None:
    topology = chat_topology(unique("t"), "prod")
    apply(topology, aws.backend)

    def denied(request: Any, **_: Any) -> AWSResponse:
        return answered(request.url, 403, b'{"__type": "AccessDeniedException", "message": "not you"}')

    site: Any = aws.backend.site()
    site._connection.cloudwatch.meta.events.register("before-send", denied)

    states = {state.state for state in evaluate_alarms(topology, aws.backend)}

    assert states == {"ok", "no_data"}


# What a topology adds to a resource of its own: who it belongs to, who may use it, and how it is encrypted.
_OF_A_TOPOLOGY = {"tags", "policy", "encryption"}


def test_what_the_commands_make_is_what_the_topologies_declare(
    moto_url: str, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = unique("st")
    monkeypatch.delenv("EVENTS_TABLE", raising=False)

    with connect(f"aws://eu-north-1?endpoint_url={moto_url}&stage={stage}") as backend:
        backend.agents().provision()
        backend.journal().init()
        ensure_queues(backend)
        found = [*drift(agents_topology(), backend), *drift(task_topology(stage), backend)]

    differing = {(each.kind, each.name, each.field) for each in found if each.field and each.have is not None}
    missing = {(each.kind, each.name) for each in found if not each.field}
    assert {field for _, _, field in differing} <= _OF_A_TOPOLOGY, differing
    assert {kind for kind, _ in missing} <= {"bus", "bucket", "rule", "alarm", "queue"}
    assert {name for kind, name in missing if kind == "queue"} == {
        f"{stage}-eventbridge-target-dlq",
        f"{stage}-eventbridge-archive",
    }
