"""Agents on emulated AWS when something dies, is refused, ends or is cut in two: order holds and nothing is lost."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import uuid
from typing import Any

import pytest
from tests.aws.cloud import Cloud, dynamodb_event

from postroad.agents.tables import DEAD_QUEUE
from postroad.errors import NotSupported
from postroad.lambdas import aggregator, opened_agents, publisher, sweeper

pytestmark = pytest.mark.aws

_HANDLE = """
import importlib, json, sys
handler = importlib.import_module(f"postroad.lambdas.{sys.argv[1]}").handler
print(json.dumps(handler(json.load(sys.stdin), None)))
"""


@pytest.fixture
def cloud(village: Cloud) -> Cloud:
    """`bob` listens to `ann`."""
    village.register("ann", "bob")
    village.subscribe("bob", "ann")
    return village


def _killed(name: str, event: dict[str, Any], told: str) -> int:
    """Run a function in a process of its own; how it ended."""
    environment = {**os.environ, "POSTROAD_FAILPOINTS": told}
    command = [sys.executable, "-c", _HANDLE, name]
    done = subprocess.run(
        command, input=json.dumps(event), env=environment, text=True, check=False, capture_output=True
    )
    return done.returncode


def _moved(cloud: Cloud, count: int) -> list[int]:
    """Let a runner work until `bob` got so many; a slow machine may cost it its lease now and then."""
    runner = cloud.agents.runner(worker="w")
    found: list[int] = []
    while len(found) < count:
        cloud.store._swept_at = float("-inf")
        runner.run_once()
        found += cloud.drain("bob")
    return found


def _refusing(monkeypatch: pytest.MonkeyPatch, refused: set[str], taken: int = 0) -> None:
    """Let queues of these agents take so many messages and refuse all others."""
    store = opened_agents()
    send = store.send
    left = dict.fromkeys(refused, taken)

    def refuse(recipient: Any, messages: Any) -> Any:
        if recipient.agent_id not in refused:
            return send(recipient, messages)
        left[recipient.agent_id] -= len(messages)
        if left[recipient.agent_id] >= 0:
            return send(recipient, messages)
        return [NotSupported("full")] * len(messages)

    monkeypatch.setattr(store, "send", refuse)
    monkeypatch.setattr(store, "_sleep", lambda _: None)


@pytest.mark.slow
def test_an_aggregator_killed_between_its_writes_loses_nothing_and_writes_nothing_twice(cloud: Cloud) -> None:
    cloud.register("cat")
    cloud.subscribe("cat", "ann")
    cloud.publish("ann", 1, 2, 3)
    event = cloud.kinesis_event()

    death = _killed("aggregator", event, "agents.aggregate.mid=kill9#2")
    half = len(cloud.rows())
    again = aggregator.handler(event, None)
    cloud.release()

    assert (death, half) == (-signal.SIGKILL, 4)
    assert again == {"batchItemFailures": []}
    assert [cloud.drain(name) for name in ("bob", "cat")] == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.slow
def test_a_publisher_killed_between_its_sends_loses_nothing_and_keeps_each_producers_order(cloud: Cloud) -> None:
    cloud.register("cat")
    cloud.subscribe("bob", "cat")
    cloud.publish("ann", 1, 2, 3)
    cloud.publish("cat", 11, 12)
    cloud.aggregate()
    event = dynamodb_event(cloud.rows())

    death = _killed("publisher", event, "agents.release.mid=kill9#2")
    again = publisher.handler(event, None)

    found = cloud.drain("bob")
    assert death == -signal.SIGKILL
    assert again == {"batchItemFailures": []}
    assert [n for n in found if n < 10] == [1, 2, 3]
    assert [n for n in found if n > 10] == [11, 12]


@pytest.mark.slow
def test_a_runner_killed_before_it_noted_its_position_loses_nothing(cloud: Cloud) -> None:
    cloud.publish("ann", 1, 2, 3)
    run = "from postroad.wiring import connect\nwith connect() as b: b.agents().runner(worker='w').run_once()"
    environment = {**os.environ, "POSTROAD_FAILPOINTS": "agents.release.mid=kill9#2"}

    death = subprocess.run([sys.executable, "-c", run], env=environment, check=False).returncode

    assert death == -signal.SIGKILL
    assert _moved(cloud, 3) == [1, 2, 3]


def test_the_runner_alone_delivers_resumes_and_replays(cloud: Cloud) -> None:
    runner = cloud.agents.runner(worker="w")
    pair = (cloud.id("bob"), cloud.id("ann"))
    cloud.publish("ann", 1)
    before = _moved(cloud, 1)
    cloud.agents.pause(*pair)
    cloud.publish("ann", 2)
    while cloud.store.pairs.pairs(pair[0], {pair[1]})[pair[1]].held is None:
        runner.run_once()
    replayed = cloud.agents.replay(*pair, since="2000-01-01T00:00:00Z")
    while_paused = cloud.drain("bob")
    cloud.agents.resume(*pair)

    assert (before, replayed, while_paused) == ([1], 2, [])
    assert _moved(cloud, 2) == [1, 2]
    assert cloud.state("bob", "ann") == "active"


def test_events_before_and_behind_a_resharding_keep_their_order(cloud: Cloud) -> None:
    cloud.publish("ann", 1, 2)
    before = _moved(cloud, 2)
    shards = cloud.aws.kinesis.list_shards(StreamName=cloud.stream)["Shards"]
    for shard in shards:
        low, high = (int(shard["HashKeyRange"][end]) for end in ("StartingHashKey", "EndingHashKey"))
        cloud.aws.kinesis.split_shard(
            StreamName=cloud.stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high) // 2)
        )
    cloud.publish("ann", 3, 4)
    behind = _moved(cloud, 2)

    assert len(cloud.aws.kinesis.list_shards(StreamName=cloud.stream)["Shards"]) > len(shards)
    assert (before, behind) == ([1, 2], [3, 4])


def test_a_record_put_on_the_stream_directly_is_an_event_like_any_other(cloud: Cloud) -> None:
    record = {"agentId": cloud.id("ann"), "eventType": "counted", "data": {"n": 1}}
    cloud.aws.kinesis.put_record(
        StreamName=cloud.stream, PartitionKey=cloud.id("ann"), Data=json.dumps(record).encode()
    )
    cloud.publish("ann", 2)
    event = cloud.kinesis_event()

    aggregator.handler(event, None)
    first = {row["eventId"]["S"] for row in cloud.rows()}
    aggregator.handler(event, None)
    cloud.release()
    bodies = [json.loads(each.body) for each in cloud.take("bob")]

    assert {row["eventId"]["S"] for row in cloud.rows()} == first
    assert all(sorted(body) == sorted(bodies[0]) for body in bodies)
    assert bodies[0]["data"] == {"n": 1}
    assert uuid.UUID(bodies[0]["eventId"]).version == 5


def test_an_agent_that_wants_one_order_gets_all_producers_merged_in_one_group(cloud: Cloud) -> None:
    cloud.register("cat")
    cloud.register("tom", order="total")
    cloud.subscribe("tom", "ann")
    cloud.subscribe("tom", "cat")
    cloud.publish("ann", 1, timestamp="2025-07-01T12:00:01Z")
    cloud.publish("cat", 2, timestamp="2025-07-01T12:00:02Z")
    cloud.publish("ann", 3, timestamp="2025-07-01T12:00:03Z")
    cloud.aggregate()

    cloud.release()
    [first] = cloud.agents.queue(cloud.id("tom")).receive(max_messages=1)
    behind = cloud.take("tom")
    cloud.agents.queue(cloud.id("tom")).release([first])

    assert first.group == cloud.id("tom")
    assert behind == []
    assert cloud.drain("tom") == [1, 2, 3]


def test_a_row_older_than_what_was_released_is_late_when_events_are_held_back(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCH_DELAY_SECONDS", "0.01")
    cloud.register("cat")
    cloud.subscribe("bob", "cat")
    cloud.publish("ann", 1, timestamp="2025-07-01T12:00:10Z")
    cloud.aggregate()
    cloud.release()
    cloud.publish("cat", 2, timestamp="2025-07-01T12:00:05Z")
    cloud.aggregate()

    cloud.release(dynamodb_event([row for row in cloud.rows() if row["producerId"]["S"] == cloud.id("cat")]))
    bodies = [json.loads(each.body) for each in cloud.take("bob")]

    assert [(body["data"]["n"], body.get("late")) for body in bodies] == [(1, None), (2, True)]


def test_a_publisher_waits_for_its_youngest_row_when_events_are_held_back(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCH_DELAY_SECONDS", "300")
    waited: list[float] = []
    monkeypatch.setattr(opened_agents(), "_sleep", waited.append)
    cloud.publish("ann", 1)
    cloud.aggregate()

    cloud.release()

    assert 200 < waited[0] <= 300
    assert cloud.drain("bob") == [1]


def test_discarding_takes_out_what_waits_of_one_producer_alone(cloud: Cloud) -> None:
    cloud.register("cat")
    cloud.subscribe("bob", "cat")
    cloud.publish("ann", 1)
    cloud.publish("cat", 2)
    cloud.aggregate()
    cloud.release()
    cloud.publish("ann", 3)
    cloud.aggregate()
    unsent = [row for row in cloud.rows() if row["data"]["M"]["n"]["N"] == "3"]

    ended = cloud.agents.unsubscribe(cloud.id("bob"), cloud.id("ann"), discard=True)
    cloud.release(dynamodb_event(unsent))
    sent = cloud.agents.stats(cloud.id("bob")).visible

    assert (ended, sent) == (True, 2)
    assert {row["producerId"]["S"] for row in cloud.rows()} == {cloud.id("cat")}
    assert cloud.drain("bob") == [2]


def test_what_comes_after_a_discard_and_a_new_subscription_is_delivered(cloud: Cloud) -> None:
    cloud.publish("ann", 1)
    cloud.aggregate()
    cloud.release()
    cloud.agents.unsubscribe(cloud.id("bob"), cloud.id("ann"), discard=True)
    cloud.subscribe("bob", "ann")

    cloud.publish("ann", 2)
    cloud.aggregate()
    cloud.release()

    assert cloud.drain("bob") == [2]


def test_unsubscribing_leaves_what_was_withheld_deliverable(cloud: Cloud) -> None:
    pair = (cloud.id("bob"), cloud.id("ann"))
    cloud.agents.pause(*pair)
    cloud.publish("ann", 1, 2)
    cloud.aggregate()
    cloud.release()

    ended = cloud.agents.unsubscribe(*pair)
    again = cloud.agents.unsubscribe(*pair)
    cloud.release(dynamodb_event(cloud.markers()))

    assert (ended, again) == (True, False)
    assert cloud.drain("bob") == [1, 2]


def test_a_queue_that_takes_some_and_refuses_the_rest_gets_the_rest_later_in_order(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.publish("ann", 1, 2, 3, 4)
    cloud.aggregate()
    with monkeypatch.context() as patch:
        _refusing(patch, {cloud.id("bob")}, taken=1)
        first = cloud.release()
    with monkeypatch.context() as patch:
        _refusing(patch, {cloud.id("bob")}, taken=1)
        swept = sweeper.handler({}, None)
    state = cloud.state("bob", "ann")
    held = cloud.store.pairs.pairs(cloud.id("bob"), {cloud.id("ann")})[cloud.id("ann")].held
    third = next(row["sequenceNumber"]["S"] for row in cloud.rows() if row["data"]["M"]["n"]["N"] == "3")
    cloud.publish("ann", 5)
    cloud.aggregate()
    cloud.release()

    assert first == {"batchItemFailures": []}
    assert (swept["sent"], state) == (1, "draining")
    assert held is not None
    assert held.sequence == third
    assert cloud.drain("bob") == [1, 2, 3, 4, 5]
    assert cloud.state("bob", "ann") == "active"


def test_a_row_that_can_be_neither_sent_nor_marked_comes_again(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.publish("ann", 1, 2)
    cloud.aggregate()
    event = dynamodb_event(cloud.rows())
    cloud.agents.unsubscribe(cloud.id("bob"), cloud.id("ann"))
    with monkeypatch.context() as patch:
        _refusing(patch, {cloud.id("bob")}, taken=1)
        answer = publisher.handler(event, None)

    again = publisher.handler(event, None)

    second = max(record["dynamodb"]["SequenceNumber"] for record in event["Records"])
    assert answer == {"batchItemFailures": [{"itemIdentifier": second}]}
    assert again == {"batchItemFailures": []}
    assert cloud.drain("bob") == [1, 2]


def test_a_paused_pair_stays_paused_when_its_queue_refuses(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = (cloud.id("bob"), cloud.id("ann"))
    cloud.publish("ann", 1)
    cloud.aggregate()
    store = opened_agents()
    hold = store.pairs.hold

    def pause_first(row: Any) -> bool:
        cloud.agents.pause(*pair)
        return hold(row)

    with monkeypatch.context() as patch:
        _refusing(patch, {cloud.id("bob")})
        patch.setattr(store.pairs, "hold", pause_first)
        cloud.release()
    sweeper.handler({}, None)

    assert cloud.state("bob", "ann") == "paused"
    assert cloud.take("bob") == []
    cloud.agents.resume(*pair)
    sweeper.handler({}, None)
    assert cloud.drain("bob") == [1]


def test_a_resumption_while_the_publisher_holds_rows_back_is_not_undone(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = (cloud.id("bob"), cloud.id("ann"))
    cloud.agents.pause(*pair)
    cloud.publish("ann", 1)
    cloud.aggregate()
    store = opened_agents()
    hold = store.pairs.hold

    def resume_first(row: Any) -> bool:
        cloud.agents.resume(*pair)
        return hold(row)

    with monkeypatch.context() as patch:
        patch.setattr(store.pairs, "hold", resume_first)
        cloud.release()
    sweeper.handler({}, None)

    assert cloud.drain("bob") == [1]
    assert cloud.state("bob", "ann") == "active"


def test_more_held_back_while_the_sweeper_drains_stays_held(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.publish("ann", 1)
    cloud.aggregate()
    store = opened_agents()
    with monkeypatch.context() as patch:
        _refusing(patch, {cloud.id("bob")})
        cloud.release()
    settle = store.pairs.settle

    def hold_more_first(subscriber_id: str, producer_id: str, pair: Any) -> None:
        monkeypatch.undo()
        cloud.publish("ann", 2)
        cloud.aggregate()
        with monkeypatch.context() as patch:
            _refusing(patch, {cloud.id("bob")})
            cloud.release()
        settle(subscriber_id, producer_id, pair)

    monkeypatch.setattr(store.pairs, "settle", hold_more_first)
    sweeper.handler({}, None)
    sweeper.handler({}, None)

    assert cloud.drain("bob") == [1, 2]


def test_a_held_row_with_an_older_timestamp_is_found_again(cloud: Cloud) -> None:
    pair = (cloud.id("bob"), cloud.id("ann"))
    cloud.agents.pause(*pair)
    for n, second in ((1, 10), (2, 3)):
        cloud.publish("ann", n, timestamp=f"2025-07-01T12:00:{second:02d}Z")
        cloud.aggregate()
        cloud.release()

    cloud.agents.resume(*pair)
    sweeper.handler({}, None)

    assert cloud.drain("bob") == [1, 2]


def test_dead_letters_are_redriven_behind_what_waits_past_those_of_others(cloud: Cloud) -> None:
    strict = cloud.backend.agents(max_receives=1)
    for name in ("cat", "tom"):
        strict.register(cloud.id(name))
        cloud.subscribe(name, "ann")
    cloud.publish("ann", *range(12))
    cloud.aggregate()
    cloud.release()
    for name in ("cat", "tom"):
        _let_die(cloud, name)

    listed = strict.dead_letters(cloud.id("tom"))
    limited = strict.redrive(cloud.id("tom"), limit=5)
    rest = strict.redrive(cloud.id("tom"))

    assert {json.loads(each.body)["subscriberId"] for each in listed} <= {cloud.id("tom")}
    assert (limited, rest) == (5, 7)
    assert cloud.drain("tom") == list(range(12))
    assert cloud.drain("cat") == []
    assert strict.redrive(cloud.id("cat")) == 12
    assert cloud.backend.queue(DEAD_QUEUE).stats().visible == 0


def _let_die(cloud: Cloud, name: str) -> None:
    """Receive everything once more than it may be."""
    queue = cloud.agents.queue(cloud.id(name))
    while taken := queue.receive():
        queue.release(taken)


def test_a_function_reads_what_aws_documents(cloud: Cloud) -> None:
    data = base64.b64encode(
        json.dumps(
            {
                "agentId": cloud.id("ann"),
                "timestamp": "2018-12-17T22:10:50.987Z",
                "eventType": "greeted",
                "data": {"n": 1, "text": "Hello, this is a test."},
            }
        ).encode()
    ).decode()
    sequence = "49590338271490256608559692538361571095921575989136588898"
    kinesis = {
        "Records": [
            {
                "kinesis": {
                    "kinesisSchemaVersion": "1.0",
                    "partitionKey": cloud.id("ann"),
                    "sequenceNumber": sequence,
                    "data": data,
                    "approximateArrivalTimestamp": 4102444800.987,
                },
                "eventSource": "aws:kinesis",
                "eventVersion": "1.0",
                "eventID": f"shardId-000000000006:{sequence}",
                "eventName": "aws:kinesis:record",
                "invokeIdentityArn": "arn:aws:iam::123456789012:role/lambda-role",
                "awsRegion": "us-east-2",
                "eventSourceARN": "arn:aws:kinesis:us-east-2:123456789012:stream/lambda-stream",
            }
        ]
    }

    aggregated = aggregator.handler(kinesis, None)
    [row] = cloud.rows()
    removed = {
        "eventID": "1",
        "eventVersion": "1.1",
        "eventName": "REMOVE",
        "eventSource": "aws:dynamodb",
        "awsRegion": "us-east-2",
        "userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"},
        "dynamodb": {
            "Keys": {"subscriberId": row["subscriberId"], "timestamp": row["timestamp"]},
            "SequenceNumber": "100000000003498069978",
            "SizeBytes": 26,
            "StreamViewType": "NEW_IMAGE",
        },
        "eventSourceARN": "arn:aws:dynamodb:us-east-2:123456789012:table/my-table/stream/2024-06-10T19:26:16.525",
    }
    released = publisher.handler({"Records": [removed, *dynamodb_event([row])["Records"]]}, None)
    [delivery] = cloud.take("bob")

    assert aggregated == released == {"batchItemFailures": []}
    assert row["timestamp"] == {"S": f"2018-12-17T22:10:50.987Z#{cloud.id('ann')}#{sequence:0>56}"}
    assert json.loads(delivery.body)["sequenceNumber"] == sequence
    assert json.loads(delivery.body)["data"] == {"n": 1, "text": "Hello, this is a test."}
