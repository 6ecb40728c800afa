"""Agents on an emulator: how many calls a delivery costs, beside fixed limits and raw SNS."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import boto3

from benchmarks.emulator import REGION, running, version
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.sqs import CREDENTIALS
from postroad.agents import aggregate
from postroad.agents.aws.rows import Row as AgentRow, sort_key
from postroad.agents.aws.store import AwsAgentStore
from postroad.agents.model import time_text
from postroad.agents.tables import SUBSCRIBERS
from postroad.clock import SYSTEM_CLOCK
from postroad.streams import StreamRecord
from postroad.wiring import Backend, connect

PRODUCERS = 10
_TIME_MS = 1_750_000_000_000
_BATCH = 25


@contextmanager
def _emulated(directory: Path) -> Iterator[str]:
    with running(directory) as endpoint, mock.patch.dict(os.environ, {**CREDENTIALS, "AWS_DEFAULT_REGION": REGION}):
        yield endpoint


@contextmanager
def _backend(directory: Path) -> Iterator[tuple[Backend, AwsAgentStore]]:
    with _emulated(directory) as endpoint, connect(f"aws://{REGION}?endpoint_url={endpoint}") as backend:
        agents = backend.agents()
        agents.provision()
        if not isinstance(agents.store, AwsAgentStore):
            raise WrongResult("these are no agents on AWS")
        yield backend, agents.store


@contextmanager
def _called(operation: str) -> Iterator[list[str]]:
    """The operations that botocore calls meanwhile whose names begin like this."""
    from botocore.httpsession import URLLib3Session

    seen: list[str] = []
    send = URLLib3Session.send

    def counting(session: URLLib3Session, request: Any) -> Any:
        told = request.headers.get("X-Amz-Target", b"")
        name = told.decode() if isinstance(told, bytes) else str(told)
        if name.startswith(operation):
            seen.append(name)
        return send(session, request)

    with mock.patch.object(URLLib3Session, "send", counting):
        yield seen


@contextmanager
def _writing(directory: Path, load: Load) -> Iterator[Opened]:
    """DynamoDB calls for each row when one event has a crowd of subscribers."""
    with _backend(directory) as (_, store):
        _fill(store, load.crowd)

        def run() -> float:
            record = StreamRecord(
                shard="shardId-000000000000",
                sequence=str(uuid.uuid4().int),
                key="ann",
                arrived_at=datetime.now(UTC),
                data=b'{"agentId":"ann","eventType":"measured","data":{}}',
            )
            with _called("DynamoDB") as calls:
                result = aggregate([record], store, SYSTEM_CLOCK)
            if result.written != load.crowd:
                raise WrongResult(f"{result.written} rows instead of {load.crowd}")
            return len(calls) / load.crowd

        yield Opened(run)


def _fill(store: AwsAgentStore, count: int) -> None:
    """Let so many subscribe without a queue each: the aggregator never looks at them."""
    tables = store._tables
    items = [
        {
            "producerId": {"S": "ann"},
            "subscriberId": {"S": f"listener-{n}"},
            "state": {"S": "active"},
            "createdAt": {"S": time_text(_TIME_MS)},
        }
        for n in range(count)
    ]
    for start in range(0, count, _BATCH):
        requests = [{"PutRequest": {"Item": item}} for item in items[start : start + _BATCH]]
        tables.batch("batch_write_item", {tables.name(SUBSCRIBERS): requests})


@contextmanager
def _sending(directory: Path, load: Load) -> Iterator[Opened]:
    """Send calls for each delivery when ten producers wait for each subscriber."""
    with _backend(directory) as (backend, store):
        listeners = [made.agent_id for made in backend.agents().register_many(load.crowd)]

        def run() -> float:
            rows = [_row(listener, f"producer-{n}") for listener in listeners for n in range(PRODUCERS)]
            with _called("AmazonSQS.SendMessage") as calls:
                result = store.release(rows)
            if result.sent != len(rows):
                raise WrongResult(f"{result.sent} sent instead of {len(rows)}")
            return len(calls) / len(rows)

        yield Opened(run)


def _row(subscriber_id: str, producer_id: str) -> AgentRow:
    sequence = str(uuid.uuid4().int)
    return AgentRow(
        subscriber_id=subscriber_id,
        key=sort_key(_TIME_MS, producer_id, sequence),
        producer_id=producer_id,
        event_id=uuid.uuid4().hex,
        event_type="measured",
        occurred_ms=_TIME_MS,
        data=b"{}",
        sequence=sequence,
        arrived_ms=_TIME_MS,
    )


@contextmanager
def _by_sns(directory: Path, load: Load) -> Iterator[Opened]:
    """Publish calls for each delivery when each producer is a FIFO topic, and each subscriber's queue listens to it."""
    with ExitStack() as stack:
        endpoint = stack.enter_context(_emulated(directory))
        sns: Any = boto3.client("sns", region_name=REGION, endpoint_url=endpoint)
        sqs: Any = boto3.client("sqs", region_name=REGION, endpoint_url=endpoint)
        stack.callback(sns.close)
        stack.callback(sqs.close)
        fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        urls = [sqs.create_queue(QueueName=f"q{n}.fifo", Attributes=fifo)["QueueUrl"] for n in range(load.crowd)]
        topics = [
            sns.create_topic(Name=f"t{n}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"] for n in range(PRODUCERS)
        ]
        for url in urls:
            arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
            for topic in topics:
                sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)

        def run() -> float:
            for topic in topics:
                sns.publish(
                    TopicArn=topic, Message=json.dumps({}), MessageGroupId="g", MessageDeduplicationId=uuid.uuid4().hex
                )
            return len(topics) / (len(topics) * len(urls))

        yield Opened(run)


def _loads(crowd: int, smallest: int) -> Loads:
    return Loads(
        full=Load(messages=PRODUCERS, crowd=crowd),
        quick=Load(messages=PRODUCERS, crowd=crowd),
        smallest=Load(messages=PRODUCERS, crowd=smallest),
    )


def _ours(opened: Open) -> Side:
    return Side(label="agents", package="postroad", needs=version, open=opened)


ROWS = [
    Row(
        name="agents-dynamodb-calls",
        unit="ratio",
        target=1.0,
        loads=_loads(1_000, 30),
        what="DynamoDB calls of the aggregator for each delivery, 1 event to 1,000 subscribers (fewer is better)",
        ours=_ours(_writing),
        peer=limit("limit of 0.05", 0.05),
    ),
    Row(
        name="agents-sqs-calls",
        unit="ratio",
        target=1.0,
        loads=_loads(20, 2),
        what="SQS send calls for each delivery, 10 producers waiting for each subscriber (fewer is better)",
        ours=_ours(_sending),
        peer=limit("limit of 0.12", 0.12),
    ),
    Row(
        name="agents-sns-calls",
        unit="ratio",
        target=None,
        loads=_loads(20, 2),
        what="calls for each delivery beside raw SNS FIFO to SQS, 10 producers and 20 subscribers (fewer is better)",
        ours=_ours(_sending),
        peer=Side(label="SNS FIFO to SQS", package="boto3", needs=version, open=_by_sns),
        note="SNS: one call for each event and topic; 100 subscriptions of a FIFO topic and 1,000 such topics at most",
    ),
]
