"""How SQSQueue receives and settles."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.aws.endpoint import Answer, Endpoint, all_sent, error, sent_but

from postroad.connections.aws import AwsConnection
from postroad.errors import NotSupported, PurgeRunning, StaleReceipt, Unavailable
from postroad.queues import Delivery, QueueSpec
from postroad.queues.markers import read_dead
from postroad.queues.sqs import SQSQueue, SQSQueues

POLICY = {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:orders-dlq", "maxReceiveCount": 3}


@pytest.fixture
def queue(scripted: Endpoint, scripted_aws: AwsConnection) -> SQSQueue:
    scripted.on("GetQueueAttributes", attributes)
    return SQSQueues(scripted_aws).queue(f"{scripted.url}/123456789012/orders")


def attributes(call: dict[str, Any]) -> Answer:
    of_orders = {"RedrivePolicy": json.dumps(POLICY)}
    return Answer({"Attributes": of_orders if call["QueueUrl"].endswith("/orders") else {}})


def messages(count: int, **attributes: str) -> Answer:
    system = {"ApproximateReceiveCount": "1", "SentTimestamp": "1893456000000", **attributes}
    raw = [
        {"MessageId": f"m{n}", "ReceiptHandle": f"r{n}", "Body": f"body {n}", "Attributes": system}
        for n in range(count)
    ]
    return Answer({"Messages": raw})


def done(call: dict[str, Any]) -> Answer:
    return Answer({"Successful": [{"Id": entry["Id"]} for entry in call["Entries"]], "Failed": []})


def take(scripted: Endpoint, queue: SQSQueue, count: int = 1, **attributes: str) -> list[Delivery]:
    scripted.on("ReceiveMessage", messages(count, **attributes))
    return queue.receive(max_messages=count)


def test_more_than_ten_are_received_by_several_calls_of_which_only_the_first_waits(
    scripted: Endpoint, queue: SQSQueue
) -> None:
    scripted.on("ReceiveMessage", messages(10), messages(7))

    received = queue.receive(max_messages=35, wait=0.5)

    calls = scripted.calls("ReceiveMessage")
    assert len(received) == 17
    assert [(call["MaxNumberOfMessages"], call["WaitTimeSeconds"]) for call in calls] == [(10, 1), (10, 0)]


def test_what_was_received_is_not_lost_when_a_further_call_fails(scripted: Endpoint, queue: SQSQueue) -> None:
    scripted.on("ReceiveMessage", messages(10), error("InternalError", 500))

    assert len(queue.receive(max_messages=20)) == 10


def test_seconds_are_rounded_up(scripted: Endpoint, queue: SQSQueue) -> None:
    scripted.on("ReceiveMessage", messages(1))
    scripted.on("ChangeMessageVisibilityBatch", done)

    received = queue.receive(visibility=0.2)
    queue.extend(received, seconds=10.01)
    queue.release(received, after=1.5)

    changes = [call["Entries"][0]["VisibilityTimeout"] for call in scripted.calls("ChangeMessageVisibilityBatch")]
    assert scripted.calls("ReceiveMessage")[0]["VisibilityTimeout"] == 1
    assert changes == [11, 2]


def test_without_a_visibility_the_queue_keeps_its_own(scripted: Endpoint, queue: SQSQueue) -> None:
    take(scripted, queue)

    assert "VisibilityTimeout" not in scripted.calls("ReceiveMessage")[0]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("ReceiptHandleIsInvalid", "The input receipt handle is invalid."),
        ("InvalidParameterValue", "Value r0 for parameter ReceiptHandle is invalid. Reason: it has expired."),
        ("MessageNotInflight", "Message is not in flight."),
    ],
)
def test_a_lease_that_is_over_is_a_stale_receipt(scripted: Endpoint, queue: SQSQueue, code: str, words: str) -> None:
    held = take(scripted, queue)
    failed = [{"Id": "0", "Code": code, "Message": words, "SenderFault": True}]
    scripted.on("DeleteMessageBatch", Answer({"Successful": [], "Failed": failed}))

    [result] = queue.ack(held)

    assert isinstance(result.error, StaleReceipt)


def test_an_ack_that_failed_at_sqs_is_tried_again(scripted: Endpoint, queue: SQSQueue) -> None:
    held = take(scripted, queue)
    failed = [{"Id": "0", "Code": "InternalError", "Message": "again", "SenderFault": False}]
    scripted.on("DeleteMessageBatch", Answer({"Successful": [], "Failed": failed}), done)

    assert queue.ack(held)[0].ok


def test_a_message_moved_by_sqs_itself_is_read_as_a_dead_letter(scripted: Endpoint, queue: SQSQueue) -> None:
    source = "arn:aws:sqs:us-east-1:123456789012:payments"

    [letter] = take(scripted, queue, DeadLetterQueueSourceArn=source, ApproximateReceiveCount="4")
    marker = read_dead(letter.attributes)

    assert marker is not None
    assert (marker.source, marker.receives, marker.error, marker.at) == ("payments", 3, None, None)


def test_rejecting_sends_then_deletes(scripted: Endpoint, queue: SQSQueue) -> None:
    held = take(scripted, queue)
    scripted.on("ChangeMessageVisibilityBatch", done)
    scripted.on("SendMessageBatch", all_sent)
    scripted.on("DeleteMessageBatch", done)
    scripted.requests.clear()

    [result] = queue.reject(held, reason="bad")

    operations = [operation for operation, _ in scripted.requests if operation != "GetQueueAttributes"]
    [sent] = scripted.calls("SendMessageBatch")
    assert result.ok
    assert operations == ["ChangeMessageVisibilityBatch", "SendMessageBatch", "DeleteMessageBatch"]
    assert sent["QueueUrl"].endswith("/123456789012/orders-dlq")


def test_a_message_that_cannot_be_buried_is_not_deleted(scripted: Endpoint, queue: SQSQueue) -> None:
    held = take(scripted, queue, 2)
    fault = {"Code": "InvalidMessageContents", "Message": "bad", "SenderFault": True}
    scripted.on("ChangeMessageVisibilityBatch", done)
    scripted.on("SendMessageBatch", lambda call: sent_but(call, **{"body 0": fault}))
    scripted.on("DeleteMessageBatch", done)

    results = queue.reject(held, reason="bad")

    assert [result.ok for result in results] == [False, True]
    [deleted] = scripted.calls("DeleteMessageBatch")
    assert [entry["ReceiptHandle"] for entry in deleted["Entries"]] == ["r1"]


def test_a_stale_rejection_buries_nothing(scripted: Endpoint, queue: SQSQueue) -> None:
    held = take(scripted, queue)
    failed = [{"Id": "0", "Code": "MessageNotInflight", "Message": "over", "SenderFault": True}]
    scripted.on("ChangeMessageVisibilityBatch", Answer({"Successful": [], "Failed": failed}))

    [result] = queue.reject(held, reason="bad")

    assert isinstance(result.error, StaleReceipt)
    assert scripted.calls("SendMessageBatch") == []


def test_peeking_refuses_where_it_could_make_dead_letters(scripted: Endpoint, queue: SQSQueue) -> None:
    scripted.on("ReceiveMessage", messages(2), messages(2))

    with pytest.raises(NotSupported, match="counts as receiving") as refused:
        queue.peek()
    peeked = queue.peek(force=True)

    assert "force=True" in refused.value.remedy
    assert [message.body for message in peeked] == [b"body 0", b"body 1"]
    assert {call["VisibilityTimeout"] for call in scripted.calls("ReceiveMessage")} == {0}


def test_a_purge_that_comes_too_soon_is_refused(scripted: Endpoint, queue: SQSQueue) -> None:
    scripted.on("PurgeQueue", error("PurgeQueueInProgress", 403))

    with pytest.raises(PurgeRunning, match="60 seconds"):
        queue.purge()


def test_a_queue_deleted_a_moment_ago_cannot_be_made_yet(scripted: Endpoint, scripted_aws: AwsConnection) -> None:
    scripted.on("GetQueueUrl", error("QueueDoesNotExist"))
    scripted.on("CreateQueue", error("QueueDeletedRecently"))

    with pytest.raises(Unavailable, match="60 seconds"):
        SQSQueues(scripted_aws).create_queue(QueueSpec("orders"))
