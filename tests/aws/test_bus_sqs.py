"""The bus on an SQS queue, as ministack emulates it and as a scripted endpoint behaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.aws.endpoint import Answer, Endpoint, all_sent, error
from tests.aws.test_sqs_least_client import ThreeMethods
from tests.bus.vocabulary import QUICK, Anything, Placed, Stepped
from tests.memory import memory_blobs
from tests.waiting import eventually

from postroad import QueueSpec
from postroad.bus import (
    CircuitBreakerConfig,
    PublishFailed,
    SQSEventBus,
    SQSEventBusWithCircuitBreaker,
)
from postroad.connections.aws import AwsConnection
from postroad.errors import InvalidInput, MessageTooLarge
from postroad.queues.markers import read_dead
from postroad.queues.sqs import SQSQueue, SQSQueues

pytestmark = pytest.mark.aws

WAITING = replace(QUICK, wait_time_seconds=1)


@pytest.fixture
def queue(aws: AwsConnection, unique: Callable[[str], str]) -> Iterator[SQSQueue]:
    queues = SQSQueues(aws)
    made = queues.create_queue(QueueSpec(unique("bus")))
    yield made
    queues.delete_queue(made.name)


@pytest.fixture
def fifo_queue(aws: AwsConnection, unique: Callable[[str], str]) -> Iterator[SQSQueue]:
    queues = SQSQueues(aws)
    made = queues.create_queue(QueueSpec(unique("bus") + ".fifo", fifo=True))
    yield made
    queues.delete_queue(made.name)


@pytest.fixture
def requests(aws: AwsConnection) -> Iterator[list[str]]:
    """The operations that the shared client was asked for."""
    seen: list[str] = []

    def note(model: Any, **_: Any) -> None:
        seen.append(model.name)

    aws.sqs.meta.events.register("before-call.sqs", note, unique_id="test-requests")
    yield seen
    aws.sqs.meta.events.unregister("before-call.sqs", unique_id="test-requests")


def test_an_event_goes_round_on_the_default_client(queue: SQSQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    seen: list[object] = []
    with (
        SQSEventBus(queue_url=queue.url, config=WAITING) as sender,
        SQSEventBus(queue_url=queue.url, config=WAITING) as receiver,
    ):
        receiver.subscribe(Placed, seen.append)
        receiver.start_receiver()

        result = sender.publish(Placed(3))

        eventually(lambda: seen == [Placed(3)])
        eventually(lambda: queue.stats().in_flight == queue.stats().visible == 0)
    assert (result.ok, result.remote) == (True, "sent")


def test_the_queue_may_come_from_the_environment(
    queue: SQSQueue, aws: AwsConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINK_SQS_QUEUE_URL", "http://localhost/1/other")
    monkeypatch.setenv("POSTROAD_SQS_QUEUE_URL", queue.url)

    with SQSEventBus(client=aws.sqs, config=QUICK) as bus:
        assert bus.publish(Placed()).ok
    assert queue.stats().visible == 1


def test_work_is_shared_among_receivers(queue: SQSQueue, aws: AwsConnection) -> None:
    seen: list[Any] = []
    buses = [SQSEventBus(queue_url=queue.url, client=aws.sqs, config=WAITING) for _ in range(3)]
    for bus in buses[1:]:
        bus.subscribe(Placed, seen.append)
        bus.start_receiver()

    buses[0].publish_many([Placed(number) for number in range(50)])

    eventually(lambda: len(seen) >= 50)
    for bus in buses:
        bus.close()
    assert sorted(event.number for event in seen) == list(range(50))


def test_fifo_is_told_by_the_name_and_order_holds_through_a_failure(fifo_queue: SQSQueue, aws: AwsConnection) -> None:
    seen: list[tuple[str, int]] = []
    failed: list[int] = []

    def handler(event: Stepped) -> None:
        if event.number == 1 and event.session_id == "a" and not failed:
            failed.append(1)
            raise ValueError("once")
        seen.append((event.session_id, event.number))

    config = replace(WAITING, message_group_id="${session_id}", local_dispatch=False, retry_delays_seconds=(0,))
    with SQSEventBus(queue_url=fifo_queue.url, client=aws.sqs, config=config) as bus:
        bus.subscribe(Stepped, handler)
        results = bus.publish_many(Stepped(session, number) for number in range(4) for session in "ab")
        bus.start_receiver()
        eventually(lambda: len(seen) == 8)

    assert all(result.ok for result in results)
    assert [number for session, number in seen if session == "a"] == [0, 1, 2, 3]
    assert [number for session, number in seen if session == "b"] == [0, 1, 2, 3]


def test_poison_goes_to_the_given_dead_letters(
    queue: SQSQueue, aws: AwsConnection, unique: Callable[[str], str]
) -> None:
    letters = SQSQueues(aws).create_queue(QueueSpec(unique("letters")))
    aws.sqs.send_message(QueueUrl=queue.url, MessageBody="not json")

    config = replace(WAITING, dead_letter_queue_url=letters.url)
    with SQSEventBus(queue_url=queue.url, client=aws.sqs, config=config) as bus:
        bus.receive_once()

    (letter,) = letters.receive(wait=1)
    marker = read_dead(letter.attributes)
    assert marker is not None
    assert (letter.body, marker.reason, marker.source) == (b"not json", "undecodable", queue.name)
    assert queue.stats().visible == queue.stats().in_flight == 0


@pytest.mark.parametrize("wrapper", ["sns", "eventbridge"])
def test_wrapped_bodies_are_understood(queue: SQSQueue, aws: AwsConnection, wrapper: str) -> None:
    import json

    with SQSEventBus(queue_url=queue.url, client=aws.sqs, config=WAITING) as bus:
        seen: list[object] = []
        bus.publish(Placed(9))
        (raw,) = queue.receive(wait=1)
        queue.ack([raw])
        wrapped = {
            "sns": {"Type": "Notification", "TopicArn": "arn:aws:sns:x:1:t", "Message": raw.body.decode()},
            "eventbridge": {"detail-type": "x", "source": "s", "detail": json.loads(raw.body)},
        }[wrapper]
        aws.sqs.send_message(QueueUrl=queue.url, MessageBody=json.dumps(wrapped))
        bus.subscribe(Placed, seen.append)

        bus.receive_once()

    assert seen == [Placed(9)]


def test_a_large_event_travels_by_reference(queue: SQSQueue, aws: AwsConnection) -> None:
    event = Anything("x" * 2_000_000)
    seen: list[object] = []
    blobs = memory_blobs()
    with SQSEventBus(queue_url=queue.url, client=aws.sqs, config=WAITING, blobs=blobs) as sender:
        sent = sender.publish(event)
    with SQSEventBus(queue_url=queue.url, client=aws.sqs, config=WAITING, blobs=blobs) as receiver:
        receiver.subscribe(Anything, seen.append)
        receiver.receive_once()

    assert sent.ok
    assert seen == [event]


def test_a_large_event_without_blobs_makes_no_request(queue: SQSQueue, aws: AwsConnection, requests: list[str]) -> None:
    with SQSEventBus(queue_url=queue.url, client=aws.sqs, config=QUICK) as bus:
        result = bus.publish(Anything("x" * 2_000_000))

    assert isinstance(result.errors[0].error, MessageTooLarge)
    assert requests == []


def test_a_lone_publish_is_one_request(queue: SQSQueue, aws: AwsConnection, requests: list[str]) -> None:
    with SQSEventBus(queue_url=queue.url, client=aws.sqs, config=QUICK) as bus:
        bus.publish(Placed())
        requests.clear()

        bus.publish(Placed())

    assert requests == ["SendMessageBatch"]


@pytest.fixture
def _far_away(aws: AwsConnection) -> Iterator[None]:
    """Requests take as long as they do over a network: while one is under way, threads meet at the next."""
    aws.sqs.meta.events.register("before-call.sqs", lambda **_: time.sleep(0.02), unique_id="test-distance")
    yield
    aws.sqs.meta.events.unregister("before-call.sqs", unique_id="test-distance")


@pytest.mark.usefixtures("_far_away")
def test_many_threads_share_requests(queue: SQSQueue, aws: AwsConnection, requests: list[str]) -> None:
    with SQSEventBus(queue_url=queue.url, client=aws.sqs, config=QUICK) as bus:
        bus.publish(Placed())
        requests.clear()
        threads = [
            threading.Thread(target=lambda: [bus.publish(Placed()) for _ in range(20)], daemon=True) for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one_by_one = requests.count("SendMessageBatch")
        requests.clear()
        bus.publish_many([Placed(number) for number in range(200)])

    assert one_by_one <= 0.2 * 320
    assert len(requests) <= 0.11 * 200


def test_publishing_receiving_handling_and_acking_takes_few_requests(
    queue: SQSQueue, aws: AwsConnection, requests: list[str]
) -> None:
    with SQSEventBus(queue_url=queue.url, client=aws.sqs, config=replace(WAITING, local_dispatch=False)) as bus:
        bus.subscribe(Placed, lambda _: None)
        bus.publish_many([Placed(number) for number in range(200)])
        while bus.health().handled < 200:
            bus.receive_once()

    assert len(requests) <= 0.35 * 200


def test_a_long_poll_answered_early_with_nothing_is_followed_by_a_pause(
    scripted: Endpoint, scripted_aws: AwsConnection
) -> None:
    scripted.on("ReceiveMessage", Answer({}))
    config = replace(QUICK, wait_time_seconds=20, poll_interval_seconds=0.4)
    with scripted_bus(scripted, scripted_aws, config=config) as bus:
        started = time.monotonic()
        bus.start_receiver()
        eventually(lambda: len(scripted.calls("ReceiveMessage")) >= 5)
        elapsed = time.monotonic() - started

    assert elapsed >= 4 * 0.5 * config.poll_interval_seconds


def test_a_stop_during_a_long_poll_returns_in_time_and_the_poll_brings_nothing_to_a_handler(
    queue: SQSQueue, aws: AwsConnection
) -> None:
    seen: list[object] = []
    bus = SQSEventBus(queue_url=queue.url, client=aws.sqs, config=replace(QUICK, wait_time_seconds=20))
    bus.subscribe(Placed, seen.append)
    bus.start_receiver()
    time.sleep(0.3)

    started = time.monotonic()
    bus.stop_receiver(timeout=5)
    took = time.monotonic() - started
    with SQSEventBus(queue_url=queue.url, client=aws.sqs, config=QUICK) as sender:
        sender.publish(Placed())

    eventually(lambda: (stats := queue.stats()).visible == 1 and stats.in_flight == 0)
    received = queue.receive(wait=1)
    bus.close()
    assert took < 15
    assert seen == []
    assert len(received) == 1


def test_a_client_of_three_methods_is_enough() -> None:
    client = ThreeMethods()
    bus = SQSEventBus(queue_url="http://fake/1/orders", client=client, config=QUICK)
    receiver = SQSEventBus(queue_url="http://fake/1/orders", client=client, config=QUICK)
    seen: list[object] = []
    receiver.subscribe(Placed, seen.append)

    result = bus.publish(Placed(4))
    many = bus.publish_many([Placed(5), Placed(6)])
    receiver.receive_once()
    bus.close()
    receiver.close()

    assert result.ok
    assert all(each.ok for each in many)
    assert seen == [Placed(4), Placed(5), Placed(6)]
    assert client.messages == {}


def test_a_client_of_three_methods_keeps_what_failed() -> None:
    client = ThreeMethods()
    bus = SQSEventBus(queue_url="http://fake/1/orders", client=client, config=QUICK)
    bus.publish(Placed())
    bus.subscribe(Placed, lambda _: 1 / 0)

    bus.receive_once()
    bus.close()

    assert len(client.messages) == 1


def test_a_failing_client_is_told_in_the_result() -> None:
    client = ThreeMethods()
    client.broken = True
    bus = SQSEventBus(queue_url="http://fake/1/orders", client=client, config=replace(QUICK, publish_retries=1))

    result = bus.publish(Placed())

    bus.close()
    assert isinstance(result.errors[0].error, PublishFailed)
    assert isinstance(result.errors[0].error.__cause__, ConnectionResetError)
    assert result.remote == "unknown"


def scripted_bus(scripted: Endpoint, aws: AwsConnection, **options: Any) -> SQSEventBus:
    scripted.on("GetQueueAttributes", Answer({"Attributes": {}}))
    return SQSEventBus(queue_url=f"{scripted.url}/1/orders", client=aws.sqs, **{"config": QUICK, **options})


def test_retries_are_exactly_as_many_requests_as_configured(scripted: Endpoint, scripted_aws: AwsConnection) -> None:
    scripted.on("SendMessageBatch", error("ServiceUnavailable", 503))
    bus = scripted_bus(scripted, scripted_aws, config=replace(QUICK, publish_retries=2))

    result = bus.publish(Placed())

    bus.close()
    assert len(scripted.calls("SendMessageBatch")) == 3
    assert (result.ok, result.remote) == (False, "failed")


def test_a_refusal_is_not_repeated(scripted: Endpoint, scripted_aws: AwsConnection) -> None:
    scripted.on("SendMessageBatch", error("AccessDenied", 403))
    bus = scripted_bus(scripted, scripted_aws)

    result = bus.publish(Placed())

    bus.close()
    assert len(scripted.calls("SendMessageBatch")) == 1
    assert result.remote == "failed"


def test_a_timeout_after_sending_leaves_the_outcome_unknown(scripted: Endpoint, scripted_aws: AwsConnection) -> None:
    scripted.on("SendMessageBatch", Answer(silent=True))
    config = replace(QUICK, publish_timeout_seconds=0.8, publish_retries=3)
    bus = scripted_bus(scripted, scripted_aws, config=config)

    started = time.monotonic()
    result = bus.publish(Placed())

    assert time.monotonic() - started < 15
    bus.close()
    assert result.remote == "unknown"


def test_entries_that_failed_are_retried_alone(scripted: Endpoint, scripted_aws: AwsConnection) -> None:
    def second_fails(parameters: dict[str, Any]) -> Answer:
        good = [{"Id": e["Id"], "MessageId": "m", "MD5OfMessageBody": ""} for e in parameters["Entries"][:1]]
        bad = [{"Id": e["Id"], "Code": "InternalError", "SenderFault": False} for e in parameters["Entries"][1:]]
        return Answer({"Successful": good, "Failed": bad})

    scripted.on("SendMessageBatch", second_fails, all_sent)
    bus = scripted_bus(scripted, scripted_aws)

    results = bus.publish_many([Placed(1), Placed(2)])

    bus.close()
    assert [len(call["Entries"]) for call in scripted.calls("SendMessageBatch")] == [2, 1]
    assert all(result.ok for result in results)


def test_with_the_network_gone_local_handlers_run_and_the_budget_holds() -> None:
    seen: list[object] = []
    config = replace(QUICK, publish_timeout_seconds=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        bus = SQSEventBus(queue_url="http://127.0.0.1:9/1/orders", config=config)
    bus.subscribe(Placed, seen.append)

    started = time.monotonic()
    result = bus.publish(Placed())

    assert time.monotonic() - started < 15
    bus.close()
    assert (seen, result.ok, result.remote) == ([Placed()], False, "failed")


def test_with_a_silent_network_the_budget_holds_too(scripted: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    scripted.on("GetQueueAttributes", Answer({"Attributes": {}}))
    scripted.on("SendMessageBatch", Answer(silent=True))
    config = replace(QUICK, publish_timeout_seconds=1.0)
    bus = SQSEventBus(queue_url=f"{scripted.url}/1/orders", config=config)

    started = time.monotonic()
    result = bus.publish(Placed())

    assert time.monotonic() - started < 15
    bus.close()
    assert (result.ok, result.remote) == (False, "unknown")


def test_with_overflow_fail_a_large_event_is_refused_whatever_blobs_there_are() -> None:
    client = ThreeMethods()
    config = replace(QUICK, overflow="fail")
    bus = SQSEventBus(queue_url="http://fake/1/orders", client=client, config=config, blobs=memory_blobs())

    result = bus.publish(Anything("x" * 2_000_000))

    bus.close()
    assert isinstance(result.errors[0].error, MessageTooLarge)
    assert client.messages == {}


def test_the_variant_with_a_breaker_has_it_on(queue: SQSQueue, aws: AwsConnection) -> None:
    client = ThreeMethods()
    client.broken = True
    url = "http://fake/1/orders"
    on = SQSEventBusWithCircuitBreaker(queue_url=url, client=client, config=replace(QUICK, publish_retries=0))
    quick = SQSEventBusWithCircuitBreaker(
        queue_url=url,
        client=client,
        config=replace(QUICK, publish_retries=0),
        breaker=CircuitBreakerConfig(failure_threshold=1),
    )

    for _ in range(5):
        on.publish(Placed())
    quick.publish(Placed())

    assert (on.health().publish_breaker, quick.health().publish_breaker) == ("open", "open")
    on.close()
    quick.close()


def test_the_policy_of_a_role_names_exact_queues_and_no_wildcard() -> None:
    arn, letters = "arn:aws:sqs:eu-central-1:123456789012:orders", "arn:aws:sqs:eu-central-1:123456789012:letters"

    receive = SQSEventBus.iam_policy(arn, role="receive", dead_letter_arn=letters)
    publish = SQSEventBus.iam_policy(arn, role="publish")

    assert [statement["Resource"] for statement in receive["Statement"]] == [arn, letters]
    assert "sqs:ChangeMessageVisibility" in receive["Statement"][0]["Action"]
    assert "sqs:ReceiveMessage" not in publish["Statement"][0]["Action"]
    assert not any(part in str([receive, publish]) for part in ("*", "Create", "List"))
    with pytest.raises(InvalidInput, match="role"):
        SQSEventBus.iam_policy(arn, role="all")  # type: ignore[arg-type]  # the wrong input is the point
