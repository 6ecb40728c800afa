"""Redrive by SQS's own move tasks, which no emulator has: calls as AWS documents them, on a scripted endpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.aws.endpoint import Answer, Endpoint, all_sent, error, sent_but

from postroad.connections.aws import AwsConnection
from postroad.errors import AmbiguousSource, InvalidInput, NotSupported, QueueNotFound, RedriveRunning
from postroad.operations import AuditLog, Match, redrive, redrive_tasks
from postroad.queues import Queue, QueueSpec
from postroad.queues.sqs import SQSQueues

pytestmark = pytest.mark.aws

ARN = "arn:aws:sqs:us-east-1:123456789012:"
RUNNING = {
    "TaskHandle": "handle-1",
    "Status": "RUNNING",
    "SourceArn": f"{ARN}jobs-dlq",
    "ApproximateNumberOfMessagesMoved": 3,
    "ApproximateNumberOfMessagesToMove": 8,
}


class Account:
    """The queues behind the scripted endpoint, with an audit file."""

    def __init__(self, connection: AwsConnection) -> None:
        self._queues = SQSQueues(connection)

    def queue(self, name: str) -> Queue:
        return self._queues.queue(name)

    def queue_spec(self, name: str) -> QueueSpec:
        return self._queues.queue_spec(name)

    def queues(self) -> list[str]:
        return self._queues.queues()

    def sources(self, dead_letters: str) -> list[str]:
        return self._queues.sources(dead_letters)

    def audit_log(self) -> AuditLog:
        return AuditLog()


@pytest.fixture
def account(scripted: Endpoint, scripted_aws: AwsConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("POSTROAD_AUDIT_LOG", str(tmp_path / "audit.jsonl"))
    scripted.on("GetQueueUrl", lambda call: Answer({"QueueUrl": f"{scripted.url}/123456789012/{call['QueueName']}"}))
    scripted.on(
        "ListDeadLetterSourceQueues",
        lambda call: Answer(
            {"queueUrls": [f"{scripted.url}/123456789012/jobs"] if call["QueueUrl"].endswith("/jobs-dlq") else []}
        ),
    )
    scripted.on("GetQueueAttributes", attributes)
    scripted.on("StartMessageMoveTask", Answer({"TaskHandle": "handle-1"}))
    scripted.on("ListMessageMoveTasks", Answer({"Results": []}))
    scripted.on("ReceiveMessage", Answer({"Messages": []}))
    return Account(scripted_aws)


def attributes(call: dict[str, Any]) -> Answer:
    name = call["QueueUrl"].rpartition("/")[2]
    attributes = {"QueueArn": ARN + name, "ApproximateNumberOfMessages": "8"}
    if name == "jobs":
        attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": f"{ARN}jobs-dlq", "maxReceiveCount": 3})
    if name == "jobs-dlq":
        policy = {"redrivePermission": "byQueue", "sourceQueueArns": [f"{ARN}jobs"]}
        attributes["RedriveAllowPolicy"] = json.dumps(policy)
    return Answer({"Attributes": attributes})


def letters(*bodies: str, **system: str) -> Answer:
    return Answer(
        {
            "Messages": [
                {"MessageId": f"m-{body}", "ReceiptHandle": f"r-{body}", "Body": body, "Attributes": system}
                for body in bodies
            ]
        }
    )


def done(call: dict[str, Any]) -> Answer:
    return Answer({"Successful": [{"Id": entry["Id"]} for entry in call["Entries"]], "Failed": []})


def test_a_whole_queue_is_moved_by_sqs_to_the_only_queue_that_names_it(scripted: Endpoint, account: Any) -> None:
    report = redrive(account, "jobs-dlq", reason="mended")

    assert (report.status, report.task_handle, report.moved) == ("native", "handle-1", 0)
    assert report.destinations == {"jobs": 8}
    assert scripted.calls("StartMessageMoveTask") == [{"SourceArn": f"{ARN}jobs-dlq", "DestinationArn": f"{ARN}jobs"}]
    start, end = AuditLog().read()
    assert (start.detail["reason"], end.detail["task_handle"]) == ("mended", "handle-1")


@pytest.mark.parametrize(("rate", "per_second"), [(0.5, 1), (1, 1), (20.9, 20), (9_000, 500)])
def test_the_rate_is_rounded_down_and_within_what_sqs_takes(
    scripted: Endpoint, account: Any, rate: float, per_second: int
) -> None:
    redrive(account, "jobs-dlq", to="other", rate=rate)

    [call] = scripted.calls("StartMessageMoveTask")
    assert call["DestinationArn"] == f"{ARN}other"
    assert call["MaxNumberOfMessagesPerSecond"] == per_second


def test_a_task_that_runs_already_is_told(scripted: Endpoint, account: Any) -> None:
    scripted.on("StartMessageMoveTask", error("UnsupportedOperation", message="There is already a task running."))
    scripted.on("ListMessageMoveTasks", Answer({"Results": [RUNNING]}))

    with pytest.raises(RedriveRunning, match="3 moved"):
        redrive(account, "jobs-dlq")

    assert "RedriveRunning" in list(AuditLog().read())[-1].detail["error"]


def test_a_start_that_was_not_answered_is_looked_for(scripted: Endpoint, account: Any) -> None:
    scripted.on("StartMessageMoveTask", Answer(cut=True))
    scripted.on("ListMessageMoveTasks", Answer({"Results": [RUNNING]}))

    assert redrive(account, "jobs-dlq").task_handle == "handle-1"


@pytest.mark.parametrize(
    ("start", "listed"),
    [
        (error("InvalidAction"), error("InvalidAction")),
        (Answer(status=500), Answer(status=500)),
        (error("InvalidParameterValue", message="Source is not a dead-letter queue"), Answer({"Results": []})),
    ],
)
def test_where_sqs_does_not_move_we_do(scripted: Endpoint, account: Any, start: Answer, listed: Answer) -> None:
    scripted.on("StartMessageMoveTask", start)
    scripted.on("ListMessageMoveTasks", listed)
    scripted.on("ReceiveMessage", letters("a", "b"), Answer({"Messages": []}))
    scripted.on("SendMessageBatch", all_sent)
    scripted.on("DeleteMessageBatch", done)

    report = redrive(account, "jobs-dlq", to="jobs")

    assert (report.status, report.moved, report.destinations) == ("done", 2, {"jobs": 2})
    [sent] = scripted.calls("SendMessageBatch")
    assert {entry["MessageAttributes"]["Redrive"]["StringValue"] for entry in sent["Entries"]} == {f"1:{report.run_id}"}


@pytest.mark.parametrize(
    "options", [{"native": False}, {"limit": 1}, {"match": Match(key="k")}, {"canary": 1, "canary_wait": 0}]
)
def test_what_sqs_cannot_choose_it_is_not_asked_to_move(
    scripted: Endpoint, account: Any, options: dict[str, Any]
) -> None:
    redrive(account, "jobs-dlq", **options)

    assert scripted.calls("StartMessageMoveTask") == []


def test_native_is_refused_where_it_cannot_be(scripted: Endpoint, account: Any) -> None:
    scripted.on("StartMessageMoveTask", error("InvalidAction"))
    scripted.on("ListMessageMoveTasks", error("InvalidAction"))

    with pytest.raises(NotSupported):
        redrive(account, "jobs-dlq", native=True)
    with pytest.raises(NotSupported):
        redrive(account, "jobs-dlq", native=True, limit=1)
    with pytest.raises(InvalidInput):
        redrive(account, "jobs-dlq", to="jobs-dlq")

    assert scripted.calls("SendMessageBatch") == []


def test_the_tasks_that_sqs_remembers_are_listed(scripted: Endpoint, account: Any) -> None:
    over = {"Status": "COMPLETED", "ApproximateNumberOfMessagesMoved": 8}
    scripted.on("ListMessageMoveTasks", Answer({"Results": [RUNNING, over]}), error("InvalidAction"))

    tasks = redrive_tasks(account, "jobs-dlq")

    assert [(task.task_handle, task.status, task.moved, task.to_move) for task in tasks] == [
        ("handle-1", "RUNNING", 3, 8),
        (None, "COMPLETED", 8, None),
    ]
    assert redrive_tasks(account, "jobs-dlq") == []


def test_who_may_not_list_queues_finds_the_source_in_the_dead_letters_own_policy(
    scripted: Endpoint, account: Any
) -> None:
    scripted.on("ListDeadLetterSourceQueues", error("AccessDenied", 403))

    assert redrive(account, "jobs-dlq").destinations == {"jobs": 8}


def test_a_queue_that_nobody_names_is_refused(scripted: Endpoint, account: Any) -> None:
    with pytest.raises(AmbiguousSource):
        redrive(account, "other")


def test_the_source_that_sqs_itself_tells_goes_before_the_only_one(scripted: Endpoint, account: Any) -> None:
    scripted.on(
        "ReceiveMessage", letters("a", DeadLetterQueueSourceArn=f"{ARN}other"), letters("b"), Answer({"Messages": []})
    )
    scripted.on("SendMessageBatch", all_sent)
    scripted.on("DeleteMessageBatch", done)

    report = redrive(account, "jobs-dlq", native=False)

    assert report.destinations == {"other": 1, "jobs": 1}


def test_a_message_without_a_destination_refuses_the_run_or_is_left_once_something_moved(
    scripted: Endpoint, account: Any
) -> None:
    scripted.on(
        "GetQueueUrl",
        lambda call: (
            error("QueueDoesNotExist")
            if call["QueueName"] == "gone"
            else Answer({"QueueUrl": f"{scripted.url}/123456789012/{call['QueueName']}"})
        ),
    )
    lost, found = letters("lost", DeadLetterQueueSourceArn=f"{ARN}gone"), letters("found")
    scripted.on("SendMessageBatch", all_sent)
    scripted.on("DeleteMessageBatch", done)
    scripted.on("ChangeMessageVisibilityBatch", done)

    scripted.on("ReceiveMessage", lost)
    with pytest.raises(QueueNotFound):
        redrive(account, "jobs-dlq", native=False)
    refused = len(scripted.calls("SendMessageBatch"))
    scripted.on("ReceiveMessage", *([found] + [lost] * 2 + [Answer({"Messages": []})]))
    report = redrive(account, "jobs-dlq", native=False)

    assert refused == 0
    assert (report.status, report.moved, report.skipped) == ("done", 1, {"no_destination": 1})


def test_entries_that_the_destination_refused_stay_and_are_counted(scripted: Endpoint, account: Any) -> None:
    scripted.on("ReceiveMessage", letters("a", "bad", "c"), Answer({"Messages": []}))
    refused = {"Code": "InvalidMessageContents", "SenderFault": True, "Message": "no"}
    scripted.on("SendMessageBatch", lambda call: sent_but(call, bad=refused))
    scripted.on("DeleteMessageBatch", done)
    scripted.on("ChangeMessageVisibilityBatch", done)

    report = redrive(account, "jobs-dlq", native=False)

    deleted = [entry["ReceiptHandle"] for call in scripted.calls("DeleteMessageBatch") for entry in call["Entries"]]
    given_back = [
        entry["ReceiptHandle"] for call in scripted.calls("ChangeMessageVisibilityBatch") for entry in call["Entries"]
    ]
    assert (report.matched, report.moved, report.skipped["failed"]) == (3, 2, 1)
    assert (deleted, given_back) == (["r-a", "r-c"], ["r-bad"])


def test_a_message_as_large_as_can_be_goes_back_unmarked(scripted: Endpoint, account: Any) -> None:
    scripted.on("ReceiveMessage", letters("x" * 1_048_570), Answer({"Messages": []}))
    scripted.on("SendMessageBatch", all_sent)
    scripted.on("DeleteMessageBatch", done)

    report = redrive(account, "jobs-dlq", native=False)

    [sent] = scripted.calls("SendMessageBatch")
    assert report.moved == 1
    assert "MessageAttributes" not in sent["Entries"][0]


def test_a_run_that_reached_its_limit_gives_back_what_it_held(scripted: Endpoint, account: Any) -> None:
    scripted.on("ReceiveMessage", letters("a"), letters("b"), Answer({"Messages": []}))
    scripted.on("SendMessageBatch", all_sent)
    scripted.on("DeleteMessageBatch", done)
    scripted.on("ChangeMessageVisibilityBatch", done)

    report = redrive(account, "jobs-dlq", limit=1)

    assert (report.status, report.moved) == ("limit", 1)
    [given_back] = scripted.calls("ChangeMessageVisibilityBatch")
    assert [entry["ReceiptHandle"] for entry in given_back["Entries"]] == ["r-b"]


def test_a_canary_that_came_back_on_sqs_leaves_the_rest(scripted: Endpoint, account: Any) -> None:
    scripted.on("SendMessageBatch", all_sent)
    scripted.on("DeleteMessageBatch", done)
    scripted.on("ChangeMessageVisibilityBatch", done)
    scripted.on("ReceiveMessage", letters("a"), lambda _: _returned(scripted))

    report = redrive(account, "jobs-dlq", canary=1, canary_wait=0)

    assert (report.status, report.moved, report.returned) == ("canary_failed", 1, 1)
    assert len(scripted.calls("SendMessageBatch")) == 1


def _returned(scripted: Endpoint) -> Answer:
    """The message that was sent back, dead again."""
    [sent] = scripted.calls("SendMessageBatch")
    marked = sent["Entries"][0]["MessageAttributes"]
    raw = {"MessageId": "m-again", "ReceiptHandle": "r-again", "Body": "a", "MessageAttributes": marked}
    return Answer({"Messages": [raw]})


def test_a_limit_is_looked_for_in_handfuls_and_never_exceeded(scripted: Endpoint, account: Any) -> None:
    scripted.on("ReceiveMessage", letters(*"abcdefghij"), letters("k"), Answer({"Messages": []}))
    scripted.on("SendMessageBatch", all_sent)
    scripted.on("DeleteMessageBatch", done)
    scripted.on("ChangeMessageVisibilityBatch", done)

    report = redrive(account, "jobs-dlq", limit=2)

    assert scripted.calls("ReceiveMessage")[0]["MaxNumberOfMessages"] == 10
    assert (report.status, report.moved, report.matched) == ("limit", 2, 10)


def test_a_throttled_send_is_tried_again_and_what_is_left_is_told(scripted: Endpoint, account: Any) -> None:
    throttled = {"Code": "ThrottlingException", "SenderFault": False, "Message": "slow down"}
    scripted.on("ReceiveMessage", letters("a", "b"), Answer({"Messages": []}))
    scripted.on("SendMessageBatch", lambda call: sent_but(call, b=throttled), all_sent)
    scripted.on("DeleteMessageBatch", done)

    report = redrive(account, "jobs-dlq", native=False)

    assert (report.status, report.moved, report.skipped) == ("done", 2, {})
    assert [len(call["Entries"]) for call in scripted.calls("SendMessageBatch")] == [2, 1]
