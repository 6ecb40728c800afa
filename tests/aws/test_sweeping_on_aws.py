"""Own queues on AWS: what a process that is gone leaves behind is removed, what a living one has is not."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import postroad
from postroad import OutgoingMessage, QueueSpec
from postroad.bus.groups import sweep
from postroad.bus.tail import tail
from postroad.testing.clock import FakeClock

pytestmark = pytest.mark.aws


def test_a_sweep_removes_queues_whose_sign_of_life_is_over(ministack_url: str, unique: Callable[[str], str]) -> None:
    topic, clock = unique("orders"), FakeClock()
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}", clock=clock) as backend:
        port, tags = backend.topic(topic), backend.queue_tags()
        assert tags is not None
        dead, living, silent = (f"{topic}--p-{letter * 12}" for letter in "abc")
        group = f"{topic}--workers"
        for name in (dead, living, silent, group):
            port.subscribe(backend.create_queue(QueueSpec(name)))
        for name in (dead, group):
            tags.renew(name, seconds=60)
        tags.renew(living, seconds=600)
        clock.advance(61)

        swept = sweep(backend, topic)

        assert swept == [dead]
        assert {each.queue for each in port.subscriptions()} == {living, silent, group}
        assert dead not in backend.queues()


def test_a_tail_hears_the_topic_and_removes_its_queue(ministack_url: str, unique: Callable[[str], str]) -> None:
    topic = unique("orders")
    body = {
        "event_type": "t",
        "event_id": "0" * 32,
        "created_at": "2030-01-01T00:00:00Z",
        "publisher_id": "x",
        "payload": {"n": 1},
    }
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        backend.topic(topic)
        found = tail(backend, topic, limit=1, timeout=0)
        assert list(found) == []
        group = backend.bus(topic, "group")
        backend.topic(topic).publish([OutgoingMessage(json.dumps(body))])

        [envelope] = tail(backend, topic, "group", limit=1, timeout=10)

        group.close()
        assert envelope is not None
        assert envelope.payload == {"n": 1}
        assert [name for name in backend.queues() if name.startswith(f"{topic}--p-")] == []
