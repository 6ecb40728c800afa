"""A wall clock that is set back an hour: stored times never decrease, and what is measured stays above zero."""

from __future__ import annotations

import pytest

from postroad import OutgoingMessage, QueueSpec
from postroad.streams import TRIM_HORIZON, Record
from postroad.testing import FakeClock
from postroad.wiring import Backend

HOUR = 3_600


@pytest.fixture(params=["postroad_backend", "postroad_sqlite"])
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.getfixturevalue(request.param)
    return found


def test_the_times_of_messages_and_records_never_decrease(backend: Backend, postroad_clock: FakeClock) -> None:
    queue, stream = backend.create_queue(QueueSpec("orders")), backend.stream("clicks", shards=1)
    for step in (0, -HOUR, 1):
        postroad_clock.step(step)
        queue.send([OutgoingMessage("1")])
        stream.put([Record(key="u1", data=b"1")])

    (shard,) = stream.shards()
    sent = [each.sent_at for each in queue.peek()]
    arrived = [each.arrived_at for each in stream.read(shard, after=TRIM_HORIZON)]

    assert sent == sorted(sent)
    assert arrived == sorted(arrived)


def test_ages_leases_and_delays_do_not_follow_the_step(backend: Backend, postroad_clock: FakeClock) -> None:
    queue = backend.create_queue(QueueSpec("orders", visibility=30))
    queue.send([OutgoingMessage("now"), OutgoingMessage("later", delay=60)])
    queue.receive()

    postroad_clock.step(-HOUR)

    assert queue.stats().oldest_age_seconds == 0
    assert (queue.stats().in_flight, queue.stats().delayed) == (1, 1)
    postroad_clock.advance(61)
    assert {each.body for each in queue.receive()} == {b"now", b"later"}
