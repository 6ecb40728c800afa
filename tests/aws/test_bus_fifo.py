"""What a bus on a FIFO queue of SQS sends in one request, and what it says of what failed."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from tests.aws.endpoint import Answer, Endpoint, all_sent
from tests.aws.test_bus_sqs import _far_away, fifo_queue, requests
from tests.bus.vocabulary import QUICK, Placed

from postroad.bus import SQSEventBus
from postroad.connections.aws import AwsConnection
from postroad.errors import NotSent, OutOfOrder
from postroad.queues.sqs import SQSQueue

__all__ = ["_far_away", "fifo_queue", "requests"]

pytestmark = pytest.mark.aws

WAITING = replace(QUICK, wait_time_seconds=1)


@pytest.mark.usefixtures("_far_away")
def test_publishes_of_one_group_share_requests_and_keep_their_order(
    fifo_queue: SQSQueue, aws: AwsConnection, requests: list[str]
) -> None:
    numbers: list[int] = []
    config = replace(WAITING, local_dispatch=False, message_group_id="one")
    with SQSEventBus(queue_url=fifo_queue.url, client=aws.sqs, config=config) as bus:
        bus.subscribe(Placed, lambda event: numbers.append(event.number))
        bus.publish_many([Placed(number) for number in range(100)])
        in_batches = requests.count("SendMessageBatch")
        while len(numbers) < 100:
            bus.receive_once()
        requests.clear()
        threads = [
            threading.Thread(target=lambda: [bus.publish(Placed(-1)) for _ in range(20)], daemon=True)
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert numbers == list(range(100))
    assert in_batches <= 0.11 * 100
    assert requests.count("SendMessageBatch") <= 0.2 * 320


def test_events_behind_a_failed_one_of_their_group_are_reported_and_never_sent_out_of_order(
    scripted: Endpoint, scripted_aws: AwsConnection
) -> None:
    """SQS takes a batch of one group but for its fourth event, for which it is busy."""

    def fourth_fails(parameters: dict[str, Any]) -> Answer:
        entries = parameters["Entries"]
        good = [{"Id": e["Id"], "MessageId": "m", "MD5OfMessageBody": ""} for e in (*entries[:3], *entries[4:])]
        bad = [{"Id": e["Id"], "Code": "InternalError", "SenderFault": False} for e in entries[3:4]]
        return Answer({"Successful": good, "Failed": bad})

    scripted.on("GetQueueAttributes", Answer({"Attributes": {}}))
    scripted.on("SendMessageBatch", fourth_fails, all_sent)
    config = replace(QUICK, message_group_id="one")
    with SQSEventBus(queue_url=f"{scripted.url}/1/orders.fifo", client=scripted_aws.sqs, config=config) as bus:
        results = bus.publish_many([Placed(number) for number in range(12)])

    failures = {number: type(result.errors[0].error) for number, result in enumerate(results) if not result.ok}
    assert failures == {3: OutOfOrder, 10: NotSent, 11: NotSent}
    assert [len(call["Entries"]) for call in scripted.calls("SendMessageBatch")] == [10]


def test_a_batch_of_one_group_that_the_network_ate_is_sent_again_whole(
    scripted: Endpoint, scripted_aws: AwsConnection
) -> None:
    scripted.on("GetQueueAttributes", Answer({"Attributes": {}}))
    scripted.on("SendMessageBatch", Answer(cut=True), all_sent)
    config = replace(QUICK, message_group_id="one")
    with SQSEventBus(queue_url=f"{scripted.url}/1/orders.fifo", client=scripted_aws.sqs, config=config) as bus:
        results = bus.publish_many([Placed(number) for number in range(5)])

    first, second = ([e["MessageDeduplicationId"] for e in c["Entries"]] for c in scripted.calls("SendMessageBatch"))
    assert first == second
    assert all(result.ok for result in results)
