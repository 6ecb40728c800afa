"""A backend that was closed is over: every use of it says so and does nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import postroad
from postroad import OutgoingMessage, QueueSpec, Record
from postroad.errors import ConfigurationError

MESSAGE = OutgoingMessage("late")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_every_use_of_a_closed_backend_is_refused(kind: str, tmp_path: Path) -> None:
    backend = postroad.connect("memory://" if kind == "memory" else f"sqlite:///{tmp_path}/p.db")
    backend.create_queue(QueueSpec("dead"))
    queue = backend.create_queue(QueueSpec("jobs", dead_letter="dead"))
    topic, stream, items = backend.topic("news"), backend.stream("log", 1), backend.items()
    queue.send([OutgoingMessage("one")])
    held, shard = queue.receive(), stream.shards()[0]
    [put] = stream.put([Record("k", b"x")])
    uses: dict[str, Callable[[], object]] = {
        "check": backend.check,
        "create_queue": lambda: backend.create_queue(QueueSpec("more")),
        "update_queue": lambda: backend.update_queue(QueueSpec("jobs", visibility=5)),
        "delete_queue": lambda: backend.delete_queue("jobs"),
        "queue": lambda: backend.queue("jobs"),
        "queue_spec": lambda: backend.queue_spec("jobs"),
        "queues": backend.queues,
        "send": lambda: queue.send([MESSAGE]),
        "receive": queue.receive,
        "receive with a wait": lambda: queue.receive(wait=1),
        "ack": lambda: queue.ack(held),
        "extend": lambda: queue.extend(held, seconds=5),
        "release": lambda: queue.release(held),
        "reject": lambda: queue.reject(held, reason="no"),
        "peek": queue.peek,
        "stats": queue.stats,
        "topic": lambda: backend.topic("more"),
        "topics": backend.topics,
        "publish": lambda: topic.publish([MESSAGE]),
        "subscribe": lambda: topic.subscribe(queue),
        "unsubscribe": lambda: topic.unsubscribe(queue),
        "subscriptions": topic.subscriptions,
        "stream": lambda: backend.stream("more", 1),
        "put": lambda: stream.put([Record("k", b"late")]),
        "read": lambda: stream.read(shard, after="trim_horizon"),
        "latest": lambda: stream.latest(shard),
        "checkpoint": lambda: stream.checkpoint("billing", shard, put.sequence or ""),
        "position": lambda: stream.position("billing", shard),
        "lease": lambda: stream.lease("billing", "one"),
        "get an item": lambda: items.get("t/k"),
        "put an item": lambda: items.put("t/k", b"late"),
        "delete an item": lambda: items.delete("t/k"),
        "scan items": lambda: items.scan("t/"),
        "journal": lambda: backend.journal().latest("t", "TASK", "none"),
        "agents": backend.agents,
    }

    backend.close()
    backend.close()
    accepted = [name for name, use in uses.items() if not _is_refused(use)]

    assert accepted == []


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_blobs_of_a_closed_backend_are_refused(kind: str, tmp_path: Path) -> None:
    backend = postroad.connect("memory://" if kind == "memory" else f"sqlite:///{tmp_path}/p.db")
    blobs = backend.blobs()
    assert blobs is not None
    ref = blobs.put("overflow/a", b"x")
    backend.close()
    uses: list[Callable[[], object]] = [
        lambda: blobs.put("overflow/b", b"x"),
        lambda: blobs.get(ref),
        lambda: blobs.delete(ref),
        lambda: blobs.keep(ref),
        lambda: blobs.prune("overflow/", older_than=0),
    ]

    assert all(_is_refused(use) for use in uses)


def test_who_waits_while_a_memory_is_closed_is_refused_and_waits_no_longer() -> None:
    backend = postroad.connect("memory://")
    queue, stream = backend.create_queue(QueueSpec("jobs")), backend.stream("log", 1)
    shard, refused = stream.shards()[0], list[bool]()
    waits: list[Callable[[], object]] = [
        lambda: queue.receive(wait=20),
        lambda: stream.read(shard, after="latest", wait=20),
    ]
    threads = [threading.Thread(target=lambda wait=wait: refused.append(_is_refused(wait))) for wait in waits]

    for thread in threads:
        thread.start()
    backend.close()
    for thread in threads:
        thread.join(timeout=120)

    assert refused == [True, True]


def _is_refused(use: Callable[[], object]) -> bool:
    try:
        use()
    except ConfigurationError as error:
        return "this backend is closed; open a new one with connect()" in error.message
    return False
