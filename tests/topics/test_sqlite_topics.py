from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from postroad import Backend, OutgoingMessage, QueueSpec, connect
from postroad.engine.engine import Engine
from postroad.errors import TopicNotFound
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing.clock import FakeClock
from postroad.testing.queues import QueueFixture
from postroad.testing.topics import TopicConformance, TopicFixture
from postroad.topics.sqlite import SQLiteTopics


class TestSQLiteTopic(TopicConformance):
    @pytest.fixture
    def ground(self, tmp_path: Path) -> Iterator[TopicFixture]:
        clock = FakeClock()
        engine = Engine(tmp_path / "postroad.db", clock=clock)
        queues = SQLiteQueues(engine)
        yield TopicFixture(topics=SQLiteTopics(engine, queues), queues=QueueFixture(queues=queues, clock=clock))
        engine.close()


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    with connect(f"sqlite:///{tmp_path / 'postroad.db'}") as opened:
        yield opened


def receivers(backend: Backend) -> int | None:
    (result,) = backend.topic("orders").publish([OutgoingMessage("{}", {"EventType": "placed"})])
    return result.receivers


@pytest.mark.parametrize("together", [False, True], ids=["each-alone", "in-one-transaction"])
def test_a_publish_knows_what_this_process_subscribed_and_removed_since_the_last(
    backend: Backend, together: bool
) -> None:
    topic, queue = backend.topic("orders"), backend.create_queue(QueueSpec("billing"))
    topic.subscribe(backend.create_queue(QueueSpec("audit")))
    with backend.transaction() if together else nullcontext():
        assert receivers(backend) == 1
        topic.subscribe(queue)
        assert receivers(backend) == 2
        topic.subscribe(queue, filter={"EventType": ["cancelled"]})
        assert receivers(backend) == 1
        topic.subscribe(queue)
        assert receivers(backend) == 2
        topic.unsubscribe(queue)
        assert receivers(backend) == 1
        topic.subscribe(queue)
        backend.delete_queue("billing")
        assert receivers(backend) == 1
        assert isinstance(backend.ports.topics, SQLiteTopics)
        backend.ports.topics.delete_topic("orders")
        assert receivers(backend) == 0


def test_a_publish_knows_what_another_process_subscribed_and_removed_since_the_last(
    backend: Backend, tmp_path: Path
) -> None:
    assert receivers(backend) == 0
    in_another_process(
        tmp_path, "backend.topic('orders').subscribe(backend.create_queue(postroad.QueueSpec('billing')))"
    )
    assert receivers(backend) == 1
    in_another_process(tmp_path, "backend.delete_queue('billing')")
    assert receivers(backend) == 0


def test_a_subscription_that_was_rolled_back_gets_nothing(backend: Backend) -> None:
    queue = backend.create_queue(QueueSpec("billing"))
    with pytest.raises(ZeroDivisionError), backend.transaction():
        backend.topic("orders").subscribe(queue)
        assert receivers(backend) == 1
        raise ZeroDivisionError
    assert receivers(backend) == 0


def test_a_topic_that_was_deleted_refuses_to_publish_and_to_subscribe(backend: Backend) -> None:
    topic, queue = backend.topic("orders"), backend.create_queue(QueueSpec("billing"))
    assert isinstance(backend.ports.topics, SQLiteTopics)
    backend.ports.topics.delete_topic("orders")
    with pytest.raises(TopicNotFound, match='topic "orders" was deleted'):
        topic.publish([OutgoingMessage("{}")])
    with pytest.raises(TopicNotFound, match='topic "orders" was deleted'):
        topic.subscribe(queue)


def in_another_process(tmp_path: Path, statement: str) -> None:
    program = f"import postroad\nwith postroad.connect('sqlite:///{tmp_path / 'postroad.db'}') as backend: {statement}"
    subprocess.run([sys.executable, "-c", program], check=True)
