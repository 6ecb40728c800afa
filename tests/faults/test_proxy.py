"""The fault proxy breaks what it is told to break, for plain boto3 code, and counts it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    HTTPClientError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from tests.waiting import eventually

from postroad.testing import FaultProxy
from postroad.testing.proxy import FAULTS

pytestmark = pytest.mark.aws
ONCE = Config(retries={"total_max_attempts": 1, "mode": "standard"}, connect_timeout=5, read_timeout=10)
BROKEN = (ConnectionClosedError, ResponseStreamingError, HTTPClientError)


def client(service: str, url: str, config: Config = ONCE) -> Any:
    make: Any = boto3.client
    return make(service, region_name="us-east-1", endpoint_url=url, config=config)


@pytest.fixture
def sqs(proxy: FaultProxy) -> Iterator[Any]:
    made = client("sqs", proxy.url)
    yield made
    made.close()


@pytest.fixture
def queue(sqs: Any, unique: Callable[[str], str]) -> str:
    url: str = sqs.create_queue(QueueName=unique("broken"))["QueueUrl"]
    return url


def bodies(sqs: Any, queue: str) -> list[str]:
    """Return what the queue holds, and delete it."""
    found: list[str] = []
    while messages := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
        found += [message["Body"] for message in messages]
        for message in messages:
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    return found


def test_without_faults_the_proxy_only_forwards(proxy: FaultProxy, sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="hello")

    assert queue.startswith(proxy.url)
    assert bodies(sqs, queue) == ["hello"]
    assert proxy.injected == {}
    assert proxy.seen[:2] == [("CreateQueue", 200, None), ("SendMessage", 200, None)]


@pytest.mark.parametrize(
    ("fault", "error", "arrived"),
    [
        ("drop_before", BROKEN, 0),
        ("drop_after_apply", BROKEN, 1),
        ("reset_mid_body", BROKEN, 1),
    ],
)
def test_a_cut_connection_is_an_error_of_the_connection(
    proxy: FaultProxy, sqs: Any, queue: str, fault: str, error: Any, arrived: int
) -> None:
    proxy.add(fault, match="SendMessage", times=1)

    with pytest.raises(error):
        sqs.send_message(QueueUrl=queue, MessageBody="hello")

    assert len(bodies(sqs, queue)) == arrived
    assert proxy.injected == {fault: 1}


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("http_500", 500, "InternalFailure"),
        ("http_503", 503, "ServiceUnavailable"),
        ("throttle", 403, "RequestThrottled"),
        ("forbidden", 403, "AccessDeniedException"),
    ],
)
def test_an_error_of_aws_is_made_by_the_proxy(
    proxy: FaultProxy, sqs: Any, queue: str, fault: str, status: int, code: str
) -> None:
    proxy.add(fault, match="SendMessage", times=1)

    with pytest.raises(ClientError) as refused:
        sqs.send_message(QueueUrl=queue, MessageBody="hello")

    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert refused.value.response["Error"]["Code"] == code
    assert ("SendMessage", status, fault) in proxy.seen
    assert bodies(sqs, queue) == []


@pytest.mark.parametrize(
    ("service", "call", "code"),
    [
        ("sns", lambda made: made.list_topics(), "Throttled"),
        ("s3", lambda made: made.list_buckets(), "SlowDown"),
        ("dynamodb", lambda made: made.list_tables(), "ProvisionedThroughputExceededException"),
        ("kinesis", lambda made: made.list_streams(), "ProvisionedThroughputExceededException"),
        ("events", lambda made: made.list_event_buses(), "ThrottlingException"),
        ("lambda", lambda made: made.list_functions(), "ThrottlingException"),
    ],
)
def test_every_service_gets_the_error_in_its_own_protocol(
    proxy: FaultProxy, service: str, call: Callable[[Any], object], code: str
) -> None:
    proxy.add("throttle")
    made = client(service, proxy.url)

    with pytest.raises(ClientError) as refused:
        call(made)

    assert refused.value.response["Error"]["Code"] == code
    made.close()


def test_a_hanging_answer_comes_late_or_never_for_an_impatient_client(proxy: FaultProxy, sqs: Any, queue: str) -> None:
    proxy.add("hang:60", match="SendMessage", times=1)
    impatient = client("sqs", proxy.url, Config(read_timeout=0.2, retries={"total_max_attempts": 1}))

    with pytest.raises(ReadTimeoutError):
        impatient.send_message(QueueUrl=queue, MessageBody="hello")

    assert bodies(sqs, queue) == ["hello"]
    impatient.close()


def test_a_partial_batch_fails_some_entries_and_forwards_the_rest(proxy: FaultProxy, sqs: Any, queue: str) -> None:
    proxy.add("partial_batch", times=1)
    entries = [{"Id": str(number), "MessageBody": f"m{number}"} for number in range(10)]

    answer = sqs.send_message_batch(QueueUrl=queue, Entries=entries)

    failed = {entry["Id"] for entry in answer["Failed"]}
    assert 1 <= len(failed) <= 9
    assert all(not entry["SenderFault"] for entry in answer["Failed"])
    assert {entry["Id"] for entry in answer["Successful"]} == {entry["Id"] for entry in entries} - failed
    assert sorted(bodies(sqs, queue)) == sorted(f"m{number}" for number in range(10) if str(number) not in failed)


def test_a_partial_batch_of_sns_fails_in_xml(proxy: FaultProxy, unique: Callable[[str], str]) -> None:
    sns = client("sns", proxy.url)
    topic = sns.create_topic(Name=unique("broken"))["TopicArn"]
    proxy.add("partial_batch", times=2)
    entries = [{"Id": str(number), "Message": f"m&{number}"} for number in range(6)]

    answer = sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)
    alone = sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries[:1])

    assert 1 <= len(answer["Failed"]) <= 5
    assert len(answer["Failed"]) + len(answer["Successful"]) == 6
    assert [entry["Id"] for entry in alone["Failed"]] == ["0"]
    sns.close()


def test_a_partial_batch_of_eventbridge_and_kinesis_keeps_the_places(
    proxy: FaultProxy, unique: Callable[[str], str]
) -> None:
    events, kinesis, name = client("events", proxy.url), client("kinesis", proxy.url), unique("broken")
    kinesis.create_stream(StreamName=name, ShardCount=1)
    kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
    proxy.add("partial_batch")

    put = events.put_events(Entries=[{"Source": "s", "DetailType": "d", "Detail": "{}"} for _ in range(5)])
    stored = kinesis.put_records(
        StreamName=name, Records=[{"Data": f"{n}".encode(), "PartitionKey": "k"} for n in range(5)]
    )

    assert put["FailedEntryCount"] == sum("ErrorCode" in entry for entry in put["Entries"])
    assert [bool(entry.get("EventId")) ^ bool(entry.get("ErrorCode")) for entry in put["Entries"]] == [True] * 5
    proxy.clear()
    shard = kinesis.list_shards(StreamName=name)["Shards"][0]["ShardId"]
    iterator = kinesis.get_shard_iterator(StreamName=name, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    there = {record["Data"] for record in kinesis.get_records(ShardIterator=iterator["ShardIterator"])["Records"]}
    assert there == {f"{n}".encode() for n in range(5) if "ErrorCode" not in stored["Records"][n]}
    assert stored["FailedRecordCount"] == 5 - len(there) > 0
    events.close()
    kinesis.close()


def test_a_partial_batch_of_dynamodb_names_what_was_not_processed(
    proxy: FaultProxy, unique: Callable[[str], str]
) -> None:
    dynamodb, name = client("dynamodb", proxy.url), unique("broken")
    dynamodb.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    )
    proxy.add("partial_batch", times=1)
    puts = [{"PutRequest": {"Item": {"id": {"S": str(number)}}}} for number in range(5)]

    left = dynamodb.batch_write_item(RequestItems={name: puts})["UnprocessedItems"][name]
    stored = dynamodb.scan(TableName=name)["Items"]

    assert len(left) + len(stored) == 5
    assert all(each in puts for each in left)
    proxy.add("partial_batch", times=1)
    keys = [{"id": {"S": str(number)}} for number in range(5)]
    read = dynamodb.batch_get_item(RequestItems={name: {"Keys": keys}})
    assert 1 <= len(read["UnprocessedKeys"][name]["Keys"]) <= 4
    dynamodb.close()


def test_a_partial_batch_of_s3_leaves_objects(proxy: FaultProxy, unique: Callable[[str], str]) -> None:
    s3, bucket = client("s3", proxy.url), unique("broken")
    s3.create_bucket(Bucket=bucket)
    for number in range(4):
        s3.put_object(Bucket=bucket, Key=f"k&{number}", Body=b"x")
    proxy.add("partial_batch", times=1)

    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": f"k&{n}"} for n in range(4)]})

    failed = {error["Key"] for error in answer["Errors"]}
    left = {found["Key"] for found in s3.list_objects_v2(Bucket=bucket)["Contents"]}
    assert failed == left != set()
    s3.close()


def test_a_duplicated_request_is_carried_out_twice(proxy: FaultProxy, sqs: Any, queue: str) -> None:
    proxy.add("duplicate_request", match="SendMessage", times=1)

    sqs.send_message(QueueUrl=queue, MessageBody="hello")

    assert bodies(sqs, queue) == ["hello", "hello"]


def test_a_truncated_answer_is_half_a_body_of_the_length_it_says(proxy: FaultProxy, sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="hello")
    proxy.add("truncate", match="ReceiveMessage", times=1)

    answer = sqs.receive_message(QueueUrl=queue)

    assert "Messages" not in answer, "botocore takes broken JSON for an empty answer"
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_a_bad_checksum_is_that_of_no_body(proxy: FaultProxy, sqs: Any, queue: str) -> None:
    proxy.add("bad_md5", match="SendMessage", times=1)

    answer = sqs.send_message(QueueUrl=queue, MessageBody="hello")

    assert answer["MD5OfMessageBody"] == "0" * 32


def test_a_fault_that_finds_nothing_to_break_is_not_counted(proxy: FaultProxy, sqs: Any, queue: str) -> None:
    proxy.add("bad_md5", times=1)

    sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])
    sqs.send_message(QueueUrl=queue, MessageBody="hello")

    assert proxy.injected == {"bad_md5": 1}
    assert proxy.seen[-2:] == [("GetQueueAttributes", 200, None), ("SendMessage", 200, "bad_md5")]


def test_faults_match_paths_too(proxy: FaultProxy, unique: Callable[[str], str]) -> None:
    s3, bucket = client("s3", proxy.url), unique("broken")
    s3.create_bucket(Bucket=bucket)
    proxy.add("http_500", match="*/locked/*")

    s3.put_object(Bucket=bucket, Key="open/a", Body=b"x" * 100_000)
    with pytest.raises(ClientError):
        s3.put_object(Bucket=bucket, Key="locked/a", Body=b"x")

    assert s3.head_object(Bucket=bucket, Key="open/a")["ContentLength"] == 100_000
    assert s3.get_object(Bucket=bucket, Key="open/a")["Body"].read() == b"x" * 100_000
    assert proxy.injected == {"http_500": 1}
    s3.close()


def test_the_seed_fixes_which_requests_are_hit(ministack_url: str) -> None:
    def hits(seed: int) -> list[str | None]:
        with FaultProxy(ministack_url, seed=seed) as proxy:
            proxy.add("http_503", p=0.5)
            made = client("sqs", proxy.url)
            for _ in range(20):
                try:
                    made.list_queues(QueueNamePrefix="none-of-these")
                except ClientError:
                    continue
            made.close()
            return [seen.fault for seen in proxy.seen]

    assert hits(1) == hits(1)
    assert hits(1) != hits(2)
    assert 0 < hits(1).count("http_503") < 20


def test_cleared_faults_stay_counted_and_happen_no_more(proxy: FaultProxy, sqs: Any, queue: str) -> None:
    proxy.add("http_503", match="SendMessage")
    with pytest.raises(ClientError):
        sqs.send_message(QueueUrl=queue, MessageBody="one")

    proxy.clear()
    sqs.send_message(QueueUrl=queue, MessageBody="two")

    assert proxy.injected == {"http_503": 1}
    assert bodies(sqs, queue) == ["two"]


def test_a_limit_holds_for_clients_that_call_at_once(proxy: FaultProxy, sqs: Any, queue: str) -> None:
    proxy.add("http_503", match="SendMessage", times=3)
    failed = []

    def send() -> None:
        for _ in range(10):
            try:
                sqs.send_message(QueueUrl=queue, MessageBody="hello")
            except ClientError as error:
                failed.append(error)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(failed) == proxy.injected["http_503"] == 3
    assert len(bodies(sqs, queue)) == 37


def test_a_proxy_ends_at_once_while_answers_hang(ministack_url: str) -> None:
    cut: list[BaseException] = []

    def list_queues() -> None:
        try:
            made.list_queues()
        except BROKEN as error:
            cut.append(error)

    with FaultProxy(ministack_url) as proxy:
        proxy.add("hang:600")
        made = client("sqs", proxy.url)
        thread = threading.Thread(target=list_queues)
        # A request of an earlier proxy may still be ending.
        others = set(threading.enumerate())
        thread.start()
        eventually(lambda: any("process_request" in each.name for each in set(threading.enumerate()) - others))

    thread.join(120)
    assert len(cut) == 1
    made.close()


def test_an_upstream_that_is_not_there_is_unavailable() -> None:
    with FaultProxy("http://127.0.0.1:1") as proxy:
        made = client("sqs", proxy.url)
        with pytest.raises(ClientError) as refused:
            made.list_queues()
        made.close()

    assert refused.value.response["Error"]["Code"] == "ServiceUnavailable"


@pytest.mark.parametrize("fault", ["nope", "hang", "hang:", "hang:soon", "hang:S", "hang:-1", ""])
def test_an_unknown_fault_is_refused_with_the_known_ones(fault: str) -> None:
    with pytest.raises(ValueError, match=f"{fault!r} is not one of") as refused:
        FaultProxy("http://127.0.0.1:1").add(fault)

    assert all(known in str(refused.value) for known in FAULTS)


@pytest.mark.parametrize("p", [1.5, -0.1, float("nan")])
def test_a_probability_outside_of_its_range_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        FaultProxy("http://127.0.0.1:1").add("throttle", p=p)


def test_a_proxy_that_does_not_run_has_no_address() -> None:
    with pytest.raises(RuntimeError, match="context manager"):
        _ = FaultProxy("http://127.0.0.1:1").url
