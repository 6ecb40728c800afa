"""The fixtures that the package registers with pytest, and the faults that their backends obey."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroad import BusConfig, DomainEvent, Inbox, Outbox, OutgoingMessage, QueueSpec, event
from postroad.errors import InvalidInput, OutcomeUnknown, Unavailable
from postroad.journal import JournalEvent, every_event
from postroad.outbox import OutboxDispatcher
from postroad.streams import TRIM_HORIZON, Record
from postroad.testing import FakeClock, Faults
from postroad.testing.faults import POINTS
from postroad.wiring import Backend

EVENT_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
LARGE = "x" * 2_000_000


@event(name="faults.order-placed")
@dataclass
class OrderPlaced:
    order_id: str


@dataclass
class Place:
    """The call of a point, and how often it took effect."""

    call: Callable[[], object]
    effects: Callable[[], int]


@pytest.fixture(params=["postroad_backend", "postroad_sqlite"])
def backend(request: pytest.FixtureRequest, postroad_faults: Faults) -> Backend:
    found: Backend = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def places(backend: Backend, tmp_path: Path) -> dict[str, Callable[[], Place]]:
    queue = backend.create_queue(QueueSpec("orders", visibility=30))
    topic, stream, journal = backend.topic("placed"), backend.stream("clicks", shards=1), backend.journal()
    topic.subscribe(queue)

    def settle(verb: Callable[[Any], object], effects: Callable[[], int]) -> Place:
        queue.send([OutgoingMessage("1")])
        deliveries = queue.receive()
        return Place(lambda: verb(deliveries), effects)

    def visible() -> int:
        return queue.stats().visible

    def acked() -> int:
        stats = queue.stats()
        return 1 - stats.visible - stats.in_flight

    def extended() -> int:
        backend.clock.advance(31)  # type: ignore[attr-defined]  # the fixtures' clock
        return queue.stats().in_flight

    def put_blob() -> object:
        blobs = backend.blobs()
        assert blobs is not None
        return blobs.put("letters/one", b"1")

    def blobs_put() -> int:
        return len([each for each in (blob_folder(backend) / "letters").rglob("*") if each.is_file()])

    happened = JournalEvent.create(
        "Order Seen", tenant_id="t1", entity_type="ORDER", entity_id="o1", properties={"size": 1}
    )

    def journalled() -> int:
        return len(list(every_event(journal, "PK", tenant="t1")))

    def read() -> int:
        (shard,) = stream.shards()
        return len(stream.read(shard, after=TRIM_HORIZON))

    return {
        "queue.send": lambda: Place(lambda: queue.send([OutgoingMessage("1")]), visible),
        "queue.ack": lambda: settle(queue.ack, acked),
        "queue.extend": lambda: settle(lambda held: queue.extend(held, seconds=60), extended),
        "queue.release": lambda: settle(queue.release, visible),
        "topic.publish": lambda: Place(lambda: topic.publish([OutgoingMessage("1")]), visible),
        "stream.put": lambda: Place(lambda: stream.put([Record(key="u1", data=b"1")]), read),
        "journal.append": lambda: Place(lambda: journal.append([happened]), journalled),
        "blobs.put": lambda: Place(put_blob, blobs_put),
        "outbox.claim": lambda: outbox_place(backend, tmp_path),
        "outbox.settle": lambda: outbox_place(backend, tmp_path),
        "inbox.first_time": lambda: inbox_place(tmp_path),
    }


def blob_folder(backend: Backend) -> Path:
    return Path(backend.ports.blobs.path)  # type: ignore[union-attr]  # both fixtures keep blobs in a directory


def outbox_place(backend: Backend, folder: Path) -> Place:
    outbox = Outbox.sqlite(folder / "shop.db")
    outbox.init()
    connection = sqlite3.connect(folder / "shop.db", isolation_level=None)
    connection.execute("BEGIN")
    outbox.add(connection, DomainEvent(type="orders.placed", key={"id": "1"}, payload={}))
    connection.execute("COMMIT")
    dispatcher = OutboxDispatcher(outbox, backend.topic("placed"))

    def settled() -> int:
        return len(connection.execute("SELECT 1 FROM outbox WHERE state = 'SENT'").fetchall())

    return Place(dispatcher.run_once, settled)


def inbox_place(folder: Path) -> Place:
    inbox = Inbox.sqlite(folder / "inbox.db")
    inbox.init()

    def first_time() -> object:
        with inbox.transaction() as connection:
            return inbox.first_time(connection, "ledger", EVENT_ID)

    return Place(first_time, lambda: len(inbox.processed("ledger", [EVENT_ID])))


POINTS_OF_CALLS = [point for point in POINTS if point != "queue.receive"]


def test_the_points_are_those_of_the_documentation() -> None:
    assert list(POINTS) == [
        *("queue.send", "queue.receive", "queue.ack", "queue.extend", "queue.release", "topic.publish", "stream.put"),
        *("journal.append", "blobs.put", "outbox.claim", "outbox.settle", "inbox.first_time"),
    ]


@pytest.mark.parametrize("point", POINTS_OF_CALLS)
def test_a_failed_call_has_no_effect_and_the_next_one_has(
    places: dict[str, Callable[[], Place]], postroad_faults: Faults, point: str
) -> None:
    place = places[point]()
    postroad_faults.clear()
    postroad_faults.fail(point)

    with pytest.raises(Unavailable, match=point):
        place.call()

    assert place.effects() == 0
    assert point in postroad_faults.calls
    # The lease of a message that was not extended, and of a row that was not settled, has to end first.
    if point not in ("queue.extend", "outbox.settle"):
        place.call()
        assert place.effects() == 1


@pytest.mark.parametrize(
    "point", [point for point in POINTS_OF_CALLS if point not in ("outbox.claim", "inbox.first_time")]
)
def test_a_call_whose_reply_is_lost_took_effect(
    places: dict[str, Callable[[], Place]], postroad_faults: Faults, point: str
) -> None:
    place = places[point]()
    postroad_faults.lose_reply(point)

    with pytest.raises(OutcomeUnknown, match=point):
        place.call()

    assert place.effects() == 1


@pytest.mark.parametrize(
    ("point", "effects"), [("queue.send", 2), ("topic.publish", 2), ("stream.put", 2), ("journal.append", 1)]
)
def test_a_duplicated_call_is_made_twice(
    places: dict[str, Callable[[], Place]], postroad_faults: Faults, point: str, effects: int
) -> None:
    place = places[point]()
    postroad_faults.duplicate(point)

    place.call()

    assert place.effects() == effects


def test_a_duplicated_receive_delivers_the_message_again_although_it_is_acked(
    backend: Backend, postroad_faults: Faults
) -> None:
    queue, other = backend.create_queue(QueueSpec("orders")), backend.create_queue(QueueSpec("others"))
    queue.send([OutgoingMessage("1")])
    postroad_faults.duplicate("queue.receive")

    [first] = queue.receive()
    queue.ack([first])

    assert other.receive() == []
    [again] = backend.queue("orders").receive()
    assert (again.message_id, again.body, again.receive_count) == (first.message_id, b"1", 2)
    assert queue.receive() == []


def test_a_failed_receive_leases_nothing_and_a_lost_one_leases(backend: Backend, postroad_faults: Faults) -> None:
    queue = backend.create_queue(QueueSpec("orders"))
    queue.send([OutgoingMessage("1")])
    postroad_faults.fail("queue.receive")
    postroad_faults.lose_reply("queue.receive")

    with pytest.raises(Unavailable):
        queue.receive()
    assert queue.stats().visible == 1
    with pytest.raises(OutcomeUnknown):
        queue.receive()

    assert queue.stats().in_flight == 1


def test_faults_come_after_so_many_calls_and_so_many_times(backend: Backend, postroad_faults: Faults) -> None:
    queue = backend.create_queue(QueueSpec("orders"))
    postroad_faults.fail("queue.send", after=1, times=2, error=ConnectionResetError("gone"))
    outcomes = []

    for number in range(5):
        try:
            queue.send([OutgoingMessage(str(number))])
            outcomes.append("sent")
        except ConnectionResetError:
            outcomes.append("failed")

    assert outcomes == ["sent", "failed", "failed", "sent", "sent"]
    assert postroad_faults.calls == ["queue.send"] * 5


def test_cleared_faults_do_not_happen(backend: Backend, postroad_faults: Faults) -> None:
    queue = backend.create_queue(QueueSpec("orders"))
    postroad_faults.fail("queue.send", times=10)
    with suppress(Unavailable):
        queue.send([OutgoingMessage("1")])

    postroad_faults.clear()

    assert postroad_faults.calls == []
    assert queue.send([OutgoingMessage("2")])[0].ok


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        (lambda faults: faults.fail("queue.sent"), "point"),
        (lambda faults: faults.fail("queue.send", times=0), "times"),
        (lambda faults: faults.fail("queue.send", after=-1), "after"),
        (lambda faults: faults.fail("queue.send", error="no"), "error"),
        (lambda faults: faults.lose_reply("queue.peek"), "point"),
        (lambda faults: faults.duplicate("outbox.claim"), "point"),
    ],
)
def test_a_plan_that_means_nothing_is_refused_by_its_field(plan: Callable[[Faults], None], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        plan(Faults())

    assert caught.value.field == field


def test_a_bus_repeats_what_failed_and_skips_what_came_twice(backend: Backend, postroad_faults: Faults) -> None:
    bus = backend.bus("orders", "billing", config=BusConfig(wait_time_seconds=0))
    billed: list[OrderPlaced] = []
    bus.subscribe(OrderPlaced, billed.append)
    postroad_faults.fail("topic.publish")
    postroad_faults.duplicate("queue.receive")

    result = bus.publish(OrderPlaced("A-1"))
    bus.receive_once()
    bus.receive_once()

    assert result.ok
    assert billed == [OrderPlaced("A-1")]
    assert postroad_faults.calls.count("topic.publish") == 2


def test_a_large_body_whose_blob_cannot_be_put_is_not_sent(backend: Backend, postroad_faults: Faults) -> None:
    queue = backend.create_queue(QueueSpec("orders"))
    postroad_faults.fail("blobs.put")

    with pytest.raises(Unavailable):
        queue.send([OutgoingMessage(LARGE)])

    assert queue.stats().visible == 0


def test_an_inbox_on_an_awaited_connection_obeys(postroad_faults: Faults, tmp_path: Path) -> None:
    aiosqlite = pytest.importorskip("aiosqlite")
    inbox = Inbox.sqlite(tmp_path / "inbox.db")
    inbox.init()
    postroad_faults.fail("inbox.first_time")

    async def twice() -> bool:
        async with aiosqlite.connect(tmp_path / "inbox.db", isolation_level=None) as connection:
            await connection.execute("BEGIN")
            with pytest.raises(Unavailable):
                await inbox.first_time_async(connection, "ledger", EVENT_ID)
            return await inbox.first_time_async(connection, "ledger", EVENT_ID)

    assert asyncio.run(twice())


def test_the_backends_are_on_the_clock_of_the_test(backend: Backend, postroad_clock: FakeClock) -> None:
    queue = backend.create_queue(QueueSpec("orders", visibility=30))
    queue.send([OutgoingMessage("1")])
    queue.receive()

    postroad_clock.advance(31)

    assert [each.receive_count for each in queue.receive()] == [2]


def test_one_backend_is_in_memory_and_one_in_a_file(
    postroad_backend: Backend, postroad_sqlite: Backend, tmp_path: Path
) -> None:
    assert postroad_backend.url == "memory://"
    assert (tmp_path / "postroad.db").exists()
    assert postroad_backend.clock is postroad_sqlite.clock


def test_nothing_obeys_after_the_block(postroad_backend: Backend) -> None:
    queue, faults = postroad_backend.create_queue(QueueSpec("orders")), Faults()

    with faults.obeyed():
        faults.fail("queue.send")

    assert queue.send([OutgoingMessage("1")])[0].ok
    assert faults.calls == []
