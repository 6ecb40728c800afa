from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.memory import memory_blobs, memory_queues, memory_topics

from postroad.blobs.directory import DirectoryBlobs
from postroad.errors import InvalidMessage
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.queues.overflow import OverflowingQueue
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing.clock import FakeClock
from postroad.topics.port import OverflowingTopic

LARGE = "é" * 600_000


@dataclass
class Fixture:
    clock: FakeClock
    blobs: DirectoryBlobs
    queues: SQLiteQueues
    topic: OverflowingTopic

    def queue(self, name: str) -> OverflowingQueue:
        inner = self.queues.create_queue(QueueSpec(name, fifo=name.endswith(".fifo")))
        return OverflowingQueue(inner, self.blobs, clock=self.clock)

    def stored(self) -> int:
        """How many blobs there are; counting ends them."""
        self.clock.advance(1)
        return self.blobs.prune("overflow/", older_than=0)


@pytest.fixture(params=["orders", "orders.fifo"])
def fixture(request: pytest.FixtureRequest) -> Fixture:
    clock = FakeClock()
    queues, blobs = memory_queues(clock), memory_blobs(clock)
    topic = memory_topics(queues).topic(request.param, fifo=request.param.endswith(".fifo"))
    return Fixture(clock, blobs, queues, OverflowingTopic(topic, blobs, clock=clock))


def _message(fixture: Fixture, body: str = LARGE, **attributes: str) -> OutgoingMessage:
    if fixture.topic.traits.fifo:
        return OutgoingMessage(body, attributes, group="g", dedup_id="d")
    return OutgoingMessage(body, attributes)


def _end(fixture: Fixture) -> str:
    return ".fifo" if fixture.topic.traits.fifo else ""


def test_every_queue_gets_the_whole_large_body_from_one_blob(fixture: Fixture) -> None:
    queues = [fixture.queue(f"{name}{_end(fixture)}") for name in ("billing", "audit")]
    for queue in queues:
        fixture.topic.subscribe(queue)

    (result,) = fixture.topic.publish([_message(fixture, kind="placed")])

    received = [queue.receive() for queue in queues]
    assert result.ok
    assert [(d.body.decode(), d.attributes) for (d,) in received] == [(LARGE, {"kind": "placed"})] * 2
    assert fixture.stored() == 1


def test_an_ack_of_one_queue_leaves_the_blob_to_the_other(fixture: Fixture) -> None:
    first, second = (fixture.queue(f"{name}{_end(fixture)}") for name in ("billing", "audit"))
    fixture.topic.subscribe(first)
    fixture.topic.subscribe(second)
    fixture.topic.publish([_message(fixture)])

    first.ack(first.receive())

    assert [d.body.decode() for d in second.receive()] == [LARGE]


def test_filters_go_by_the_senders_attributes(fixture: Fixture) -> None:
    wanted, unwanted = (fixture.queue(f"{name}{_end(fixture)}") for name in ("wanted", "unwanted"))
    fixture.topic.subscribe(wanted, filter={"kind": ["placed"]})
    fixture.topic.subscribe(unwanted, filter={"kind": ["paid"]})

    fixture.topic.publish([_message(fixture, kind="placed")])

    assert [d.body.decode() for d in wanted.receive()] == [LARGE]
    assert unwanted.receive() == []


def test_subscriptions_go_through(fixture: Fixture) -> None:
    queue = fixture.queue(f"billing{_end(fixture)}")
    fixture.topic.subscribe(queue)

    assert [subscription.queue for subscription in fixture.topic.subscriptions()] == [queue.name]
    assert fixture.topic.unsubscribe(queue)
    assert fixture.topic.subscriptions() == []


def test_a_refused_message_leaves_no_blob(fixture: Fixture) -> None:
    with pytest.raises(InvalidMessage):
        fixture.topic.publish([_message(fixture, LARGE + "\x00")])
    with pytest.raises(InvalidMessage) as refused:
        fixture.topic.publish([OutgoingMessage(LARGE, delay=1, group="g", dedup_id="d")])

    assert refused.value.field in ("delay", "dedup_id")
    assert fixture.stored() == 0


def test_the_traits_tell_the_limit_of_blobs(fixture: Fixture) -> None:
    assert fixture.topic.traits.max_message_bytes == 104_857_600
    assert fixture.topic.name == f"orders{_end(fixture)}"
