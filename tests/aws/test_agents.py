"""Agents on emulated AWS: Kinesis, DynamoDB and SQS FIFO, with the functions fed as AWS feeds them."""

from __future__ import annotations

import base64
import json
import threading
import time
from typing import Any

import pytest
from tests.aws.cloud import Cloud, dynamodb_event

from postroad.agents import AgentEvent
from postroad.agents.aws.fanout import ATTEMPT_SECONDS
from postroad.agents.aws.rows import row_of
from postroad.agents.tables import SUBSCRIBER_EVENTS, SUBSCRIBERS
from postroad.errors import NotSupported
from postroad.lambdas import aggregator, opened_agents, sweeper

pytestmark = pytest.mark.aws


@pytest.fixture
def cloud(village: Cloud) -> Cloud:
    return village


def test_an_event_goes_the_whole_way(cloud: Cloud) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")

    events = [AgentEvent(cloud.id("ann"), "counted", {"n": n}, "2025-07-01T12:00:00.5Z") for n in (1, 2)]
    [told, _] = cloud.agents.publish(events)
    aggregated = cloud.aggregate()
    released = cloud.release()
    [first, *rest] = cloud.take("bob")

    assert aggregated == released == {"batchItemFailures": []}
    body = json.loads(first.body)
    assert body["data"] == {"n": 1}
    assert body["timestamp"] == "2025-07-01T12:00:00.500Z"
    assert (body["agentId"], body["subscriberId"]) == (cloud.id("ann"), cloud.id("bob"))
    assert (body["eventId"], body["sequenceNumber"]) == (told.event_id, told.sequence)
    assert first.group == cloud.id("ann")
    assert len(rest) <= 1


def test_a_row_has_the_columns_of_its_table_and_a_sort_key_of_its_own(cloud: Cloud) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")
    cloud.publish("ann", 1, 2, timestamp="2025-07-01T12:00:00Z")

    cloud.aggregate()

    rows = cloud.rows()
    assert len({row["timestamp"]["S"] for row in rows}) == 2
    assert all(len(row["timestamp"]["S"].rpartition("#")[2]) == 56 for row in rows)
    assert {*rows[0]} == {
        "subscriberId",
        "timestamp",
        "occurredAt",
        "producerId",
        "eventId",
        "eventType",
        "data",
        "sequenceNumber",
        "arrivedAt",
        "expiresAt",
    }
    assert "M" in rows[0]["data"]


def test_a_batch_that_comes_again_writes_equal_rows_and_sends_nothing_twice(cloud: Cloud) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")
    cloud.publish("ann", 1, 2, 3)
    event = cloud.kinesis_event()

    aggregator.handler(event, None)
    first = cloud.rows()
    aggregator.handler(event, None)
    second = cloud.rows()
    for _ in range(2):
        cloud.release()

    assert _by_key(first) == _by_key(second)
    assert cloud.drain("bob") == [1, 2, 3]


def test_order_holds_when_a_producers_clock_steps_back(cloud: Cloud) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")
    for n, second in ((1, 10), (2, 3), (3, 7)):
        cloud.publish("ann", n, timestamp=f"2025-07-01T12:00:{second:02d}Z")

    cloud.aggregate()
    cloud.release()

    assert cloud.drain("bob") == [1, 2, 3]


def test_records_that_can_never_be_handled_go_to_the_rejects(cloud: Cloud) -> None:
    cloud.register("ann")
    event = {
        "Records": [
            {
                "eventID": f"shardId-0:{n}",
                "kinesis": {
                    "partitionKey": cloud.id("ann"),
                    "sequenceNumber": str(n),
                    "data": data,
                    "approximateArrivalTimestamp": time.time(),
                },
            }
            for n, data in enumerate(["no base64!", base64.b64encode(b"[1]").decode()], 1)
        ]
    }

    answer = aggregator.handler(event, None)

    assert answer == {"batchItemFailures": []}
    rejected = cloud.rejected("ann")
    assert [sorted(body) for body in rejected] == [["data", "partitionKey", "reason", "sequenceNumber", "shardId"]] * 2
    assert {body["data"] for body in rejected} == {"no base64!", base64.b64encode(b"[1]").decode()}


def test_rows_without_images_are_read_and_other_changes_ignored(cloud: Cloud) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")
    cloud.publish("ann", 1)
    cloud.aggregate()

    ignored = cloud.release(dynamodb_event(cloud.rows(), kind="MODIFY"))
    none = cloud.take("bob")
    cloud.release(dynamodb_event(cloud.rows(), images=False))

    assert ignored == {"batchItemFailures": []}
    assert none == []
    assert cloud.drain("bob") == [1]


def test_a_malformed_row_is_put_aside(cloud: Cloud) -> None:
    cloud.register("bob")
    broken: dict[str, Any] = {
        "subscriberId": {"S": cloud.id("bob")},
        "timestamp": {"S": "2025-07-01T00:00:00.000Z#x#1"},
    }

    answer = cloud.release(dynamodb_event([broken]))

    assert answer == {"batchItemFailures": []}
    [rejected] = cloud.rejected("bob")
    assert "cannot be read" in rejected["reason"]


def test_a_row_of_an_agent_that_is_gone_is_dropped(cloud: Cloud) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")
    cloud.publish("ann", 1)
    cloud.aggregate()
    rows = cloud.rows()

    deleted = cloud.agents.delete(cloud.id("bob"))

    assert (deleted.subscriptions, deleted.discarded) == (1, 0)
    assert cloud.release(dynamodb_event(rows)) == {"batchItemFailures": []}
    assert cloud.store.release([row_of(row) for row in rows]).dropped == 1


def test_a_throttled_producer_fails_from_there_on_and_others_go_on(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.register("ann", "bob", "cat")
    cloud.subscribe("cat", "ann")
    cloud.subscribe("cat", "bob")
    cloud.publish("ann", 1, 2)
    cloud.publish("bob", 3)
    event = cloud.kinesis_event()
    store = opened_agents()
    write = store._fan._write

    def throttle(items: Any) -> Any:
        refused = [item for item in items if _producer(item) == cloud.id("ann")]
        write([item for item in items if item not in refused])
        return refused

    with monkeypatch.context() as patch:
        patch.setattr(store._fan, "_write", throttle)
        answer = aggregator.handler(event, None)
    written = [_producer(row) for row in cloud.rows()]
    again = aggregator.handler(event, None)

    ann = [
        record["kinesis"]["sequenceNumber"]
        for record in event["Records"]
        if record["kinesis"]["partitionKey"] == cloud.id("ann")
    ]
    assert answer == {"batchItemFailures": [{"itemIdentifier": min(ann, key=int)}]}
    assert written == [cloud.id("bob")]
    assert again == {"batchItemFailures": []}
    assert len(cloud.rows()) == 3


def test_a_queue_that_refuses_makes_its_pair_wait_and_the_sweeper_empties_it(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.register("ann", "bob", "cat")
    cloud.subscribe("bob", "ann")
    cloud.subscribe("cat", "ann")
    cloud.publish("ann", 1, 2)
    cloud.aggregate()
    store = opened_agents()
    send = store.send

    def refuse(recipient: Any, messages: Any) -> Any:
        if recipient.agent_id == cloud.id("bob"):
            return [NotSupported("full")] * len(messages)
        return send(recipient, messages)

    with monkeypatch.context() as patch:
        patch.setattr(store, "send", refuse)
        patch.setattr(store, "_sleep", lambda _: None)
        answer = cloud.release()
        state = cloud.state("bob", "ann")
    cloud.publish("ann", 3)
    cloud.aggregate()
    swept = sweeper.handler({}, None)
    cloud.release()

    assert answer == {"batchItemFailures": []}
    assert state == "draining"
    assert swept["sent"] == 3
    assert cloud.state("bob", "ann") == "active"
    assert cloud.drain("bob") == [1, 2, 3]
    assert cloud.drain("cat") == [1, 2, 3]


def test_a_paused_producer_is_withheld_until_the_publisher_meets_the_marker(cloud: Cloud) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")
    pair = (cloud.id("bob"), cloud.id("ann"))
    cloud.agents.pause(*pair)
    cloud.publish("ann", 1, 2)
    cloud.aggregate()
    cloud.release()
    withheld = cloud.take("bob")

    cloud.agents.resume(*pair)
    markers = cloud.markers()
    cloud.release(dynamodb_event(markers))

    assert withheld == []
    assert len(markers) == 1
    assert cloud.drain("bob") == [1, 2]
    assert cloud.state("bob", "ann") == "active"


def test_a_replay_brings_rows_again_marked(cloud: Cloud) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")
    cloud.publish("ann", 1, 2)
    cloud.aggregate()
    cloud.release()
    cloud.drain("bob")

    replayed = cloud.agents.replay(cloud.id("bob"), cloud.id("ann"))
    cloud.release(dynamodb_event(cloud.markers()))
    again = [json.loads(delivery.body) for delivery in cloud.take("bob")]

    assert replayed == 2
    assert all(body["replay"] for body in again)
    assert again[0]["data"] == {"n": 1}


def test_a_replay_keeps_to_the_retention_before_dynamodb_removes_what_expired(cloud: Cloud) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")
    cloud.publish("ann", 1, 2)
    cloud.aggregate()
    [old, _] = sorted(cloud.rows(), key=lambda row: int(row["sequenceNumber"]["S"]))
    cloud.aws.dynamodb.put_item(
        TableName=cloud.store._tables.name(SUBSCRIBER_EVENTS), Item={**old, "expiresAt": {"N": "1700000000"}}
    )

    replayed = cloud.agents.replay(cloud.id("bob"), cloud.id("ann"))
    cloud.release(dynamodb_event(cloud.markers()))

    assert replayed == 1
    assert cloud.drain("bob") == [2]


def test_fan_out_to_many_costs_few_calls(cloud: Cloud) -> None:
    cloud.register("ann")
    table = cloud.store._tables.name(SUBSCRIBERS)
    requests = [
        {
            "PutRequest": {
                "Item": {
                    "producerId": {"S": cloud.id("ann")},
                    "subscriberId": {"S": f"{n}-{cloud.ending}"},
                    "createdAt": {"S": "2020-01-01T00:00:00.000Z"},
                    "state": {"S": "active"},
                }
            }
        }
        for n in range(200)
    ]
    for start in range(0, 200, 25):
        cloud.aws.dynamodb.batch_write_item(RequestItems={table: requests[start : start + 25]})  # type: ignore[dict-item]  # plain dictionaries
    cloud.publish("ann", 1)
    calls: list[str] = []
    tables = opened_agents()._tables
    for client in (tables.client, tables._connection.client("dynamodb", ATTEMPT_SECONDS)):
        client.meta.events.register("before-call.dynamodb", lambda model, **_: calls.append(model.name))

    cloud.aggregate()

    assert len(cloud.rows()) == 200
    assert 8 < len(calls) <= 0.05 * 200


def test_nothing_that_arrived_more_than_five_seconds_before_the_subscription_is_delivered(cloud: Cloud) -> None:
    cloud.register("ann", "bob")
    cloud.publish("ann", 1, 2)
    event = cloud.kinesis_event()
    cloud.subscribe("bob", "ann")
    for record, age in zip(event["Records"], (6.0, 4.0), strict=True):
        record["kinesis"]["approximateArrivalTimestamp"] = time.time() - age

    aggregator.handler(event, None)
    cloud.release()

    assert cloud.drain("bob") == [2]


def test_an_event_published_again_is_delivered_once_and_the_first_payload_wins(cloud: Cloud) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")
    cloud.publish("ann", 1, event_id="same")
    cloud.publish("ann", 2, event_id="same")

    cloud.aggregate()
    cloud.release()
    [delivery] = cloud.take("bob")

    assert len(cloud.rows()) == 2
    assert json.loads(delivery.body)["data"] == {"n": 1}


def test_what_dynamodb_did_not_process_is_written_again_and_given_up_after_three_attempts(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.register("ann", "bob", "cat")
    cloud.subscribe("bob", "ann")
    cloud.subscribe("cat", "ann")
    cloud.publish("ann", 1, 2)
    event = cloud.kinesis_event()
    store = opened_agents()
    batch, sizes = store._tables.batch, list[int]()

    def process_half(operation: str, requests: dict[str, Any], *, within: float | None = None) -> Any:
        if operation != "batch_write_item":
            return batch(operation, requests, within=within)
        [(table, writes)] = requests.items()
        sizes.append(len(writes))
        batch(operation, {table: writes[: len(writes) // 2]}, within=within) if len(writes) > 1 else None
        return {"UnprocessedItems": {table: writes[len(writes) // 2 :]}}

    with monkeypatch.context() as patch:
        patch.setattr(store._tables, "batch", process_half)
        patch.setattr(store._fan, "_sleep", lambda _: None)
        answer = aggregator.handler(event, None)
    half = len(cloud.rows())
    again = aggregator.handler(event, None)

    lowest = min((record["kinesis"]["sequenceNumber"] for record in event["Records"]), key=int)
    assert sizes == [2, 1, 1]
    assert (answer, half) == ({"batchItemFailures": [{"itemIdentifier": lowest}]}, 1)
    assert again == {"batchItemFailures": []}
    assert len(cloud.rows()) == 4


def test_one_call_carries_one_entry_of_a_group_and_a_refused_one_holds_back_its_own(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    producers = [f"p{n}" for n in range(12)]
    cloud.register("bob", *producers)
    for name in producers:
        cloud.subscribe("bob", name)
        cloud.publish(name, 1, 2)
    cloud.aggregate()
    store = opened_agents()
    send, calls = store.send, list[list[str]]()

    def refuse_one(recipient: Any, messages: Any) -> Any:
        calls.append([message.group for message in messages])
        kept = [message for message in messages if message.group != cloud.id("p3")]
        results = iter(send(recipient, kept) if kept else [])
        return [next(results) if message in kept else NotSupported("no") for message in messages]

    with monkeypatch.context() as patch:
        patch.setattr(store, "send", refuse_one)
        patch.setattr(store, "_sleep", lambda _: None)
        answer = cloud.release()
    before = cloud.by_producer("bob")
    sweeper.handler({}, None)

    assert answer == {"batchItemFailures": []}
    assert max(len(groups) for groups in calls) == 10
    assert all(len(groups) == len(set(groups)) for groups in calls)
    assert before == {cloud.id(name): [1, 2] for name in producers if name != "p3"}
    assert cloud.by_producer("bob") == {cloud.id("p3"): [1, 2]}


def test_subscribers_are_read_consistently_and_to_the_last_page(cloud: Cloud) -> None:
    cloud.register("ann", "bob", "cat")
    cloud.subscribe("bob", "ann")
    cloud.subscribe("cat", "ann")
    cloud.publish("ann", 1)
    asked: list[Any] = []

    def one_at_a_time(params: Any, **_: Any) -> Any:
        asked.append(params)
        return {**params, "Limit": 1}

    events, hook = opened_agents()._tables.client.meta.events, "provide-client-params.dynamodb.Query"
    events.register(hook, one_at_a_time)
    try:
        cloud.aggregate()
    finally:
        events.unregister(hook, one_at_a_time)

    assert len(cloud.rows()) == 2
    assert len(asked) >= 2
    assert all(each["ConsistentRead"] for each in asked)


def test_different_subscribers_are_sent_to_at_the_same_time(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.register("ann", "bob", "cat")
    cloud.subscribe("bob", "ann")
    cloud.subscribe("cat", "ann")
    cloud.publish("ann", 1)
    cloud.aggregate()
    both = threading.Barrier(2, timeout=120)
    store = opened_agents()
    send = store.send

    def together(recipient: Any, messages: Any) -> Any:
        both.wait()
        return send(recipient, messages)

    monkeypatch.setattr(store, "send", together)
    cloud.release()

    assert not both.broken
    assert [cloud.drain(name) for name in ("bob", "cat")] == [[1], [1]]


def test_keys_that_dynamodb_did_not_process_are_asked_for_again(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")
    cloud.publish("ann", 1, 2)
    cloud.aggregate()
    event = dynamodb_event(cloud.rows(), images=False)
    store = opened_agents()
    batch = store._tables.batch

    def one_at_a_time(operation: str, requests: dict[str, Any]) -> Any:
        [(table, wanted)] = requests.items()
        first, rest = wanted["Keys"][:1], wanted["Keys"][1:]
        answer = batch(operation, {table: {**wanted, "Keys": first}})
        return {**answer, "UnprocessedKeys": {table: {**wanted, "Keys": rest}} if rest else {}}

    monkeypatch.setattr(store._tables, "batch", one_at_a_time)
    cloud.release(event)
    monkeypatch.undo()

    assert cloud.drain("bob") == [1, 2]


def _by_key(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["timestamp"]["S"]: row for row in rows}


def _producer(item: dict[str, Any]) -> str:
    return str(item["producerId"]["S"])
