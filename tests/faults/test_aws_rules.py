"""With `aws_rules` the proxy makes an emulator behave as AWS documents it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from postroad.testing import FakeClock, FaultProxy
from postroad.testing.proxy.rules import AwsRules
from postroad.testing.proxy.wire import Answer, Request, json_answer

pytestmark = pytest.mark.aws


@pytest.fixture(params=["ministack_url", "moto_url"])
def strict(request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
    """Each emulator behind a proxy with the rules of AWS."""
    with FaultProxy(request.getfixturevalue(request.param), aws_rules=True) as proxy:
        yield proxy


@pytest.fixture
def sqs(strict: FaultProxy) -> Iterator[Any]:
    made = boto3.client("sqs", region_name="us-east-1", endpoint_url=strict.url)
    yield made
    made.close()


@pytest.fixture
def sns(strict: FaultProxy) -> Iterator[Any]:
    made = boto3.client("sns", region_name="us-east-1", endpoint_url=strict.url)
    yield made
    made.close()


@pytest.fixture
def make(sqs: Any, unique: Callable[[str], str]) -> Callable[..., str]:
    """Make a FIFO queue."""

    def make(**attributes: str) -> str:
        name = f"{unique('strict')}.fifo"
        url: str = sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true", **attributes})["QueueUrl"]
        return url

    return make


def send(sqs: Any, queue: str, body: str, dedup_id: str | None = None, group: str = "g") -> Any:
    given = {} if dedup_id is None else {"MessageDeduplicationId": dedup_id}
    return sqs.send_message(QueueUrl=queue, MessageBody=body, MessageGroupId=group, **given)


def drain(sqs: Any, queue: str) -> list[Any]:
    found: list[Any] = []
    while messages := sqs.receive_message(
        QueueUrl=queue, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"]
    ).get("Messages"):
        found += messages
        for message in messages:
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    return found


def test_a_dedup_id_is_remembered_after_the_delete(sqs: Any, make: Callable[..., str]) -> None:
    queue = make()
    first = send(sqs, queue, "one", "d1")
    assert [message["Body"] for message in drain(sqs, queue)] == ["one"]

    again = send(sqs, queue, "two", "d1")

    assert drain(sqs, queue) == []
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])


def test_equal_bodies_are_one_message_where_the_queue_says_so(sqs: Any, make: Callable[..., str]) -> None:
    queue = make(ContentBasedDeduplication="true")
    for body in ("one", "one", "two"):
        send(sqs, queue, body)
    drained = drain(sqs, queue)

    send(sqs, queue, "one")

    assert [message["Body"] for message in drained] == ["one", "two"]
    assert drain(sqs, queue) == []


def test_a_batch_deduplicates_within_itself_and_answers_for_every_entry(sqs: Any, make: Callable[..., str]) -> None:
    queue = make()
    entries = [
        {"Id": own, "MessageBody": own, "MessageGroupId": "g", "MessageDeduplicationId": dedup}
        for own, dedup in (("a", "d1"), ("b", "d2"), ("c", "d1"))
    ]

    answer = sqs.send_message_batch(QueueUrl=queue, Entries=entries)

    told = {entry["Id"]: entry for entry in answer["Successful"]}
    assert told["a"]["MessageId"] == told["c"]["MessageId"] != told["b"]["MessageId"]
    assert [message["Body"] for message in drain(sqs, queue)] == ["a", "b"]


def test_sequence_numbers_grow_and_are_the_same_on_arrival(sqs: Any, make: Callable[..., str]) -> None:
    queue = make()

    sent = [int(send(sqs, queue, f"m{number}", f"d{number}")["SequenceNumber"]) for number in range(5)]

    assert sent == sorted(set(sent))
    assert [int(message["Attributes"]["SequenceNumber"]) for message in drain(sqs, queue)] == sent


def test_a_duplicated_request_sends_once_to_a_fifo_queue(
    strict: FaultProxy, sqs: Any, make: Callable[..., str]
) -> None:
    queue = make()
    strict.add("duplicate_request", match="SendMessage")

    send(sqs, queue, "one", "d1")

    assert len(drain(sqs, queue)) == 1


def test_a_fifo_topic_remembers_too(sns: Any, sqs: Any, make: Callable[..., str], unique: Callable[[str], str]) -> None:
    queue = make()
    topic = sns.create_topic(Name=f"{unique('strict')}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})
    one = {"Message": "<one>", "MessageGroupId": "g", "MessageDeduplicationId": "d1"}

    first = sns.publish(TopicArn=topic, **one)
    arrived = drain(sqs, queue)
    again = sns.publish(TopicArn=topic, **one)
    batch = sns.publish_batch(
        TopicArn=topic,
        PublishBatchRequestEntries=[{"Id": "a", **one}, {"Id": "b", **one, "MessageDeduplicationId": "d2"}],
    )

    told = {entry["Id"]: entry for entry in batch["Successful"]}
    assert [message["Body"] for message in arrived] == ["<one>"]
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    assert told["a"]["MessageId"] == first["MessageId"]
    assert int(told["b"]["SequenceNumber"]) > int(first["SequenceNumber"])
    assert len(drain(sqs, queue)) == 1


def test_a_fifo_message_is_not_deleted_by_a_receipt_that_has_expired(sqs: Any, make: Callable[..., str]) -> None:
    queue = make()
    send(sqs, queue, "one", "d1")
    [message] = sqs.receive_message(QueueUrl=queue, VisibilityTimeout=0)["Messages"]

    with pytest.raises(ClientError, match="expired"):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])

    assert len(drain(sqs, queue)) == 1


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"MessageBody": "a\x00b"}, "InvalidMessageContents"),
        ({"MessageBody": "a\ufffeb"}, "InvalidMessageContents"),
        ({"MessageBody": "x" * 1_048_570, "MessageAttributes": {"abcdef": 1}}, "InvalidParameterValue"),
        ({"MessageBody": "x", "MessageAttributes": {f"n{n}": 1 for n in range(11)}}, "InvalidParameterValue"),
        ({"MessageBody": "x", "MessageAttributes": {"AWS.x": 1}}, "InvalidParameterValue"),
        ({"MessageBody": "x", "MessageDeduplicationId": "d"}, "InvalidParameterValue"),
        ({"MessageBody": "x", "DelaySeconds": 901}, "InvalidParameterValue"),
    ],
    ids=["control", "noncharacter", "size", "attributes", "reserved", "dedup", "delay"],
)
def test_a_message_that_aws_refuses_is_refused(
    sqs: Any, unique: Callable[[str], str], given: dict[str, Any], code: str
) -> None:
    queue = sqs.create_queue(QueueName=unique("strict"))["QueueUrl"]
    names = given.get("MessageAttributes", {})
    if names:
        given = {**given, "MessageAttributes": {name: {"DataType": "String", "StringValue": "v"} for name in names}}

    with pytest.raises(ClientError) as refused:
        sqs.send_message(QueueUrl=queue, **given)

    assert refused.value.response["Error"]["Code"] == code
    assert drain(sqs, queue) == []


def test_a_refused_entry_of_a_batch_fails_alone(sqs: Any, unique: Callable[[str], str]) -> None:
    queue = sqs.create_queue(QueueName=unique("strict"))["QueueUrl"]
    entries = [{"Id": "good", "MessageBody": "x"}, {"Id": "bad", "MessageBody": "\x01"}]

    answer = sqs.send_message_batch(QueueUrl=queue, Entries=entries)

    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]
    [failed] = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", "InvalidMessageContents", True)
    assert [message["Body"] for message in drain(sqs, queue)] == ["x"]


@pytest.mark.parametrize(
    ("operation", "given"),
    [
        ("receive_message", {"WaitTimeSeconds": 21}),
        ("receive_message", {"MaxNumberOfMessages": 11}),
        ("receive_message", {"VisibilityTimeout": 43_201}),
        ("send_message_batch", {"Entries": [{"Id": str(n), "MessageBody": "x"} for n in range(11)]}),
        ("send_message_batch", {"Entries": [{"Id": "a", "MessageBody": "x"}, {"Id": "a", "MessageBody": "y"}]}),
        ("send_message_batch", {"Entries": [{"Id": str(n), "MessageBody": "x" * 600_000} for n in range(2)]}),
        ("set_queue_attributes", {"Attributes": {"MessageRetentionPeriod": "59"}}),
    ],
    ids=["wait", "most", "visibility", "entries", "ids", "bytes", "retention"],
)
def test_a_call_that_aws_refuses_is_refused(
    sqs: Any, unique: Callable[[str], str], operation: str, given: dict[str, Any]
) -> None:
    queue = sqs.create_queue(QueueName=unique("strict"))["QueueUrl"]

    with pytest.raises(ClientError) as refused:
        getattr(sqs, operation)(QueueUrl=queue, **given)

    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert drain(sqs, queue) == []


def test_a_notification_above_256_kb_is_refused(sns: Any, unique: Callable[[str], str]) -> None:
    topic = sns.create_topic(Name=unique("strict"))["TopicArn"]

    with pytest.raises(ClientError, match="too long"):
        sns.publish(TopicArn=topic, Message="x" * 262_145)


def test_an_event_that_is_no_json_fails_alone(strict: FaultProxy) -> None:
    events: Any = boto3.client("events", region_name="us-east-1", endpoint_url=strict.url)
    good: Any = {"Source": "s", "DetailType": "d", "Detail": "{}"}

    answer = events.put_events(Entries=[good, {**good, "Detail": "nope"}, good])

    assert [entry.get("ErrorCode") for entry in answer["Entries"]] == [None, "MalformedDetail", None]
    assert answer["FailedEntryCount"] == 1
    events.close()


class Emulator:
    """Accepts everything, and counts."""

    def __init__(self, **attributes: str) -> None:
        self.attributes = attributes
        self.sent = 0

    def __call__(self, request: Request) -> Answer:
        if request.action == "GetQueueAttributes":
            return json_answer({"Attributes": self.attributes})
        self.sent += 1
        return json_answer({"MessageId": f"m{self.sent}"})


def sending(dedup_id: str, group: str) -> Request:
    entry = {"MessageBody": "x", "MessageGroupId": group, "MessageDeduplicationId": dedup_id}
    bare = Request("POST", "/", {"X-Amz-Target": "AmazonSQS.SendMessage"}, b"")
    return bare.with_document({"QueueUrl": "http://here/0/q.fifo", **entry})


def test_a_dedup_id_is_forgotten_after_five_minutes() -> None:
    clock, emulator = FakeClock(), Emulator()
    rules = AwsRules(clock.monotonic)
    rules.answer(sending("d", "g"), emulator)
    clock.advance(299)
    rules.answer(sending("d", "g"), emulator)
    assert emulator.sent == 1

    clock.advance(1)
    answer = rules.answer(sending("d", "g"), emulator)

    assert (emulator.sent, answer.document["MessageId"]) == (2, "m2")


@pytest.mark.parametrize(("scope", "sent"), [("queue", 1), ("messageGroup", 2)])
def test_the_scope_of_a_dedup_id_is_the_queue_or_the_group(scope: str, sent: int) -> None:
    rules, emulator = AwsRules(), Emulator(DeduplicationScope=scope)

    for group in ("a", "b", "a"):
        rules.answer(sending("d", group), emulator)

    assert emulator.sent == sent
