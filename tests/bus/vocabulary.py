"""The events that the tests of buses speak of, and how they wait."""

from __future__ import annotations

from dataclasses import field
from typing import Any
from uuid import UUID, uuid4

from postroad import event
from postroad.bus import BusConfig
from postroad.queues.markers import read_dead
from postroad.queues.sqlite import SQLiteQueues

QUICK = BusConfig(
    wait_time_seconds=0,
    poll_interval_seconds=0.01,
    publish_retry_delay_seconds=0.01,
    # A busy machine may take seconds for a call.
    publish_timeout_seconds=60,
    retry_delays_seconds=(0,),
)


@event
class Placed:
    number: int = 1


@event
class Shipped:
    number: int = 1


@event
class Stepped:
    session_id: str
    number: int = 0


@event
class Asked:
    request_id: UUID = field(default_factory=uuid4)


@event
class Identified:
    event_id: UUID = field(default_factory=uuid4)


@event
class Anything:
    value: Any = None


def dead_letter(queues: SQLiteQueues) -> tuple[str | None, str | None]:
    """The reason and the error of the only dead letter."""
    (letter,) = queues.queue("work-dead").peek()
    marker = read_dead(letter.attributes)
    assert marker is not None
    return marker.reason, (marker.error or "").partition(" [")[0]
