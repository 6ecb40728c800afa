"""The dispatcher with a FIFO topic on SNS: events arrive in order, and a topic that is not there costs no attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.outbox.grounds import Ground, sqlite_ground

from postroad import Backend, QueueSpec, connect
from postroad.outbox import DispatcherConfig, OutboxDispatcher

pytestmark = pytest.mark.aws
QUICK = DispatcherConfig(poll=0.05, target_pause=0.1)


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Ground]:
    ground = sqlite_ground(tmp_path / "app.db")
    yield ground
    ground.outbox.close()


@pytest.fixture
def backend(ministack_url: str) -> Iterator[Backend]:
    with connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        yield backend


def test_events_reach_a_subscribed_queue_in_the_order_of_their_keys(
    on_sqlite: Ground, backend: Backend, unique: Callable[[str], str]
) -> None:
    queue = backend.create_queue(QueueSpec(f"{unique('ledger')}.fifo", fifo=True))
    topic = backend.topic(f"{unique('events')}.fifo", fifo=True)
    topic.subscribe(queue)
    events = [on_sqlite.add(key={"transferId": f"tr_{n % 3}"}, payload={"n": n}) for n in range(12)]

    report = OutboxDispatcher(on_sqlite.outbox, topic, QUICK, metrics=CollectorRegistry()).drain()

    received: dict[str | None, list[bytes]] = {}
    while deliveries := queue.receive(wait=1):
        for delivery in deliveries:
            received.setdefault(delivery.group, []).append(delivery.body)
        queue.ack(deliveries)
    assert report.sent == 12
    assert received == {
        f"tr_{lane}": [event.to_json() for event in events if event.key["transferId"] == f"tr_{lane}"]
        for lane in range(3)
    }


def test_a_topic_that_is_not_there_costs_no_attempt(
    on_sqlite: Ground, backend: Backend, unique: Callable[[str], str]
) -> None:
    on_sqlite.add()
    missing = backend.topic(f"arn:aws:sns:us-east-1:000000000000:{unique('gone')}.fifo", fifo=True)

    report = OutboxDispatcher(on_sqlite.outbox, missing, QUICK, metrics=CollectorRegistry()).run_once()

    assert (report.claimed, report.held) == (1, 1)
    assert on_sqlite.run("SELECT state, attempts FROM outbox") == [("PENDING", 0)]
    assert "TopicNotFound" in str(on_sqlite.outbox.status().target_error)
