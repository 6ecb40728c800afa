"""The doctor on SQS: what only AWS can tell, and what it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from postroad import OutgoingMessage, QueueSpec
from postroad.connections.aws import AwsConnection
from postroad.operations import doctor
from postroad.testing import FakeClock
from postroad.wiring import Backend, connect

pytestmark = pytest.mark.aws
DAY = 86_400


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now=datetime.now(UTC))


@pytest.fixture
def backend(moto_url: str, clock: FakeClock) -> Iterator[Backend]:
    with connect(f"aws://us-east-1?endpoint_url={moto_url}", clock=clock) as opened:
        yield opened


@pytest.fixture
def queues(backend: Backend, unique: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """A queue and its dead letters, settled as they should be."""
    name, dead = unique("orders"), unique("orders-dlq")
    backend.create_queue(QueueSpec(dead, retention=14 * DAY))
    backend.create_queue(QueueSpec(name, dead_letter=dead))
    backend.update_queue(QueueSpec(dead, retention=14 * DAY, redrive_allow=(name,)))
    yield name, dead
    for each in (name, dead):
        backend.delete_queue(each)


def found(backend: Backend, *names: str) -> set[tuple[str, str, str]]:
    return {(each.code, each.severity, each.target) for each in doctor(backend) if each.target in names}


def test_queues_that_store_in_the_clear_are_found(
    backend: Backend, queues: tuple[str, str], moto_aws: AwsConnection
) -> None:
    for name, encrypted in zip(queues, ("false", "true"), strict=True):
        url = moto_aws.sqs.get_queue_url(QueueName=name)["QueueUrl"]
        moto_aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={"SqsManagedSseEnabled": encrypted})

    clear = {each for each in found(backend, *queues) if each[0] == "unencrypted"}
    assert clear == {("unencrypted", "warning", queues[0])}


def test_dead_letters_are_aged_by_a_sample(backend: Backend, queues: tuple[str, str], clock: FakeClock) -> None:
    backend.queue(queues[1]).send([OutgoingMessage("dead")])
    young = found(backend, *queues)

    clock.step(timedelta(days=13).total_seconds())

    waits, expires = ("dlq-not-empty", "warning", queues[1]), ("dlq-expiring", "error", queues[1])
    assert waits in young
    assert expires not in young
    assert {waits, expires} <= found(backend, *queues)
