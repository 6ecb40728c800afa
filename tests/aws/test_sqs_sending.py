"""How SQSQueue sends: in batches that fit, in order where there is one, and again what failed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.aws.endpoint import Answer, Endpoint, all_sent, error, sent_but

from postroad.connections.aws import AwsConnection
from postroad.errors import HeldBack, InvalidMessage, OutcomeUnknown, QueueNotFound, Unavailable
from postroad.queues import OutgoingMessage
from postroad.queues.sqs import SQSQueue, SQSQueues

SERVICE_FAULT = {"Code": "InternalError", "Message": "try again", "SenderFault": False}
SENDER_FAULT = {"Code": "InvalidMessageContents", "Message": "bad", "SenderFault": True}


@pytest.fixture
def standard(scripted: Endpoint, scripted_aws: AwsConnection) -> SQSQueue:
    scripted.on("GetQueueAttributes", Answer({"Attributes": {}}))
    return SQSQueues(scripted_aws).queue(f"{scripted.url}/123456789012/orders")


@pytest.fixture
def fifo(scripted: Endpoint, scripted_aws: AwsConnection) -> SQSQueue:
    scripted.on("GetQueueAttributes", Answer({"Attributes": {}}))
    return SQSQueues(scripted_aws).queue(f"{scripted.url}/123456789012/orders.fifo")


def ordered(group: str, *bodies: str) -> list[OutgoingMessage]:
    return [OutgoingMessage(body, group=group, dedup_id=f"dedup-{body}") for body in bodies]


def sent_bodies(scripted: Endpoint) -> list[list[str]]:
    return [[entry["MessageBody"] for entry in call["Entries"]] for call in scripted.calls("SendMessageBatch")]


def test_a_batch_is_split_at_ten_entries(scripted: Endpoint, standard: SQSQueue) -> None:
    scripted.on("SendMessageBatch", all_sent)

    results = standard.send([OutgoingMessage(str(n)) for n in range(23)])

    assert [len(bodies) for bodies in sent_bodies(scripted)] == [10, 10, 3]
    assert [result.message_id for result in results] == [f"id-{n}" for n in range(23)]


def test_a_batch_is_split_at_a_mebibyte_with_attributes_counted(scripted: Endpoint, standard: SQSQueue) -> None:
    scripted.on("SendMessageBatch", all_sent)
    half = OutgoingMessage("x" * 524_278, {"k": "v" * 3})
    more = OutgoingMessage("x" * 524_278, {"k": "v" * 4})

    standard.send([half, half])
    standard.send([half, more])

    assert [len(bodies) for bodies in sent_bodies(scripted)] == [2, 1, 1]


def test_what_is_not_set_is_left_out_and_attributes_are_text(scripted: Endpoint, standard: SQSQueue) -> None:
    scripted.on("SendMessageBatch", all_sent)

    standard.send([OutgoingMessage("plain"), OutgoingMessage("full", {"k": "v"}, delay=1.2)])

    assert scripted.calls("SendMessageBatch")[0]["Entries"] == [
        {"Id": "0", "MessageBody": "plain"},
        {
            "Id": "1",
            "MessageBody": "full",
            "MessageAttributes": {"k": {"DataType": "String", "StringValue": "v"}},
            "DelaySeconds": 2,
        },
    ]


def test_an_entry_that_failed_at_sqs_is_sent_again_alone(scripted: Endpoint, standard: SQSQueue) -> None:
    scripted.on("SendMessageBatch", lambda call: sent_but(call, b=SERVICE_FAULT), all_sent)

    results = standard.send([OutgoingMessage(body) for body in "abc"])

    assert [result.ok for result in results] == [True, True, True]
    assert sent_bodies(scripted) == [["a", "b", "c"], ["b"]]


def test_an_entry_at_fault_itself_is_reported_and_not_repeated(scripted: Endpoint, standard: SQSQueue) -> None:
    scripted.on("SendMessageBatch", lambda call: sent_but(call, b=SENDER_FAULT))

    results = standard.send([OutgoingMessage(body) for body in "abc"])

    assert [result.ok for result in results] == [True, False, True]
    assert isinstance(results[1].error, InvalidMessage)
    assert len(sent_bodies(scripted)) == 1


def test_an_entry_that_keeps_failing_is_unavailable(
    scripted: Endpoint, standard: SQSQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.connections.aws_calls.pause", lambda failures: None)
    scripted.on("SendMessageBatch", lambda call: sent_but(call, b=SERVICE_FAULT))

    results = standard.send([OutgoingMessage("b")])

    assert isinstance(results[0].error, Unavailable)
    assert sent_bodies(scripted) == [["b"]] * 5


def test_an_entry_the_answer_forgets_has_an_unknown_outcome(scripted: Endpoint, standard: SQSQueue) -> None:
    scripted.on("SendMessageBatch", Answer({"Successful": [], "Failed": []}))

    [result] = standard.send([OutgoingMessage("a")])

    assert isinstance(result.error, OutcomeUnknown)


def test_no_call_carries_two_messages_of_one_group(scripted: Endpoint, fifo: SQSQueue) -> None:
    scripted.on("SendMessageBatch", all_sent)

    fifo.send([*ordered("g", "g1", "g2"), *ordered("h", "h1"), *ordered("g", "g3"), *ordered("i", "i1")])

    assert sent_bodies(scripted) == [["g1", "h1", "i1"], ["g2"], ["g3"]]


def test_a_failed_message_holds_back_its_group_and_no_other(scripted: Endpoint, fifo: SQSQueue) -> None:
    scripted.on("SendMessageBatch", lambda call: sent_but(call, g1=SENDER_FAULT))

    results = fifo.send([*ordered("g", "g1", "g2", "g3"), *ordered("h", "h1", "h2")])

    assert [type(result.error) for result in results[:3]] == [InvalidMessage, HeldBack, HeldBack]
    assert [result.ok for result in results[3:]] == [True, True]
    assert sent_bodies(scripted) == [["g1", "h1"], ["h2"]]


def test_a_message_that_is_tried_again_is_not_overtaken_and_keeps_its_dedup_id(
    scripted: Endpoint, fifo: SQSQueue
) -> None:
    scripted.on("SendMessageBatch", lambda call: sent_but(call, g1=SERVICE_FAULT), all_sent)

    results = fifo.send([*ordered("g", "g1", "g2"), *ordered("h", "h1", "h2")])

    assert all(result.ok for result in results)
    assert sent_bodies(scripted) == [["g1", "h1"], ["g1", "h2"], ["g2"]]
    entries = [entry for call in scripted.calls("SendMessageBatch") for entry in call["Entries"]]
    assert [e["MessageDeduplicationId"] for e in entries if e["MessageBody"] == "g1"] == ["dedup-g1"] * 2


def test_a_call_without_answer_leaves_the_rest_unsent(scripted: Endpoint, fifo: SQSQueue) -> None:
    scripted.on("SendMessageBatch", Answer(cut=True))
    messages = [*ordered("g", "g1", "g2"), *(m for n in range(10) for m in ordered(f"h{n}", f"h{n}"))]

    results = fifo.send(messages)

    kinds = [type(result.error) for result in results]
    assert kinds == [OutcomeUnknown, HeldBack, *[OutcomeUnknown] * 9, Unavailable]
    assert len(sent_bodies(scripted)) == 1


def test_sending_to_a_queue_that_is_gone_is_not_found(scripted: Endpoint, standard: SQSQueue) -> None:
    scripted.on("SendMessageBatch", error("QueueDoesNotExist"))

    with pytest.raises(QueueNotFound, match="orders"):
        standard.send([OutgoingMessage("a")])


def test_attributes_are_read_once_and_nothing_is_listed_or_created(
    scripted: Endpoint, scripted_aws: AwsConnection
) -> None:
    scripted.on("GetQueueUrl", Answer({"QueueUrl": f"{scripted.url}/123456789012/orders"}))
    scripted.on("GetQueueAttributes", Answer({"Attributes": {"MaximumMessageSize": "2048"}}))
    scripted.on("SendMessageBatch", all_sent)
    scripted.on("ReceiveMessage", Answer({}))
    queue = SQSQueues(scripted_aws).queue("orders")

    for _ in range(3):
        queue.send([OutgoingMessage("a")])
        queue.receive()

    counts: dict[str, Any] = {}
    for operation, _ in scripted.requests:
        counts[operation] = counts.get(operation, 0) + 1
    assert counts == {"GetQueueUrl": 1, "GetQueueAttributes": 1, "SendMessageBatch": 3, "ReceiveMessage": 3}


def test_a_receiver_by_url_needs_no_other_call(scripted: Endpoint, scripted_aws: AwsConnection) -> None:
    scripted.on("ReceiveMessage", Answer({}))

    SQSQueues(scripted_aws).queue(f"{scripted.url}/123456789012/orders").receive()

    assert [operation for operation, _ in scripted.requests] == ["ReceiveMessage"]


def test_a_sender_needs_no_right_to_read_attributes(scripted: Endpoint, scripted_aws: AwsConnection) -> None:
    scripted.on("GetQueueAttributes", error("AccessDenied", 403))
    scripted.on("SendMessageBatch", all_sent)
    queue = SQSQueues(scripted_aws).queue(f"{scripted.url}/123456789012/orders.fifo")

    [result] = queue.send([OutgoingMessage("a", group="g")])

    assert result.ok
    assert "MessageDeduplicationId" not in scripted.calls("SendMessageBatch")[0]["Entries"][0]
