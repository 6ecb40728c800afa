"""What topics on AWS do when some of a batch fails, and what they ask of the queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.stub import ANY, Stubber

from postroad.connections.aws import AwsConnection
from postroad.errors import HeldBack, InvalidInput, NotSupported, TopicNotFound, Unavailable
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.queues.sqs import SQSQueues
from postroad.topics import Subscription
from postroad.topics.eventbridge import EventBridgeTopics
from postroad.topics.sns import SNSTopics

TOPIC = "arn:aws:sns:us-east-1:123456789012:news.fifo"
BUS = "arn:aws:events:us-east-1:123456789012:event-bus/news"
THROTTLED = {"Code": "Throttled", "Message": "again", "SenderFault": False}
REFUSED = {"Code": "InvalidParameter", "Message": "bad", "SenderFault": True}


@pytest.fixture
def nowhere() -> Iterator[AwsConnection]:
    connection = AwsConnection("us-east-1", "http://127.0.0.1:9")
    yield connection
    connection.close()


def ordered(*names: str) -> list[OutgoingMessage]:
    return [OutgoingMessage(name, group=name[0], dedup_id=name) for name in names]


def expect_publish(stub: Stubber, *bodies: str, failed: dict[str, Any] | None = None) -> None:
    """The next call publishes these bodies, of which the first one fails as told."""
    entries = [
        {"Id": str(n), "Message": body, "MessageGroupId": body[0], "MessageDeduplicationId": body}
        for n, body in enumerate(bodies)
    ]
    good = [{"Id": str(n), "MessageId": f"id-{body}"} for n, body in enumerate(bodies) if n or not failed]
    stub.add_response(
        "publish_batch",
        {"Successful": good, "Failed": [{"Id": "0", **failed}] if failed else []},
        {"TopicArn": TOPIC, "PublishBatchRequestEntries": entries},
    )


def test_an_arn_is_taken_as_it_is_and_no_call_is_made_before_the_publish(nowhere: AwsConnection) -> None:
    topics = SNSTopics(nowhere, SQSQueues(nowhere))

    topic = topics.topic(TOPIC)

    assert (topic.name, topic.arn, topic.traits.fifo) == ("news.fifo", TOPIC, True)
    with Stubber(nowhere.sns) as stub:
        expect_publish(stub, "a1")
        assert topic.publish(ordered("a1"))[0].ok


def test_a_failed_publish_holds_back_its_group_and_no_other(nowhere: AwsConnection) -> None:
    topic = SNSTopics(nowhere, SQSQueues(nowhere)).topic(TOPIC)

    with Stubber(nowhere.sns) as stub:
        expect_publish(stub, "a1", "b1", failed=REFUSED)
        expect_publish(stub, "b2")
        results = topic.publish(ordered("a1", "a2", "b1", "b2"))
        stub.assert_no_pending_responses()

    assert [type(result.error) for result in results[:2]] == [InvalidInput, HeldBack]
    assert [result.message_id for result in results[2:]] == ["id-b1", "id-b2"]


def test_a_publish_that_failed_at_sns_is_tried_again_before_the_rest_of_its_group(nowhere: AwsConnection) -> None:
    topic = SNSTopics(nowhere, SQSQueues(nowhere)).topic(TOPIC)

    with Stubber(nowhere.sns) as stub:
        expect_publish(stub, "a1", failed=THROTTLED)
        expect_publish(stub, "a1")
        expect_publish(stub, "a2")
        results = topic.publish(ordered("a1", "a2"))
        stub.assert_no_pending_responses()

    assert [result.ok for result in results] == [True, True]


def test_a_topic_that_is_gone_is_not_found(nowhere: AwsConnection) -> None:
    topic = SNSTopics(nowhere, SQSQueues(nowhere)).topic(TOPIC)

    with Stubber(nowhere.sns) as stub, pytest.raises(TopicNotFound, match=r"news\.fifo"):
        stub.add_client_error("publish_batch", "NotFound", http_status_code=404)
        topic.publish(ordered("a1"))


def test_entries_that_eventbridge_failed_are_tried_again_and_reported(nowhere: AwsConnection) -> None:
    topic = EventBridgeTopics(nowhere, SQSQueues(nowhere)).topic(BUS)
    first = {
        "FailedEntryCount": 2,
        "Entries": [{"EventId": "e1"}, {"ErrorCode": "ThrottlingException"}, {"ErrorCode": "MalformedDetail"}],
    }
    again = {"FailedEntryCount": 0, "Entries": [{"EventId": "e2"}]}

    with Stubber(nowhere.events) as stub:
        stub.add_response("put_events", first, {"Entries": [ANY, ANY, ANY]})
        stub.add_response("put_events", again, {"Entries": [ANY]})
        results = topic.publish([OutgoingMessage(body) for body in "abc"])

    assert [result.message_id for result in results] == ["e1", "e2", None]
    assert isinstance(results[2].error, InvalidInput)


def test_entries_that_eventbridge_keeps_failing_are_unavailable(
    nowhere: AwsConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.connections.aws_calls.pause", lambda failures: None)
    topic = EventBridgeTopics(nowhere, SQSQueues(nowhere)).topic(BUS)

    with Stubber(nowhere.events) as stub:
        for _ in range(5):
            stub.add_response("put_events", {"FailedEntryCount": 1, "Entries": [{"ErrorCode": "InternalFailure"}]})
        [result] = topic.publish([OutgoingMessage("a")])

    assert isinstance(result.error, Unavailable)


def test_eventbridge_has_no_fifo_topics(nowhere: AwsConnection) -> None:
    with pytest.raises(NotSupported) as refused:
        EventBridgeTopics(nowhere, SQSQueues(nowhere)).topic("news.fifo", fifo=True)

    assert refused.value.field == "fifo"


@pytest.mark.aws
@pytest.mark.parametrize("kind", [SNSTopics, EventBridgeTopics])
def test_the_right_to_send_joins_the_queues_policy_and_leaves_it(
    aws: AwsConnection, unique: Callable[[str], str], kind: type[SNSTopics] | type[EventBridgeTopics]
) -> None:
    queues = SQSQueues(aws)
    queue = queues.create_queue(QueueSpec(unique("copies")))
    own = {"Sid": "own", "Effect": "Allow", "Principal": {"AWS": "123456789012"}, "Action": "sqs:*", "Resource": "*"}
    queues.change_policy(queue, lambda policy: json.dumps({"Version": "2012-10-17", "Statement": own}))
    topic = kind(aws, queues).topic(unique("news"))

    topic.subscribe(queue)
    topic.subscribe(queue)
    during = json.loads(queue.attributes("Policy")["Policy"])["Statement"]
    topic.unsubscribe(queue)
    after = json.loads(queue.attributes("Policy")["Policy"])["Statement"]

    assert during[0] == own
    assert len(during) == 2
    assert during[1]["Resource"] == queue.arn
    assert topic.name in during[1]["Condition"]["ArnEquals"]["aws:SourceArn"]
    assert after == [own]


@pytest.mark.aws
@pytest.mark.parametrize("kind", [SNSTopics, EventBridgeTopics])
def test_subscribing_again_replaces_the_filter(
    aws: AwsConnection, unique: Callable[[str], str], kind: type[SNSTopics] | type[EventBridgeTopics]
) -> None:
    queues = SQSQueues(aws)
    queue = queues.create_queue(QueueSpec(unique("copies")))
    topic = kind(aws, queues).topic(unique("news"))
    topic.subscribe(queue, filter={"k": ["old"]})

    topic.subscribe(queue, filter={"k": ["new"]})
    chosen = topic.subscriptions()
    topic.subscribe(queue)

    assert chosen == [Subscription(queue=queue.name, filter={"k": ("new",)})]
    assert topic.subscriptions() == [Subscription(queue=queue.name, filter=None)]


@pytest.mark.aws
@pytest.mark.parametrize("kind", [SNSTopics, EventBridgeTopics])
def test_topics_are_listed_by_name(
    aws: AwsConnection, unique: Callable[[str], str], kind: type[SNSTopics] | type[EventBridgeTopics]
) -> None:
    topics = kind(aws, SQSQueues(aws))
    name = unique("news")

    topics.topic(name).publish([OutgoingMessage("made by its first use")])

    assert name in topics.topics()


@pytest.mark.aws
def test_a_subscription_that_is_not_raw_is_understood_too(aws: AwsConnection, unique: Callable[[str], str]) -> None:
    queues = SQSQueues(aws)
    queue = queues.create_queue(QueueSpec(unique("copies")))
    topic = SNSTopics(aws, queues).topic(unique("news"))
    aws.sns.subscribe(TopicArn=topic.arn, Protocol="sqs", Endpoint=queue.arn)

    topic.publish([OutgoingMessage("wrapped", {"EventType": "Placed"})])
    [received] = queue.receive(wait=2)

    assert (received.body, received.attributes) == (b"wrapped", {"EventType": "Placed"})
