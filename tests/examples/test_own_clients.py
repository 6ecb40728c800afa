"""A client of one's own in the place of boto3's: three methods are enough, whatever they are called with."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from postroad.bus import BusConfig, SQSEventBus
from postroad.sessions import PromptExecuted, PromptResponse


class FakeSQSClient:
    """Keeps messages in a list."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.deleted: list[str] = []

    def send_message(self, **kwargs: Any) -> dict[str, Any]:
        message_id = str(uuid4())
        self.messages.append(
            {"MessageId": message_id, "Body": kwargs["MessageBody"], "ReceiptHandle": f"handle-{message_id}"}
        )
        return {"MessageId": message_id}

    def receive_message(self, **kwargs: Any) -> dict[str, Any]:
        if not self.messages:
            return {"Messages": []}
        return {"Messages": [self.messages.pop(0)]}

    def delete_message(self, **kwargs: Any) -> dict[str, Any]:
        self.deleted.append(kwargs["ReceiptHandle"])
        return {}


def test_a_publish_is_sent_through_it() -> None:
    client = FakeSQSClient()
    bus = SQSEventBus(queue_url="http://fake", client=client)

    result = bus.publish(PromptExecuted("test", "openai", PromptResponse("test")))

    bus.close()
    assert result.ok
    assert len(client.messages) == 1
    assert "PromptExecuted" in client.messages[0]["Body"]


def test_what_it_brings_is_handled_and_deleted() -> None:
    client, seen = FakeSQSClient(), list[object]()
    sender = SQSEventBus(queue_url="http://fake", client=client)
    receiver = SQSEventBus(queue_url="http://fake", client=client, config=BusConfig(wait_time_seconds=0))
    receiver.subscribe(PromptExecuted, seen.append)
    event = PromptExecuted("test", "openai", PromptResponse("test"))
    sender.publish(event)
    handle = client.messages[0]["ReceiptHandle"]

    received = receiver.receive_once()

    sender.close()
    receiver.close()
    assert received == seen == [event]
    assert client.deleted == [handle]
