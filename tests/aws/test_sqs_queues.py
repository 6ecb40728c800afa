"""Queues on SQS, against ministack."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from postroad.connections.aws import AwsConnection
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.queues.sqs import SQSQueues

pytestmark = pytest.mark.aws


def test_a_message_is_sent_received_and_acked(aws: AwsConnection, unique: Callable[[str], str]) -> None:
    queue = SQSQueues(aws).create_queue(QueueSpec(unique("orders")))

    sent = queue.send([OutgoingMessage("hello", {"EventType": "greeting"})])
    received = queue.receive(wait=1)
    acked = queue.ack(received)

    assert [result.ok for result in sent] == [True]
    assert [(each.body, each.attributes, each.receive_count) for each in received] == [
        (b"hello", {"EventType": "greeting"}, 1)
    ]
    assert [result.ok for result in acked] == [True]
    assert queue.stats().visible == 0
