"""What agents need on AWS is looked for: tables, stream, and somebody who moves their events."""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from tests.aws.cloud import Cloud
from tests.aws.endpoint import Endpoint, error
from tests.waiting import eventually

from postroad.agents.runner import LEASE_SECONDS
from postroad.agents.tables import SUBSCRIBER_EVENTS, SUBSCRIBERS
from postroad.connections.aws import AwsConnection
from postroad.errors import ConfigurationError
from postroad.operations import doctor
from postroad.settings import Settings
from postroad.up.runners import move_events
from postroad.wiring import Backend, connect

pytestmark = pytest.mark.aws


def _findings(backend: Backend) -> list[str]:
    return [finding.message for finding in doctor(backend) if finding.code == "agents-stuck"]


@pytest.fixture
def function(aws: AwsConnection) -> Iterator[str]:
    """The name of a function that does nothing."""
    name = f"mover-{uuid.uuid4().hex[:8]}"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("mover.py", "def handler(event, context): return {'batchItemFailures': []}")
    aws.functions.create_function(
        FunctionName=name,
        Runtime="python3.11",
        Handler="mover.handler",
        Code={"ZipFile": packed.getvalue()},
        Role="arn:aws:iam::000000000000:role/mover",
    )
    yield name
    for mapping in aws.functions.list_event_source_mappings(FunctionName=name)["EventSourceMappings"]:
        aws.functions.delete_event_source_mapping(UUID=mapping["UUID"])
    aws.functions.delete_function(FunctionName=name)


def _map(aws: AwsConnection, function: str, arn: str) -> None:
    aws.functions.create_event_source_mapping(
        FunctionName=function, EventSourceArn=arn, StartingPosition="LATEST", BatchSize=1
    )


def test_where_nobody_set_agents_up_nothing_is_missing(village: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTS_TABLE", "nowhere")
    monkeypatch.setenv("EVENTS_STREAM", "nowhere")

    with connect() as backend:
        assert [backend.check_agents(mover) for mover in ("runner", "functions", "any")] == [False] * 3
        assert _findings(backend) == []


@pytest.mark.parametrize("variable", [SUBSCRIBERS.variable, SUBSCRIBER_EVENTS.variable, "EVENTS_STREAM"])
def test_what_is_missing_is_named_with_the_command_that_makes_it(
    village: Cloud, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "nowhere")

    with connect() as backend:
        with pytest.raises(ConfigurationError, match=r"agents lack the .*'nowhere'") as caught:
            backend.check_agents("runner")
        [message] = _findings(backend)

    assert "postroad agent provision" in caught.value.remedy
    assert message == caught.value.message


def test_functions_that_read_both_streams_move_events(village: Cloud, aws: AwsConnection, function: str) -> None:
    stream = aws.kinesis.describe_stream_summary(StreamName=village.stream)["StreamDescriptionSummary"]["StreamARN"]
    rows = aws.dynamodb.describe_table(TableName=village.store._tables.name(SUBSCRIBER_EVENTS))["Table"]

    with pytest.raises(ConfigurationError, match=f"no function reads the stream '{village.stream}' or the stream of"):
        village.backend.check_agents("functions")
    _map(aws, function, stream)
    with pytest.raises(ConfigurationError, match="no function reads the stream of table"):
        village.backend.check_agents("functions")
    _map(aws, function, rows["LatestStreamArn"])

    assert village.backend.check_agents("functions")
    assert _findings(village.backend) == []


def test_the_doctor_finds_that_nobody_moves_events_until_a_runner_does(village: Cloud) -> None:
    # A runner of another test counts for as long as its leases.
    eventually(lambda: _findings(village.backend))
    [message] = _findings(village.backend)
    stop = threading.Event()
    moving = threading.Thread(target=move_events, args=(village.backend, Settings(), stop))
    moving.start()
    try:
        while _findings(village.backend):
            assert moving.is_alive()
    finally:
        stop.set()
        moving.join()

    assert "and no runner does" in message


def test_what_may_not_be_looked_at_counts_as_there(
    limited: Endpoint, village: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_URL", f"aws://us-east-1?endpoint_url={limited.url}")
    for operation in ("DescribeTable", "DescribeStreamSummary"):
        monkeypatch.setitem(limited.answers, operation, lambda _: error("AccessDeniedException"))

    with connect() as backend:
        assert [backend.check_agents(mover) for mover in ("runner", "functions")] == [True, True]


@pytest.mark.slow
def test_a_batch_that_takes_longer_than_a_lease_is_not_read_again(
    village: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    village.register("ann", "bob")
    village.subscribe("bob", "ann")
    village.publish("ann", 1)
    runner = village.agents.runner(worker=village.id("slow"))
    store: Any = runner._store
    fan_out = store.fan_out
    batches: list[int] = []

    def slow(events: Any) -> Any:
        batches.append(len(events))
        time.sleep(LEASE_SECONDS + 1)
        return fan_out(events)

    monkeypatch.setattr(store, "fan_out", slow)
    while not batches:
        runner.run_once()
    read_again = runner.run_once().read

    assert len(batches) == 1
    assert read_again == 0
    assert [json.loads(each.body)["data"]["n"] for each in village.take("bob")] == [1]
