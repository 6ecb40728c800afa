"""How many requests a message costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postroad.connections.aws import AwsConnection
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.queues.sqs import SQSQueues

pytestmark = pytest.mark.aws


@pytest.mark.parametrize("fifo", [False, True])
def test_a_message_costs_at_most_a_third_of_a_request_and_a_little(
    aws: AwsConnection, unique: Callable[[str], str], fifo: bool
) -> None:
    queue = SQSQueues(aws).create_queue(QueueSpec(unique("orders") + (".fifo" if fifo else ""), fifo=fifo))
    requests: list[str] = []

    def count(event_name: str, **_: Any) -> None:
        requests.append(event_name)

    aws.sqs.meta.events.register("before-send.sqs", count, unique_id="economy")
    handled = 0
    for batch in range(20):
        queue.send([_message(n, batch, fifo) for n in range(10)])
        received = queue.receive()
        handled += sum(result.ok for result in queue.ack(received))
    aws.sqs.meta.events.unregister("before-send.sqs", unique_id="economy")

    assert handled == 200
    assert len(requests) / handled <= 0.35


def _message(n: int, batch: int, fifo: bool) -> OutgoingMessage:
    return OutgoingMessage("x", group=f"group-{n}", dedup_id=f"{batch}-{n}") if fifo else OutgoingMessage("x")
