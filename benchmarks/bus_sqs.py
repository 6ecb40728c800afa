"""Rows of the bus on SQS: how many requests an event costs, beside bare boto3 on an emulator."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import postroad
from benchmarks.emulator import REGION, running, version
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.sqs import CREDENTIALS, by_hand, counted_requests, drain, throughput
from benchmarks.workload import bodies
from postroad.bus import BusConfig, SQSEventBus

THREADS = 16
Publish = Callable[[SQSEventBus, list["Noted"]], None]


@postroad.event(name="benchmarks.noted")
class Noted:
    text: str


@contextmanager
def _bus(directory: Path) -> Iterator[SQSEventBus]:
    import boto3

    with ExitStack() as stack:
        endpoint = stack.enter_context(running(directory))
        stack.enter_context(mock.patch.dict(os.environ, {**CREDENTIALS, "AWS_DEFAULT_REGION": REGION}))
        sqs: Any = boto3.client("sqs", region_name=REGION, endpoint_url=endpoint)
        stack.callback(sqs.close)
        url = sqs.create_queue(QueueName=f"bench-{uuid.uuid4().hex[:8]}")["QueueUrl"]
        config = BusConfig(wait_time_seconds=1, local_dispatch=False)
        yield stack.enter_context(SQSEventBus(queue_url=url, config=config))


def _by_threads(bus: SQSEventBus, events: list[Noted]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        _check(list(pool.map(bus.publish, events)))


def _in_batches(bus: SQSEventBus, events: list[Noted]) -> None:
    _check(bus.publish_many(events))


def _check(results: list[Any]) -> None:
    if failed := [result for result in results if not result.ok]:
        raise WrongResult(f"{len(failed)} not published: {failed[0].errors}")


def _requests(publish: Publish) -> Open:
    """Requests per event, the sends alone."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with _bus(directory) as bus:

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
def _bare_sends(directory: Path, load: Load) -> Iterator[Opened]:
    import boto3

    with ExitStack() as stack:
        endpoint = stack.enter_context(running(directory))
        stack.enter_context(mock.patch.dict(os.environ, CREDENTIALS))
        sqs: Any = boto3.client("sqs", region_name=REGION, endpoint_url=endpoint)
        stack.callback(sqs.close)
        url = sqs.create_queue(QueueName="bench")["QueueUrl"]
        yield Opened(lambda: _one_by_one(lambda b: sqs.send_message(QueueUrl=url, MessageBody=b), load.messages))


def _one_by_one(send: Callable[[str], object], messages: int) -> float:
    sent = bodies(messages)
    started = time.perf_counter()
    for body in sent:
        send(body)
    return messages / (time.perf_counter() - started)


def _side(opened: Open) -> Side:
    return Side(label="postroad", package="postroad", needs=version, open=opened)


_LOADS = Loads(full=Load(messages=2_000), quick=Load(messages=400), smallest=Load(messages=40))
_FEWER = "(fewer is better)"

ROWS = [
    Row(
        name="bus-sqs-threads", unit="ratio", target=1.0, loads=_LOADS, peer=limit("limit of 0.2", 0.2),
        what=f"send requests per event of {THREADS} threads that publish one by one {_FEWER}",
        ours=_side(_requests(_by_threads)),
    ),
    Row(
        name="bus-sqs-many", unit="ratio", target=1.0, loads=_LOADS, peer=limit("limit of 0.11", 0.11),
        what=f"send requests per event of publish_many {_FEWER}", ours=_side(_requests(_in_batches)),
    ),
    Row(
        name="bus-sqs-requests", unit="ratio", target=1.0, loads=_LOADS, peer=limit("limit of 0.35", 0.35),
        what=f"requests per event published, received, handled and acked {_FEWER}", ours=_side(_all_requests),
    ),
    Row(
        name="bus-sqs-throughput", unit="per_second", target=0.8, loads=_LOADS,
        what="publish, receive, handle and ack a backlog in batches of 10", ours=_side(throughput(_moving)),
        peer=Side(label="hand-written boto3 loop", package="boto3", needs=version, open=throughput(by_hand)),
    ),
    Row(
        name="bus-sqs-lone", unit="per_second", target=1 / 1.2, loads=_LOADS,
        what="publish one event at a time, one request each", ours=_side(_alone),
        peer=Side(label="bare send_message", package="boto3", needs=version, open=_bare_sends),
    ),
]  # fmt: skip
