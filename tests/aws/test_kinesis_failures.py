"""What streams on Kinesis do when some of a batch fails, an iterator expires or shards are split."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.stub import Stubber
from tests.memory import memory_items

from postroad.clock import SYSTEM_CLOCK
from postroad.connections.aws import AwsConnection
from postroad.errors import HeldBack, StreamNotFound, Unavailable
from postroad.streams import TRIM_HORIZON, Record
from postroad.streams.kinesis import KinesisStream

PARENT, LEFT, RIGHT = "shardId-000000000000", "shardId-000000000001", "shardId-000000000002"
THROTTLED = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow down"}


@pytest.fixture
def connection() -> Iterator[AwsConnection]:
    connection = AwsConnection("us-east-1", "http://127.0.0.1:9")
    yield connection
    connection.close()


@pytest.fixture
def stub(connection: AwsConnection) -> Iterator[Stubber]:
    with Stubber(connection.kinesis) as stub:
        yield stub
        stub.assert_no_pending_responses()


@pytest.fixture
def stream(connection: AwsConnection) -> KinesisStream:
    return KinesisStream(connection, memory_items(), SYSTEM_CLOCK, "orders")


def expect_put(stub: Stubber, *datas: bytes, failed: dict[str, str] | None = None) -> None:
    """The next call puts these data, of which the first one fails as told."""
    records: list[dict[str, Any]] = [{"ShardId": PARENT, "SequenceNumber": data[1:].decode()} for data in datas]
    if failed:
        records[0] = failed
    put = [{"PartitionKey": data[:1].decode(), "Data": data} for data in datas]
    answer: dict[str, Any] = {"Records": records, **({"FailedRecordCount": 1} if failed else {})}
    stub.add_response("put_records", answer, {"StreamName": "orders", "Records": put})


def expect_shards(stub: Stubber, **parents: list[str]) -> None:
    shards: list[dict[str, Any]] = [
        {
            "ShardId": shard.replace("_", "-"),
            "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "1"},
            "SequenceNumberRange": {"StartingSequenceNumber": "0"},
            **({"ParentShardId": above[0]} if above else {}),
        }
        for shard, above in parents.items()
    ]
    stub.add_response("list_shards", {"Shards": shards}, {"StreamName": "orders"})


def expect_records(stub: Stubber, iterator: str, *sequences: str, following: str | None) -> None:
    records = [
        {
            "SequenceNumber": sequence,
            "Data": b"x",
            "PartitionKey": "k",
            "ApproximateArrivalTimestamp": datetime(2030, 1, 1, tzinfo=UTC),
        }
        for sequence in sequences
    ]
    answer: dict[str, Any] = {"Records": records, "MillisBehindLatest": 0}
    if following is not None:
        answer["NextShardIterator"] = following
    stub.add_response("get_records", answer, {"ShardIterator": iterator, "Limit": 1})


def expect_iterator(stub: Stubber, shard: str, iterator: str, **wanted: str) -> None:
    expected = {"StreamName": "orders", "ShardId": shard, **wanted}
    stub.add_response("get_shard_iterator", {"ShardIterator": iterator}, expected)


def test_a_failed_record_is_put_again_before_the_rest_of_its_key(stream: KinesisStream, stub: Stubber) -> None:
    expect_put(stub, b"a1", b"b1", failed=THROTTLED)
    expect_put(stub, b"a1", b"b2")
    expect_put(stub, b"a2")

    results = stream.put([Record("a", b"a1"), Record("a", b"a2"), Record("b", b"b1"), Record("b", b"b2")])

    assert [result.sequence for result in results] == ["1", "2", "1", "2"]


def test_a_record_that_keeps_failing_holds_back_its_key(
    stream: KinesisStream, stub: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.connections.aws_calls.pause", lambda failures: None)
    for _ in range(5):
        expect_put(stub, b"a1", failed=THROTTLED)

    results = stream.put([Record("a", b"a1"), Record("a", b"a2")])

    assert [type(result.error) for result in results] == [Unavailable, HeldBack]


def test_an_expired_iterator_is_renewed_behind_the_last_record(stream: KinesisStream, stub: Stubber) -> None:
    expect_shards(stub, **{PARENT: []})
    expect_iterator(stub, PARENT, "i1", ShardIteratorType="TRIM_HORIZON")
    expect_records(stub, "i1", "7", following="i2")
    [record] = stream.read(PARENT, after=TRIM_HORIZON, limit=1)

    stub.add_client_error(
        "get_records", "ExpiredIteratorException", expected_params={"ShardIterator": "i2", "Limit": 1}
    )
    expect_iterator(stub, PARENT, "i3", ShardIteratorType="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber="7")
    expect_records(stub, "i3", "8", following="i4")
    [following] = stream.read(PARENT, after=record.sequence, limit=1)

    assert following.sequence == "8"


def test_a_throttled_read_finds_nothing_yet(stream: KinesisStream, stub: Stubber) -> None:
    expect_shards(stub, **{PARENT: []})
    expect_iterator(stub, PARENT, "i1", ShardIteratorType="TRIM_HORIZON")
    stub.add_client_error("get_records", "ProvisionedThroughputExceededException")

    assert stream.read(PARENT, after=TRIM_HORIZON) == []


def test_children_are_leased_when_their_parent_is_read_to_its_end(stream: KinesisStream, stub: Stubber) -> None:
    split = {PARENT: [], LEFT: [PARENT], RIGHT: [PARENT]}
    expect_shards(stub, **split)
    expect_iterator(stub, PARENT, "i1", ShardIteratorType="TRIM_HORIZON")
    expect_records(stub, "i1", "7", following="i2")
    before = stream.lease("billing", "w1")
    stream.checkpoint("billing", PARENT, "7")

    expect_shards(stub, **split)
    expect_iterator(stub, PARENT, "i3", ShardIteratorType="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber="7")
    expect_records(stub, "i3", following=None)
    after = stream.lease("billing", "w1")
    expect_shards(stub, **split)
    again = stream.lease("billing", "w1")

    assert [lease.shard for lease in before] == [PARENT]
    assert [lease.shard for lease in after] == [LEFT, RIGHT]
    assert again == after


def test_a_child_whose_parent_is_gone_is_leased(stream: KinesisStream, stub: Stubber) -> None:
    expect_shards(stub, **{LEFT: [PARENT], RIGHT: [PARENT]})

    assert [lease.shard for lease in stream.lease("billing", "w1")] == [LEFT, RIGHT]


def test_a_stream_that_is_gone_is_not_found(stream: KinesisStream, stub: Stubber) -> None:
    stub.add_client_error("put_records", "ResourceNotFoundException")

    with pytest.raises(StreamNotFound, match="orders"):
        stream.put([Record("a", b"a1")])
