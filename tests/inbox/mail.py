"""Events, and the queues that carry them to consumers."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from prometheus_client import REGISTRY
from tests.inbox.fixtures import InboxFixture

from postroad import OutgoingMessage, Queue, QueueSpec
from postroad.inbox import Consumer, ConsumeReport, DomainEvent

FIFO = QueueSpec("ledger-postings.fifo", fifo=True, visibility=5, dead_letter="ledger-dead.fifo", max_receives=5)
DEAD = QueueSpec("ledger-dead.fifo", fifo=True)


def event(transfer: str, type: str = "events.transfers.settled", **payload: Any) -> DomainEvent:
    return DomainEvent(type=type, key={"transferId": transfer}, payload=payload)


def send(queue: Queue, *events: DomainEvent, copy: str = "") -> None:
    for each in events:
        send_body(queue, each.to_json(), group=each.key["transferId"], dedup_id=f"{each.event_id}{copy}")


def send_body(queue: Queue, body: bytes | str, *, group: str = "g", dedup_id: str = "d") -> None:
    fifo = queue.traits.fifo
    message = OutgoingMessage(body, group=group if fifo else None, dedup_id=dedup_id if fifo else None)
    (sent,) = queue.send([message])
    assert sent.ok


def posting(fixture: InboxFixture) -> Callable[[DomainEvent, Any], None]:
    """A handler whose effect is a row that counts how often it was made."""
    return lambda event, connection: fixture.post(connection, event.key["transferId"])


def drained(consumer: Consumer, queue: Queue) -> ConsumeReport:
    """What became of all messages, once the queue is empty."""
    counts: Counter[str] = Counter()
    deadline = time.monotonic() + 120
    while held(queue):
        assert time.monotonic() < deadline, "the queue never ran dry"
        counts.update(dataclasses.asdict(consumer.run_once(wait=0.5)))
    return ConsumeReport(**counts)


def conflicts(consumer: str) -> float:
    """How often a known event id came to the consumer with another content."""
    return REGISTRY.get_sample_value("event_inbox_conflicts_total", {"consumer": consumer}) or 0.0


def held(queue: Queue) -> int:
    stats = queue.stats()
    return stats.visible + stats.in_flight + stats.delayed
