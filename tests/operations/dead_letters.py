"""A backend with a queue, its dead letters, and what puts messages there."""

from __future__ import annotations

from typing import Any

from postroad.queues import OutgoingMessage, Queue, QueueSpec
from postroad.wiring import Backend


def make_queues(backend: Backend, **settings: Any) -> tuple[Queue, Queue]:
    """`jobs` and its dead letters `dead`."""
    dead = backend.create_queue(QueueSpec("dead"))
    return backend.create_queue(QueueSpec("jobs", dead_letter="dead", **settings)), dead


def bury(queue: Queue, *texts: str, error: str | None = None, **fields: Any) -> list[str]:
    """Send the messages and reject them; their ids."""
    for start in range(0, len(texts), 100):
        queue.send([OutgoingMessage(body=text, **fields) for text in texts[start : start + 100]])
    ids = []
    while held := queue.receive(max_messages=1_000):
        assert all(result.ok for result in queue.reject(held, reason="test", error=error))
        ids += [delivery.message_id for delivery in held]
    return ids


def bodies(queue: Queue) -> list[str]:
    """What the queue holds, in order."""
    found = queue.peek(limit=1_000)
    while len(found) % 1_000 == 0 and found and (page := queue.peek(limit=1_000, after=found[-1].message_id)):
        found += page
    return [message.body.decode() for message in found]
