"""Handles and batches of tasks on emulated AWS, where nothing wakes a waiting program and writes do not join."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.tasks import errands
from tests.tasks.benches import Bench, working
from tests.tasks.errands import Store

import postroad
from postroad import Backend
from postroad.connections.aws import AwsConnection
from postroad.errors import Conflict, QueueNotFound, TaskRunFailed
from postroad.tasks import ensure_queues

pytestmark = pytest.mark.aws

SECONDS = 60.0


@pytest.fixture
def bench(unique: Callable[[str], str], ministack_url: str, aws: AwsConnection) -> Iterator[Bench]:
    bucket = unique("overflow")
    aws.s3.create_bucket(Bucket=bucket)
    url = f"aws://us-east-1?endpoint_url={ministack_url}&stage={unique('stage')}&bucket={bucket}"
    with postroad.connect(url) as backend:
        backend.journal().init()
        ensure_queues(backend)
        yield Bench(backend)


def messages(backend: Backend) -> int:
    stats = backend.queue(f"{backend.stage_prefix}tasks").stats()
    return stats.visible + stats.in_flight


def test_a_handle_gets_results_and_failures_of_typed_tasks(bench: Bench) -> None:
    with working(bench, imports=("tests.tasks.errands",), wait=1.0):
        good = bench.producer.submit(errands.scrape, "s1", depth=3)
        bad = bench.producer.submit(errands.fails_below, n=1)

        assert good.wait(SECONDS) == Store("s1", 3, [])
        with pytest.raises(TaskRunFailed) as failed:
            bad.wait(SECONDS)
        assert failed.value.category == "parse"

        async def main() -> Any:
            return await (await bench.producer.asubmit(errands.add, 1, 2))

        assert asyncio.run(main()) == 3


def test_many_tasks_are_submitted_once_however_often_the_batch_is(bench: Bench) -> None:
    calls: list[Any] = [("echo", {"n": n}, f"r{n}") for n in range(25)]

    first = bench.producer.submit_many(calls)
    again = bench.producer.submit_many(calls)

    assert [handle.created for handle in (*first, *again)] == [True] * 25 + [False] * 25
    assert messages(bench.backend) == 25
    with pytest.raises(Conflict):
        bench.producer.submit_many([("echo", {"n": 0}, "r1")])


def test_a_queue_that_is_missing_is_named_and_nothing_is_stored(bench: Bench) -> None:
    with pytest.raises(QueueNotFound) as refused:
        bench.producer.options(request_id="r1").submit(errands.elsewhere, 4)

    assert "--queue slow" in refused.value.remedy
    assert bench.producer.status("r1") is None
