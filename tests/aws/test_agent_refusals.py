"""What AWS will never take blocks nobody: it travels in another form, or is put aside with the reason."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.aws.cloud import Cloud
from tests.aws.endpoint import Answer, Endpoint, invalid

from postroad.agents import AgentEvent
from postroad.lambdas import aggregator, sweeper

pytestmark = pytest.mark.aws

MOST_BATCH_BYTES = 16 * 1024 * 1024
NOTHING_FAILED: dict[str, Any] = {"batchItemFailures": []}


@pytest.fixture(scope="module")
def agents_endpoint(limited: Endpoint) -> str:
    return limited.url


@pytest.fixture
def cloud(village: Cloud) -> Cloud:
    """`bob` listens to `ann` and `cat`."""
    village.register("ann", "bob", "cat")
    village.subscribe("bob", "ann")
    village.subscribe("bob", "cat")
    return village


def _publish(cloud: Cloud, name: str, *data: dict[str, Any]) -> None:
    results = cloud.agents.publish([AgentEvent(cloud.id(name), "counted", each) for each in data])
    assert all(result.ok for result in results), results


def _received(cloud: Cloud, name: str, producer: str) -> list[dict[str, Any]]:
    """What the agent gets of one producer, acked; that of others goes."""
    queue = cloud.agents.queue(cloud.id(name))
    found: list[dict[str, Any]] = []
    while taken := queue.receive():
        found += [json.loads(each.body)["data"] for each in taken if each.group == cloud.id(producer)]
        queue.ack(taken)
    return found


def _nested(levels: int) -> dict[str, Any]:
    data: dict[str, Any] = {"n": 1}
    for _ in range(levels - 1):
        data = {"in": data}
    return data


@pytest.mark.parametrize("levels", [30, 31, 32, 33, 40, 60])
def test_deeply_nested_data_is_delivered_and_delays_nobody(cloud: Cloud, levels: int) -> None:
    _publish(cloud, "ann", _nested(levels), {"n": 2})
    _publish(cloud, "cat", {"n": 3})

    assert cloud.aggregate() == NOTHING_FAILED
    assert cloud.release() == NOTHING_FAILED
    assert _received(cloud, "bob", "ann") == [_nested(levels), {"n": 2}]
    assert cloud.rejected("ann") == []


@pytest.mark.parametrize(
    "text",
    [
        '{"": 1}',
        '{"a": 1.0}',
        '{"a": [-0.0, 1e22, 1e-300]}',
        '{"a": 12345678901234567890123456789012345678901}',
        '{"a": [0.1, 1e-7, -5, 100]}',
        '{"a": "\\ufffe and \\uffff"}',
        '{"\\uffff": "\\u2028\\u0001\\u007f"}',
    ],
)
def test_any_data_that_is_accepted_arrives_unchanged(cloud: Cloud, text: str) -> None:
    _publish(cloud, "ann", json.loads(text))
    record = f'{{"agentId": "{cloud.id("ann")}", "eventType": "put", "data": {text}}}'
    cloud.aws.kinesis.put_record(StreamName=cloud.stream, PartitionKey=cloud.id("ann"), Data=record.encode())

    assert cloud.aggregate() == NOTHING_FAILED
    assert cloud.release() == NOTHING_FAILED
    found = _received(cloud, "bob", "ann")

    assert [json.dumps(data) for data in found] == [json.dumps(json.loads(text))] * 2
    assert cloud.state("bob", "ann") == "active"


@pytest.mark.slow
def test_rows_that_are_more_than_one_call_takes_are_written_by_several(cloud: Cloud, limited: Endpoint) -> None:
    listeners = [f"listener{number}" for number in range(24)]
    cloud.register(*listeners)
    for listener in listeners:
        cloud.subscribe(listener, "ann")
    large = {"n": 1, "text": "é" * 130_000}  # six bytes for each letter on the way
    _publish(cloud, "ann", large)
    event = cloud.kinesis_event()
    limited.requests.clear()

    # A slow machine may take longer than an attempt may.
    while (answer := aggregator.handler(event, None)) != NOTHING_FAILED:
        assert answer["batchItemFailures"]
    sizes = [len(json.dumps(call)) for call in limited.calls("BatchWriteItem")]

    assert sum(sizes) > MOST_BATCH_BYTES > max(sizes)
    assert len(cloud.rows()) == 25


def test_a_row_that_dynamodb_refuses_is_put_aside_and_the_rest_of_its_batch_goes_on(
    cloud: Cloud, limited: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.publish("ann", 1, 13, 2)
    cloud.publish("cat", 5)

    def refuse(parameters: dict[str, Any]) -> Answer | None:
        return invalid("no thirteen") if '{"N": "13"}' in json.dumps(parameters) else None

    monkeypatch.setitem(limited.answers, "BatchWriteItem", refuse)

    assert cloud.aggregate() == NOTHING_FAILED
    assert cloud.release() == NOTHING_FAILED
    assert cloud.by_producer("bob") == {cloud.id("ann"): [1, 2], cloud.id("cat"): [5]}
    [entry] = cloud.rejected("ann")
    assert cloud.id("bob") in entry["reason"]
    assert "ValidationException: no thirteen" in entry["reason"]
    assert json.loads(base64.b64decode(entry["data"]))["data"] == {"n": 13}


@pytest.mark.parametrize("whole_call", [False, True], ids=["one entry", "the whole call"])
def test_a_message_that_sqs_refuses_is_put_aside_and_not_tried_again(
    cloud: Cloud, limited: Endpoint, monkeypatch: pytest.MonkeyPatch, whole_call: bool
) -> None:
    cloud.publish("ann", 1, 13, 2)
    cloud.publish("cat", 5)
    cloud.aggregate()
    seen: list[str] = []

    def refuse(parameters: dict[str, Any]) -> Answer | None:
        bad = [entry for entry in parameters["Entries"] if '"n":13' in entry["MessageBody"]]
        if not bad:
            return None
        seen.append(bad[0]["MessageBody"])
        if whole_call:
            return Answer({"__type": "com.amazonaws.sqs#InvalidMessageContents", "message": "no thirteen"}, 400)
        failed = [{"Id": bad[0]["Id"], "SenderFault": True, "Code": "InvalidMessageContents", "Message": "no thirteen"}]
        parameters["Entries"] = [entry for entry in parameters["Entries"] if entry not in bad]
        return Answer({"Failed": failed}, added=bool(parameters["Entries"]))

    monkeypatch.setitem(limited.answers, "SendMessageBatch", refuse)

    assert cloud.release() == NOTHING_FAILED
    assert cloud.state("bob", "ann") == "active"
    assert cloud.by_producer("bob") == {cloud.id("ann"): [1, 2], cloud.id("cat"): [5]}
    [entry] = cloud.rejected("ann")
    assert "no thirteen" in entry["reason"]
    assert json.loads(base64.b64decode(entry["data"]))["data"] == {"n": 13}
    assert len(seen) <= 2
    assert sweeper.handler({}, None)["held"] == 0
