"""When DynamoDB does not take rows: a write is given up after three attempts or five seconds, a silent one too."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from tests.aws.endpoint import Answer, Endpoint, error

from postroad.agents.aws.fanout import ATTEMPT_SECONDS, ATTEMPTS, GIVE_UP_SECONDS, DynamoFan, put_rejected
from postroad.agents.stream import StreamEvent
from postroad.agents.tables import Tables
from postroad.connections.aws import AwsConnection
from postroad.errors import Unavailable
from postroad.lambdas import aggregator
from postroad.queues import Queue, QueueSpec
from postroad.testing import FakeClock
from postroad.wiring import connect

SUBSCRIBER = {"subscriberId": {"S": "bob"}, "createdAt": {"S": "2020-01-01T00:00:00.000Z"}}
EVENT = StreamEvent("ann", "e", "counted", 0, b'{"n":1}', "shard", "7", datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def fan(scripted: Endpoint, scripted_aws: AwsConnection, clock: FakeClock) -> DynamoFan:
    """`bob` listens to everybody, and a pause moves the clock instead of passing."""
    scripted.on("Query", Answer({"Items": [SUBSCRIBER]}))
    return DynamoFan(
        Tables(scripted_aws), partial(put_rejected, _no_queue), retention=60, clock=clock, sleep=clock.advance
    )


@pytest.mark.slow
def test_a_write_that_is_never_answered_is_given_up_and_comes_again_from_the_lowest(
    scripted: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_URL", f"aws://us-east-1?endpoint_url={scripted.url}")
    scripted.on("Query", Answer({"Items": [SUBSCRIBER]}))
    scripted.on("BatchWriteItem", Answer(silent=True))
    began = time.monotonic()

    answer = aggregator.handler({"Records": [_record("70"), _record("8")]}, None)

    assert answer == {"batchItemFailures": [{"itemIdentifier": "8"}]}
    assert 1 <= len(scripted.calls("BatchWriteItem")) <= ATTEMPTS
    # The endpoint is silent for thirty seconds, and one attempt of a patient client takes as long.
    assert time.monotonic() - began < 25


def test_three_attempts_and_their_pauses_fit_into_the_time_of_a_call(
    scripted: Endpoint, fan: DynamoFan, clock: FakeClock
) -> None:
    scripted.on("BatchWriteItem", lambda _: _after(clock, ATTEMPT_SECONDS, error("InternalServerError", 500)))
    began = clock.monotonic()

    outcome = fan.write([EVENT])

    assert outcome.failed == (EVENT,)
    assert len(scripted.calls("BatchWriteItem")) == ATTEMPTS == 3
    assert clock.monotonic() - began <= GIVE_UP_SECONDS == 5


def test_an_attempt_that_might_end_too_late_is_not_made(scripted: Endpoint, fan: DynamoFan, clock: FakeClock) -> None:
    scripted.on("BatchWriteItem", lambda _: _after(clock, 4.0, error("InternalServerError", 500)))

    outcome = fan.write([EVENT])

    assert outcome.failed == (EVENT,)
    assert len(scripted.calls("BatchWriteItem")) == 1


def test_a_write_whose_answer_was_lost_is_written_again_with_equal_items(scripted: Endpoint, fan: DynamoFan) -> None:
    scripted.on("BatchWriteItem", Answer(cut=True), error("ThrottlingException"), Answer({"UnprocessedItems": {}}))

    outcome = fan.write([EVENT])

    first, second, third = scripted.calls("BatchWriteItem")
    assert (outcome.written, outcome.failed) == (1, ())
    assert first == second == third


def test_rows_that_are_refused_for_good_are_counted_and_seen_in_the_queue_of_rejects(
    scripted: Endpoint, scripted_aws: AwsConnection, clock: FakeClock
) -> None:
    scripted.on("Query", Answer({"Items": [SUBSCRIBER, {**SUBSCRIBER, "subscriberId": {"S": "cat"}}]}))
    scripted.on("BatchWriteItem", lambda asked: error("ValidationException") if "bob" in str(asked) else Answer())
    with connect("memory://") as backend:
        queue = backend.create_queue(QueueSpec("agents-rejected"))
        fan = DynamoFan(
            Tables(scripted_aws), partial(put_rejected, lambda: queue), retention=60, clock=clock, sleep=clock.advance
        )

        outcome = fan.write([EVENT])
        [entry] = queue.receive()

    assert (outcome.written, outcome.rejected, outcome.failed) == (1, 1, ())
    assert b"the row of bob" in entry.body


def test_a_row_that_is_refused_for_good_comes_again_while_it_cannot_be_put_aside(
    scripted: Endpoint, fan: DynamoFan
) -> None:
    scripted.on("BatchWriteItem", error("ValidationException"))

    outcome = fan.write([EVENT])

    assert (outcome.written, outcome.rejected, outcome.failed) == (0, 0, (EVENT,))
    assert len(scripted.calls("BatchWriteItem")) == 1


def test_the_client_of_these_writes_tries_once_and_ends_within_an_attempt(scripted_aws: AwsConnection) -> None:
    config: Any = scripted_aws.client("dynamodb", ATTEMPT_SECONDS).meta.config

    assert config.connect_timeout + config.read_timeout <= ATTEMPT_SECONDS
    assert config.retries["total_max_attempts"] == 1
    assert scripted_aws.client("dynamodb", ATTEMPT_SECONDS) is not scripted_aws.dynamodb


def _no_queue() -> Queue:
    raise Unavailable("the queue of rejects is away")


def _record(sequence: str) -> dict[str, Any]:
    event = {"agentId": "ann", "timestamp": "2030-01-01T00:00:00Z", "eventType": "counted", "data": {"n": 1}}
    told = {
        "partitionKey": "ann",
        "sequenceNumber": sequence,
        "approximateArrivalTimestamp": 1_900_000_000.0,
        "data": base64.b64encode(json.dumps(event).encode()).decode(),
    }
    return {"kinesis": told, "eventID": f"shardId-000000000000:{sequence}"}


def _after(clock: FakeClock, seconds: float, answer: Answer) -> Answer:
    clock.advance(seconds)
    return answer
