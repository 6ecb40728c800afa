"""A client with three methods is enough."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.errors import ConfigurationError, NotSupported, OutcomeUnknown
from postroad.queues import OutgoingMessage
from postroad.queues.sqs import SQSQueue, SQSQueues

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"


class ThreeMethods:
    """Keeps messages in a list, and takes only the parameters that the protocol names."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[str, Any]] = {}
        self.broken = False

    def send_message(
        self,
        QueueUrl: str,
        MessageBody: str,
        MessageAttributes: dict[str, Any] | None = None,
        MessageGroupId: str | None = None,
        MessageDeduplicationId: str | None = None,
    ) -> dict[str, Any]:
        if self.broken:
            raise ConnectionResetError("gone")
        message_id = f"m{len(self.messages)}"
        self.messages[message_id] = {
            "MessageId": message_id,
            "ReceiptHandle": message_id,
            "Body": MessageBody,
            "MessageAttributes": MessageAttributes or {},
        }
        return {"MessageId": message_id}

    def receive_message(
        self,
        QueueUrl: str,
        MaxNumberOfMessages: int = 1,
        WaitTimeSeconds: int = 0,
        VisibilityTimeout: int = 30,
        MessageAttributeNames: list[str] | None = None,
    ) -> dict[str, Any]:
        return {"Messages": list(self.messages.values())[:MaxNumberOfMessages]}

    def delete_message(self, QueueUrl: str, ReceiptHandle: str) -> dict[str, Any]:
        del self.messages[ReceiptHandle]
        return {}


@pytest.fixture
def client() -> ThreeMethods:
    return ThreeMethods()


@pytest.fixture
def queue(client: ThreeMethods) -> SQSQueue:
    return SQSQueues(client).queue(URL)


def test_messages_are_sent_received_and_acked(client: ThreeMethods, queue: SQSQueue) -> None:
    sent = queue.send([OutgoingMessage("a", {"k": "v"}), OutgoingMessage("b")])
    received = queue.receive()
    acked = queue.ack(received)

    assert [result.message_id for result in sent] == ["m0", "m1"]
    assert [(each.body, each.attributes, each.receive_count) for each in received] == [
        (b"a", {"k": "v"}, 1),
        (b"b", {}, 1),
    ]
    assert all(result.ok for result in acked)
    assert client.messages == {}


def test_a_failing_client_has_an_unknown_outcome(client: ThreeMethods, queue: SQSQueue) -> None:
    client.broken = True

    [result] = queue.send([OutgoingMessage("a")])

    assert isinstance(result.error, OutcomeUnknown)


def test_what_it_cannot_do_is_not_supported(queue: SQSQueue) -> None:
    queue.send([OutgoingMessage("a")])

    with pytest.raises(NotSupported, match="get_queue_attributes"):
        queue.stats()
    with pytest.raises(NotSupported):
        queue.reject(queue.receive(), reason="bad")


def test_a_name_needs_a_client_that_can_look_it_up(client: ThreeMethods) -> None:
    with pytest.raises(ConfigurationError, match="orders") as refused:
        SQSQueues(client).queue("orders")

    assert refused.value.remedy == "Give the queue's URL."
