"""Rows of the SQS adapter beside a hand-written batched boto3 loop, on an emulator."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import postroad
from benchmarks import ours
from benchmarks.emulator import REGION, running, version
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side
from benchmarks.limits import limit
from benchmarks.workload import bodies, check_once
from postroad import OutgoingMessage, QueueSpec

BATCH = 10
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
Put = Callable[[Sequence[str]], None]
Take = Callable[[], list[str]]


def drain(put: Put, take: Take, messages: int) -> float:
    """Build a backlog in batches, then drain it in batches; messages per second."""
    sent, received = bodies(messages), list[str]()
    started = time.perf_counter()
    for first in range(0, messages, BATCH):
        put(sent[first : first + BATCH])
    while len(received) < messages and time.perf_counter() - started < 120:
        received += take()
    seconds = time.perf_counter() - started
    check_once(sent, received)
    return messages / seconds


@contextmanager
def _adapter(directory: Path) -> Iterator[tuple[Put, Take]]:
    with ExitStack() as stack:
        endpoint = stack.enter_context(running(directory))
        stack.enter_context(mock.patch.dict(os.environ, CREDENTIALS))
        backend = stack.enter_context(postroad.connect(f"aws://{REGION}?endpoint_url={endpoint}"))
        queue = backend.create_queue(QueueSpec(f"bench-{uuid.uuid4().hex[:8]}"))
        yield (
            lambda batch: ours.send(queue, [OutgoingMessage(body) for body in batch]),
            lambda: ours.receive(queue, BATCH, wait=1),
        )


@contextmanager
def _by_hand(directory: Path) -> Iterator[tuple[Put, Take]]:
    import boto3

    with ExitStack() as stack:
        endpoint = stack.enter_context(running(directory))
        stack.enter_context(mock.patch.dict(os.environ, CREDENTIALS))
        sqs: Any = boto3.client("sqs", region_name=REGION, endpoint_url=endpoint)
        stack.callback(sqs.close)
        url = sqs.create_queue(QueueName=f"bench-{uuid.uuid4().hex[:8]}")["QueueUrl"]
        yield lambda batch: _send_by_hand(sqs, url, batch), lambda: _take_by_hand(sqs, url)


def _send_by_hand(sqs: Any, url: str, batch: Sequence[str]) -> None:
    entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(batch)]
    sqs.send_message_batch(QueueUrl=url, Entries=entries)


def _take_by_hand(sqs: Any, url: str) -> list[str]:
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=1)
    messages = answer.get("Messages", [])
    entries = [{"Id": str(number), "ReceiptHandle": m["ReceiptHandle"]} for number, m in enumerate(messages)]
    if entries:
        sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    return [message["Body"] for message in messages]


def throughput(opened_queue: Callable[[Path], Any]) -> Open:
    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with opened_queue(directory) as (put, take):
            yield Opened(lambda: drain(put, take, load.messages))

    return opened


@contextmanager
def _counting(directory: Path, load: Load) -> Iterator[Opened]:
    with _adapter(directory) as (put, take):

        def run() -> float:
            with counted_requests() as count:
                drain(put, take, load.messages)
            return len(count) / load.messages

        yield Opened(run)


@contextmanager
def counted_requests() -> Iterator[list[str]]:
    """The address of every HTTP request that botocore sends meanwhile."""
    from botocore.httpsession import URLLib3Session

    seen: list[str] = []
    send = URLLib3Session.send

    def counting(session: URLLib3Session, request: Any) -> Any:
        seen.append(request.url)
        return send(session, request)

    with mock.patch.object(URLLib3Session, "send", counting):
        yield seen


_LOADS = Loads(full=Load(messages=2_000), quick=Load(messages=400), smallest=Load(messages=40))

ROWS = [
    Row(
        name="sqs-requests",
        unit="ratio",
        target=1.0,
        loads=_LOADS,
        peer=limit("limit of 0.35", 0.35),
        what="HTTP requests per message sent, received and acked under load (fewer is better, 0.3 is the least)",
        ours=Side(label="postroad", package="postroad", needs=version, open=_counting),
    ),
    Row(
        name="sqs-throughput",
        unit="per_second",
        target=0.85,
        loads=_LOADS,
        what="send, receive and delete a backlog in batches of 10",
        ours=Side(label="postroad", package="postroad", needs=version, open=throughput(_adapter)),
        peer=Side(label="hand-written boto3 loop", package="boto3", needs=version, open=throughput(_by_hand)),
    ),
]
