"""What was changed on the disk is never given out, and holds up nothing beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from postroad import Delivery, OutgoingMessage, Queue, QueueSpec, connect
from postroad.engine.engine import Engine
from postroad.errors import StorageDamaged
from postroad.queues import redrive
from postroad.queues.markers import read_dead
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing.clock import FakeClock


def _open(path: Path, clock: FakeClock) -> tuple[Engine, SQLiteQueues]:
    engine = Engine(path, clock=clock)
    return engine, SQLiteQueues(engine)


def _numbered(n: int, *, fifo: bool) -> OutgoingMessage:
    attributes = {"EventType": "numbered"}
    return (
        OutgoingMessage(str(n), attributes, group="g", dedup_id=str(n)) if fifo else OutgoingMessage(str(n), attributes)
    )


def _damage(engine: Engine, change: str, sequence: int | None) -> None:
    engine.write(lambda tx: tx.connection.execute(f"UPDATE message SET {change} WHERE id = ?", (sequence,)))


def _taken(queue: Queue) -> list[Delivery]:
    """One message at a time, so that nothing comes along with a neighbour."""
    deliveries = queue.receive(max_messages=1)
    queue.ack(deliveries)
    return deliveries


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "FIFO"])
@pytest.mark.parametrize("change", ["body = CAST('a lie' AS BLOB)", "attributes = '{'"])
def test_a_changed_message_goes_to_the_dead_letters_and_no_further(tmp_path: Path, fifo: bool, change: str) -> None:
    engine, queues = _open(tmp_path / "postroad.db", FakeClock())
    dead = queues.create_queue(QueueSpec(f"dead{'.fifo' * fifo}", fifo=fifo))
    queue = queues.create_queue(QueueSpec(f"jobs{'.fifo' * fifo}", fifo=fifo, dead_letter=dead.name))
    sent = queue.send([_numbered(n, fifo=fifo) for n in range(3)])
    _damage(engine, change, sent[1].sequence)

    received = [each for _ in range(3) for each in _taken(queue)]
    redriven = redrive(queues, dead.name)
    (shown,) = dead.peek()

    assert [each.body for each in received] == [b"0", b"2"]
    assert dead.receive() == []
    assert redriven.moved == 0
    assert shown.message_id == sent[1].message_id
    assert read_dead(shown.attributes) is not None
    assert "Damaged" in shown.attributes
    engine.close()


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "FIFO"])
def test_a_changed_message_without_dead_letters_is_set_aside_and_holds_up_nobody(tmp_path: Path, fifo: bool) -> None:
    clock = FakeClock()
    engine, queues = _open(tmp_path / "postroad.db", clock)
    queue = queues.create_queue(QueueSpec(f"jobs{'.fifo' * fifo}", fifo=fifo))
    sent = queue.send([_numbered(n, fifo=fifo) for n in range(3)])
    _damage(engine, "body = CAST('a lie' AS BLOB)", sent[0].sequence)

    received = [each for _ in range(3) for each in _taken(queue)]
    clock.reboot()
    engine.close()
    engine, queues = _open(tmp_path / "postroad.db", clock)
    queue = queues.queue(queue.name)

    assert [each.body for each in received] == [b"1", b"2"]
    assert queue.receive() == []
    assert ["Damaged" in message.attributes for message in queue.peek()] == [True]
    assert queue.stats().visible == 0
    engine.close()


def test_a_table_that_another_program_removed_is_damage_and_not_a_question_of_permissions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    connect(url).close()
    drop = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('DROP TABLE lease'); c.commit(); c.close()"
    subprocess.run([sys.executable, "-c", drop, str(tmp_path / "a.db")], check=True)

    with connect(url) as backend, pytest.raises(StorageDamaged, match="no such table") as caught:
        backend.create_queue(QueueSpec("q")).receive()

    assert "backup" in caught.value.remedy
