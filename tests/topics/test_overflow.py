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
class Ground:
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
def ground(request: pytest.FixtureRequest) -> Ground:
    clock = FakeClock()
    queues, blobs = memory_queues(clock), memory_blobs(clock)
    topic = memory_topics(queues).topic(request.param, fifo=request.param.endswith(".fifo"))
    return Ground(clock, blobs, queues, OverflowingTopic(topic, blobs, clock=clock))


def _message(ground: Ground, body: str = LARGE, **attributes: str) -> OutgoingMessage:
    if ground.topic.traits.fifo:
        return OutgoingMessage(body, attributes, group="g", dedup_id="d")
    return OutgoingMessage(body, attributes)


def _end(ground: Ground) -> str:
    return ".fifo" if ground.topic.traits.fifo else ""


def test_every_queue_gets_the_whole_large_body_from_one_blob(ground: Ground) -> None:
    queues = [ground.queue(f"{name}{_end(ground)}") for name in ("billing", "audit")]
    for queue in queues:
        ground.topic.subscribe(queue)

    (result,) = ground.topic.publish([_message(ground, kind="placed")])

    received = [queue.receive() for queue in queues]
    assert result.ok
    assert [(d.body.decode(), d.attributes) for (d,) in received] == [(LARGE, {"kind": "placed"})] * 2
    assert ground.stored() == 1


def test_an_ack_of_one_queue_leaves_the_blob_to_the_other(ground: Ground) -> None:
    first, second = (ground.queue(f"{name}{_end(ground)}") for name in ("billing", "audit"))
    ground.topic.subscribe(first)
    ground.topic.subscribe(second)
    ground.topic.publish([_message(ground)])

    first.ack(first.receive())

    assert [d.body.decode() for d in second.receive()] == [LARGE]


def test_filters_go_by_the_senders_attributes(ground: Ground) -> None:
    wanted, unwanted = (ground.queue(f"{name}{_end(ground)}") for name in ("wanted", "unwanted"))
    ground.topic.subscribe(wanted, filter={"kind": ["placed"]})
    ground.topic.subscribe(unwanted, filter={"kind": ["paid"]})

    ground.topic.publish([_message(ground, kind="placed")])

    assert [d.body.decode() for d in wanted.receive()] == [LARGE]
    assert unwanted.receive() == []


def test_subscriptions_go_through(ground: Ground) -> None:
    queue = ground.queue(f"billing{_end(ground)}")
    ground.topic.subscribe(queue)

    assert [subscription.queue for subscription in ground.topic.subscriptions()] == [queue.name]
    assert ground.topic.unsubscribe(queue)
    assert ground.topic.subscriptions() == []


def test_a_refused_message_leaves_no_blob(ground: Ground) -> None:
    with pytest.raises(InvalidMessage):
        ground.topic.publish([_message(ground, LARGE + "\x00")])
    with pytest.raises(InvalidMessage) as refused:
        ground.topic.publish([OutgoingMessage(LARGE, delay=1, group="g", dedup_id="d")])

    assert refused.value.field in ("delay", "dedup_id")
    assert ground.stored() == 0


def test_the_traits_tell_the_limit_of_blobs(ground: Ground) -> None:
    assert ground.topic.traits.max_message_bytes == 104_857_600
    assert ground.topic.name == f"orders{_end(ground)}"
