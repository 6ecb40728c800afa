"""Rows of the bus on SQS: how many requests an event costs, beside bare boto3 on an emulator."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import postroad
from benchmarks.emulator import REGION, running, version
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.sqs import CREDENTIALS, counted_requests, drain, throughput
from benchmarks.workload import bodies
from postroad.bus import BusConfig, SQSEventBus

THREADS = 16
_BY_HAND = "0190f3a8-7b1c-7cc3-98c4-dc0c0c07398f"
Publish = Callable[[SQSEventBus, list["Noted"]], None]


@postroad.event(name="benchmarks.noted")
class Noted:
    text: str


@contextmanager
def _bus(directory: Path, *, fifo: bool = False) -> Iterator[SQSEventBus]:
    """A bus on a queue; on FIFO all events belong to one group."""
    with _client(directory, fifo=fifo) as (_, url):
        group = "one" if fifo else None
        config = BusConfig(wait_time_seconds=1, local_dispatch=False, message_group_id=group)
        with SQSEventBus(queue_url=url, config=config) as bus:
            yield bus


def _by_threads(bus: SQSEventBus, events: list[Noted]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        _check(list(pool.map(bus.publish, events)))


def _in_batches(bus: SQSEventBus, events: list[Noted]) -> None:
    _check(bus.publish_many(events))


def _check(results: list[Any]) -> None:
    if failed := [result for result in results if not result.ok]:
        raise WrongResult(f"{len(failed)} not published: {failed[0].errors}")


def _requests(publish: Publish, *, fifo: bool = False) -> Open:
    """Requests per event, the sends alone."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with _bus(directory, fifo=fifo) as bus:

            def run() -> float:
                events = [Noted(body) for body in bodies(load.messages)]
                with counted_requests() as requests:
                    publish(bus, events)
                return len(requests) / load.messages

            yield Opened(run)

    return opened


@contextmanager
def _moving(directory: Path) -> Iterator[tuple[Callable[[Any], None], Callable[[], list[str]]]]:
    """Publish in batches; receive, handle and ack."""
    with _bus(directory) as bus:
        bus.subscribe(Noted, lambda event: None)
        yield (
            lambda batch: _in_batches(bus, [Noted(body) for body in batch]),
            lambda: [event.text for event in bus.receive_once()],
        )


@contextmanager
def _all_requests(directory: Path, load: Load) -> Iterator[Opened]:
    with _moving(directory) as (put, take):

        def run() -> float:
            with counted_requests() as requests:
                drain(put, take, load.messages)
            return len(requests) / load.messages

        yield Opened(run)


@contextmanager
def _alone(directory: Path, load: Load) -> Iterator[Opened]:
    with _bus(directory) as bus:
        _in_batches(bus, [Noted("first")])

        def run() -> float:
            with counted_requests() as requests:
                rate = _one_by_one(lambda body: _check([bus.publish(Noted(body))]), load.messages)
            if len(requests) != load.messages:
                raise WrongResult(f"{len(requests)} requests for {load.messages} events")
            return rate

        yield Opened(run)


@contextmanager
def _client(directory: Path, *, fifo: bool = False) -> Iterator[tuple[Any, str]]:
    """A boto3 client and the URL of a queue."""
    import boto3

    with ExitStack() as stack:
        endpoint = stack.enter_context(running(directory))
        stack.enter_context(mock.patch.dict(os.environ, {**CREDENTIALS, "AWS_DEFAULT_REGION": REGION}))
        sqs: Any = boto3.client("sqs", region_name=REGION, endpoint_url=endpoint)
        stack.callback(sqs.close)
        name = f"bench-{uuid.uuid4().hex[:8]}{'.fifo' if fifo else ''}"
        yield sqs, sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"} if fifo else {})["QueueUrl"]


def _same_message(body: str) -> dict[str, Any]:
    """What the bus sends for an event of this text, written by hand."""
    now = datetime.now(UTC).isoformat()
    envelope = {
        "event_type": "benchmarks.noted",
        "event_id": str(uuid.uuid4()),
        "created_at": now,
        "publisher_id": _BY_HAND,
        "payload": {"text": body},
    }
    attributes = {"EventType": "benchmarks.noted", "PublisherId": _BY_HAND, "CreatedAt": now}
    typed = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
    return {"MessageBody": json.dumps(envelope), "MessageAttributes": typed}


@contextmanager
def _bare_sends(directory: Path, load: Load) -> Iterator[Opened]:
    with _client(directory) as (sqs, url):
        yield Opened(
            lambda: _one_by_one(lambda body: sqs.send_message(QueueUrl=url, **_same_message(body)), load.messages)
        )


@contextmanager
def _by_hand(directory: Path) -> Iterator[tuple[Callable[[Any], None], Callable[[], list[str]]]]:
    """The batched loop that somebody would write who sends and reads the same messages without a bus."""
    with _client(directory) as (sqs, url):

        def put(batch: Sequence[str]) -> None:
            entries = [{"Id": str(number), **_same_message(body)} for number, body in enumerate(batch)]
            sqs.send_message_batch(QueueUrl=url, Entries=entries)

        def take() -> list[str]:
            answer = sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=1,
                MessageAttributeNames=["All"],
                AttributeNames=["All"],
            )
            found = answer.get("Messages", [])
            entries = [{"Id": str(number), "ReceiptHandle": m["ReceiptHandle"]} for number, m in enumerate(found)]
            if entries:
                sqs.delete_message_batch(QueueUrl=url, Entries=entries)
            return [json.loads(message["Body"])["payload"]["text"] for message in found]

        yield put, take


def _one_by_one(send: Callable[[str], object], messages: int) -> float:
    sent = bodies(messages)
    started = time.perf_counter()
    for body in sent:
        send(body)
    return messages / (time.perf_counter() - started)


def _side(opened: Open) -> Side:
    return Side(label="postroad", package="postroad", needs=version, open=opened)


def _boto3(label: str, opened: Open) -> Side:
    return Side(label=label, package="boto3", needs=version, open=opened)


_LOADS = Loads(full=Load(messages=2_000), quick=Load(messages=400), smallest=Load(messages=40))
_FEWER = "(fewer is better)"

ROWS = [
    Row(
        name="bus-sqs-threads",
        unit="ratio",
        target=1.0,
        loads=_LOADS,
        peer=limit("limit of 0.2", 0.2),
        what=f"send requests per event of {THREADS} threads that publish one by one {_FEWER}",
        ours=_side(_requests(_by_threads)),
    ),
    Row(
        name="bus-sqs-many",
        unit="ratio",
        target=1.0,
        loads=_LOADS,
        peer=limit("limit of 0.11", 0.11),
        what=f"send requests per event of publish_many {_FEWER}",
        ours=_side(_requests(_in_batches)),
    ),
    Row(
        name="bus-fifo-threads",
        unit="ratio",
        target=1.0,
        loads=_LOADS,
        peer=limit("limit of 0.2", 0.2),
        what=f"send requests per event of one FIFO group, {THREADS} threads that publish one by one {_FEWER}",
        ours=_side(_requests(_by_threads, fifo=True)),
    ),
    Row(
        name="bus-fifo-many",
        unit="ratio",
        target=1.0,
        loads=_LOADS,
        peer=limit("limit of 0.11", 0.11),
        what=f"send requests per event of one FIFO group, publish_many {_FEWER}",
        ours=_side(_requests(_in_batches, fifo=True)),
    ),
    Row(
        name="bus-sqs-requests",
        unit="ratio",
        target=1.0,
        loads=_LOADS,
        peer=limit("limit of 0.35", 0.35),
        what=f"requests per event published, received, handled and acked {_FEWER}",
        ours=_side(_all_requests),
    ),
    Row(
        name="bus-sqs-throughput",
        unit="per_second",
        target=0.8,
        loads=_LOADS,
        what="publish, receive, handle and ack a backlog in batches of 10",
        ours=_side(throughput(_moving)),
        peer=_boto3("hand-written boto3 loop of the same messages", throughput(_by_hand)),
    ),
    Row(
        name="bus-sqs-lone",
        unit="per_second",
        target=1 / 1.2,
        loads=_LOADS,
        what="publish one event at a time, one request each",
        ours=_side(_alone),
        peer=_boto3("bare send_message of the same message", _bare_sends),
    ),
]
