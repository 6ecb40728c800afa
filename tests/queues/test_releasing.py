"""What is released for later holds up what was sent after it only; what is taken back gets another receipt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import apsw
import pytest
from tests.memory import memory_queues

from postroad.engine.engine import Engine
from postroad.errors import StaleReceipt
from postroad.queues import Delivery, OutgoingMessage, Queue, QueueSpec, Watchable
from postroad.queues.sqlite import SQLiteQueues
from postroad.receiving import Defer, Receiver
from postroad.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def queue(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Queue]:
    spec = QueueSpec("jobs.fifo", fifo=True, visibility=30)
    if request.param == "memory":
        yield memory_queues(clock).create_queue(spec)
        return
    engine = Engine(tmp_path / "data.db", clock=clock)
    yield SQLiteQueues(engine).create_queue(spec)
    engine.close()


def test_a_message_released_for_later_does_not_hold_up_the_one_before_it(queue: Queue, clock: FakeClock) -> None:
    queue.send([OutgoingMessage(body, group="a", dedup_id=body) for body in ("1", "2", "3")])
    first, second, third = queue.receive(max_messages=3)
    queue.release([first])
    queue.release([second], after=7)
    queue.release([third])

    now = queue.receive(max_messages=3)
    queue.ack(now)
    meanwhile = queue.receive(max_messages=3)
    clock.advance(7)
    later = queue.receive(max_messages=3)

    assert [[delivery.body for delivery in found] for found in (now, meanwhile, later)] == [[b"1"], [], [b"2", b"3"]]


@pytest.mark.parametrize("name", ["work", "work.fifo"])
def test_a_receive_after_one_that_was_taken_back_has_another_receipt(name: str, clock: FakeClock) -> None:
    queues = memory_queues(clock)
    fifo = name.endswith(".fifo")
    queues.create_queue(QueueSpec(f"dead-{name}", fifo=fifo))
    queue = queues.create_queue(QueueSpec(name, fifo=fifo, dead_letter=f"dead-{name}"))
    queue.send([OutgoingMessage("1", group="a" if fifo else None, dedup_id="1" if fifo else None)])
    old: list[Delivery] = []
    for _ in range(2):
        old += queue.receive()
        cast(Watchable, queue).undo(old[-1:])
    [new] = queue.receive()

    stale = [
        *queue.ack(old),
        *queue.extend(old, seconds=10),
        *queue.release(old),
        *queue.reject(old, reason="late"),
        *cast(Watchable, queue).undo(old),
    ]

    assert len({new.receipt, *(each.receipt for each in old)}) == 3
    assert [each.ok for each in stale] == [False] * 10
    assert (new.receive_count, queue.ack([new])[0].ok, queue.stats().visible) == (1, True, 0)


def test_a_handler_that_ends_late_does_not_settle_the_delivery_of_another(clock: FakeClock) -> None:
    queue = memory_queues(clock).create_queue(QueueSpec("work"))
    queue.send([OutgoingMessage("1")])
    held: list[Delivery] = []

    def put_off(delivery: Delivery) -> Defer:
        held.append(delivery)
        return Defer(0)

    Receiver(queue, put_off).run_once()
    [other] = queue.receive()
    [late] = queue.ack(held)

    assert isinstance(late.error, StaleReceipt)
    assert queue.stats().in_flight == 1
    assert queue.ack([other])[0].ok


def test_a_receipt_from_before_an_upgrade_is_valid_after_it(tmp_path: Path, clock: FakeClock) -> None:
    engine = Engine(tmp_path / "data.db", clock=clock)
    before = SQLiteQueues(engine).create_queue(QueueSpec("work"))
    before.send([OutgoingMessage("1")])
    held = before.receive()
    engine.close()
    with closing(apsw.Connection(str(tmp_path / "data.db"))) as old:
        old.execute("ALTER TABLE lease DROP COLUMN undone")
        old.execute("UPDATE part SET version = 4 WHERE name = 'queues'")

    engine = Engine(tmp_path / "data.db", clock=clock)
    [acked] = SQLiteQueues(engine).queue("work").ack(held)
    engine.close()

    assert acked.ok
