"""Wall clocks that step, flicker and pass rare dates: nothing comes early, nothing stalls, and sequences grow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.outbox.dispatching.conftest import MakeDispatcher
from tests.outbox.dispatching.publishers import Recorder
from tests.outbox.fixtures import OutboxFixture, sqlite_fixture
from tests.tasks.benches import APP, TENANT
from tests.waiting import eventually

import postroad
from postroad import Backend, Delivery, OutgoingMessage, QueueSpec
from postroad.journal import PENDING, every_event
from postroad.streams import TRIM_HORIZON, Record
from postroad.tasks import Scheduler, TaskRegistry
from postroad.testing import FakeClock

HOUR = 3_600.0
ONCE = (0.0,) * 99
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """When the test begins, and the steps that its wall clock makes in turn."""

    start: datetime
    steps: tuple[float, ...] = (0.0,)


DISTURBANCES = {
    "an-hour-ahead": Disturbance(NOON, (HOUR, *ONCE)),
    "an-hour-back": Disturbance(NOON, (-HOUR, *ONCE)),
    "back-and-forth": Disturbance(NOON, (-HOUR, HOUR, HOUR, -HOUR)),
    "strobe": Disturbance(NOON, (0.2, -0.2)),
    "year-2038": Disturbance(datetime(2038, 1, 19, 3, 14, 5, tzinfo=UTC)),
    "leap-day": Disturbance(datetime(2028, 2, 28, 23, 59, 59, tzinfo=UTC)),
    "end-of-leap-day": Disturbance(datetime(2028, 2, 29, 23, 59, 59, tzinfo=UTC)),
}


class Jolts:
    """A clock whose wall time is disturbed at each call."""

    def __init__(self, disturbance: Disturbance) -> None:
        self.clock = FakeClock(disturbance.start)
        self._steps = itertools.cycle(disturbance.steps)

    def __call__(self) -> None:
        self.clock.step(next(self._steps))


@pytest.fixture(params=DISTURBANCES.values(), ids=list(DISTURBANCES))
def jolt(request: pytest.FixtureRequest) -> Jolts:
    return Jolts(request.param)


@pytest.fixture
def backend(jolt: Jolts, tmp_path: Path) -> Iterator[Backend]:
    with postroad.connect(f"sqlite:///{tmp_path}/p.db", clock=jolt.clock) as backend:
        yield backend


def _bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


def test_a_delayed_message_comes_when_its_delay_is_over_and_not_before(backend: Backend, jolt: Jolts) -> None:
    queue = backend.create_queue(QueueSpec("jobs"))
    queue.send([OutgoingMessage("later", delay=60)])

    early = []
    for _ in range(59):
        jolt()
        jolt.clock.advance(1)
        early += queue.receive()
    jolt.clock.advance(1.001)

    assert early == []
    assert _bodies(queue.receive()) == [b"later"]


def test_a_lease_lasts_as_long_as_it_was_given_for(backend: Backend, jolt: Jolts) -> None:
    queue = backend.create_queue(QueueSpec("jobs", visibility=30))
    queue.send([OutgoingMessage("one")])
    [first] = queue.receive()

    early = []
    for _ in range(29):
        jolt()
        jolt.clock.advance(1)
        early += queue.receive()
    jolt.clock.advance(1.001)
    [second] = queue.receive()

    assert early == []
    assert second.receive_count == 2
    assert not queue.ack([first])[0].ok
    jolt()
    assert queue.ack([second])[0].ok


def test_a_release_and_an_extension_are_measured_too(backend: Backend, jolt: Jolts) -> None:
    queue = backend.create_queue(QueueSpec("jobs", visibility=10))
    queue.send([OutgoingMessage("released"), OutgoingMessage("extended")])
    held = {each.body: each for each in queue.receive()}
    queue.release([held[b"released"]], after=20)
    jolt()
    queue.extend([held[b"extended"]], seconds=40)

    jolt.clock.advance(19.9)
    jolt()
    assert queue.receive() == []
    jolt.clock.advance(0.2)
    jolt()
    assert _bodies(queue.receive(visibility=60)) == [b"released"]
    jolt.clock.advance(20)
    assert _bodies(queue.receive()) == [b"extended"]


def test_a_group_keeps_its_order_its_lock_and_growing_sequences(backend: Backend, jolt: Jolts) -> None:
    queue = backend.create_queue(QueueSpec("jobs.fifo", fifo=True, visibility=30))
    sequences = []
    for number in range(8):
        [sent] = queue.send([OutgoingMessage(str(number), group="g", dedup_id=str(number))])
        sequences.append(sent.sequence)
        jolt()
        jolt.clock.advance(0.25)

    found, times = [], []
    while deliveries := queue.receive(max_messages=1):
        jolt()
        # The group is locked while one of its messages is held.
        assert queue.receive() == []
        found += _bodies(deliveries)
        times += [each.sent_at for each in deliveries]
        queue.ack(deliveries)

    assert found == [str(number).encode() for number in range(8)]
    assert all(sequence is not None for sequence in sequences)
    assert sequences == sorted(set(sequences), key=lambda sequence: sequence or 0)
    assert times == sorted(times)


def test_sequences_grow_over_a_restart(jolt: Jolts, tmp_path: Path) -> None:
    sequences = []
    for number in range(4):
        with postroad.connect(f"sqlite:///{tmp_path}/p.db", clock=jolt.clock) as backend:
            queue = backend.create_queue(QueueSpec("jobs.fifo", fifo=True))
            [sent] = queue.send([OutgoingMessage(str(number), group="g", dedup_id=str(number))])
            assert sent.sequence is not None
            sequences.append(sent.sequence)
            queue.ack(queue.receive())
        jolt()
        jolt.clock.reboot()

    assert sequences == sorted(set(sequences))


def test_a_dedup_id_is_remembered_for_five_minutes_and_no_longer(backend: Backend, jolt: Jolts) -> None:
    queue = backend.create_queue(QueueSpec("jobs.fifo", fifo=True))

    def send() -> None:
        assert queue.send([OutgoingMessage("one", group="g", dedup_id="d")])[0].ok

    send()
    queue.ack(queue.receive())
    repeated = []
    for _ in range(4):
        jolt()
        jolt.clock.advance(70)
        send()
        repeated += queue.receive()
    jolt.clock.advance(21)
    send()

    assert repeated == []
    assert _bodies(queue.receive()) == [b"one"]


def test_records_of_a_stream_are_read_in_order_and_a_lease_of_a_shard_is_measured(
    backend: Backend, jolt: Jolts
) -> None:
    stream = backend.stream("clicks", shards=1)
    for number in range(6):
        stream.put([Record("k", str(number).encode())])
        jolt()
        jolt.clock.advance(0.1)
    [shard] = stream.shards()

    records = stream.read(shard, after=TRIM_HORIZON)

    assert [record.data for record in records] == [str(number).encode() for number in range(6)]
    assert [record.sequence for record in records] == sorted({record.sequence for record in records})
    arrived = [record.arrived_at for record in records]
    assert arrived == sorted(arrived)


def _schedule(backend: Backend, **options: Any) -> Scheduler:
    registry = TaskRegistry()
    registry.register(lambda input, ctx: None, "beat", **options)
    return Scheduler(backend, registry=registry, tenant_id=TENANT, app=APP)


def _runs(backend: Backend) -> list[str]:
    return [each.entity_id for each in every_event(backend.journal(), "GSI4", tenant=TENANT, event_type=PENDING)]


def test_no_tick_of_a_schedule_runs_twice_and_ticks_go_on(backend: Backend, jolt: Jolts) -> None:
    scheduler = _schedule(backend, every="10m")
    scheduler.tick()
    for _ in range(12):
        jolt()
        jolt.clock.advance(300)
        scheduler.tick()
    before = _runs(backend)
    # A clock that was set back by an hour passes the ticks of that hour a second time.
    for _ in range(24):
        jolt.clock.advance(300)
        scheduler.tick()
    runs = _runs(backend)

    assert len(set(runs)) == len(runs)
    assert len(runs) > len(before)


@pytest.mark.parametrize(
    ("start", "days"),
    [
        (datetime(2028, 2, 27, 12, tzinfo=UTC), ["20280228", "20280229", "20280301"]),
        (datetime(2027, 2, 27, 12, tzinfo=UTC), ["20270228", "20270301", "20270302"]),
        (datetime(2038, 1, 17, 12, tzinfo=UTC), ["20380118", "20380119", "20380120"]),
    ],
    ids=["leap-year", "common-year", "2038"],
)
def test_a_nightly_schedule_runs_on_every_day_that_there_is(start: datetime, days: list[str]) -> None:
    clock = FakeClock(start)
    with postroad.connect("memory://", clock=clock) as backend:
        scheduler = _schedule(backend, schedule="0 3 * * *")
        scheduler.tick()
        for _ in days:
            clock.advance(86_400)
            scheduler.tick()
        runs = _runs(backend)

    assert runs == [f"schedule-beat-{day}T030000Z" for day in days]


@pytest.fixture
def outbox(jolt: Jolts, tmp_path: Path) -> Iterator[OutboxFixture]:
    fixture = sqlite_fixture(tmp_path / "app.db", clock=jolt.clock)
    yield fixture
    fixture.outbox.close()


def test_rows_of_an_outbox_are_published_in_the_order_of_adding_whatever_the_clock_said(
    outbox: OutboxFixture, jolt: Jolts, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    for number in range(8):
        outbox.add(payload={"n": number})
        jolt()
    numbers = outbox.run("SELECT seq FROM outbox ORDER BY id")

    report = dispatcher_of(outbox.outbox, recorder).drain()

    assert report.sent == 8
    assert recorder.numbers() == list(range(8))
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("seconds", [0.2, -0.2, HOUR, -HOUR], ids=lambda seconds: f"{seconds:+}-s")
def test_rows_are_published_in_order_when_the_clock_of_their_database_steps(
    tmp_path: Path, recorder: Recorder, dispatcher_of: MakeDispatcher, seconds: float
) -> None:
    fixture = sqlite_fixture(tmp_path / "app.db")
    for number in range(6):
        fixture.add(payload={"n": number})
    # A clock that steps ahead makes all stored times older.
    for column in ("next_attempt", "createdat", "updatedat"):
        shifted = f"strftime('%Y-%m-%dT%H:%M:%fZ', {column}, '{-seconds:+} seconds')"
        fixture.run(f"UPDATE outbox SET {column} = {shifted}")
    dispatcher = dispatcher_of(fixture.outbox, recorder)
    dispatcher.start()

    eventually(lambda: fixture.outbox.status().sent == 6)

    dispatcher.stop()
    fixture.outbox.close()
    assert recorder.numbers() == list(range(6))
