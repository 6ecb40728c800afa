"""What was promised survives a power cut at any moment, whatever the disk kept of what it was not told to keep."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.engine.power import Promise, Record, recorded

from postroad.engine import disk
from postroad.engine.engine import Engine
from postroad.engine.transaction import every
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.queues.sqlite import SQLiteQueue, SQLiteQueues

IMAGES = 300


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Three threads send, a fourth receives and acks, and the log is copied into the file now and then."""
    monkeypatch.setattr(disk, "CHECKPOINT_PAGES", 60)
    with recorded(monkeypatch, "p.db-wal") as record:
        store = Engine(tmp_path / "p.db")
        queue = SQLiteQueues(store).create_queue(QueueSpec("jobs"))
        with ThreadPoolExecutor(4) as threads:
            senders = [threads.submit(_send, queue, record, f"{number}") for number in range(3)]
            threads.submit(_receive, queue, record, 40).result()
            for sender in senders:
                sender.result()
        store.close()
    return record


def _send(queue: SQLiteQueue, record: Record, name: str) -> None:
    for number in range(40):
        body = f"{name}-{number}"
        assert queue.send([OutgoingMessage(body)])[0].ok
        record.add(Promise(body))


def _receive(queue: SQLiteQueue, record: Record, enough: int) -> None:
    for _ in range(enough):
        deliveries = queue.receive(max_messages=1, wait=1)
        for delivery in deliveries:
            record.add(Promise(f"taken {delivery.body.decode()}"))
        queue.ack(deliveries)


def _bodies(directory: Path, files: dict[str, bytearray]) -> set[str]:
    for name in ("p.db", "p.db-wal", "p.db-shm"):
        (directory / name).unlink(missing_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    store = Engine(directory / "p.db")
    try:
        assert store.read(lambda connection: connection.pragma("integrity_check")) == "ok"
        SQLiteQueues(store)
        rows = store.read(lambda connection: every(connection, "SELECT body FROM message"))
    finally:
        store.close()
    return {body.decode() for (body,) in rows}


@pytest.mark.slow
def test_nothing_that_was_promised_is_lost_to_a_power_cut(record: Record, tmp_path: Path) -> None:
    chance = random.Random(7)
    first = next(place for place, step in enumerate(record.steps) if isinstance(step, Promise))
    (tmp_path / "after").mkdir()

    for _ in range(IMAGES):
        end = chance.randrange(first, len(record.steps) + 1)
        found = _bodies(tmp_path / "after", record.image(end, chance))

        promised = record.promised(end)
        taken = {what.removeprefix("taken ") for what in promised if what.startswith("taken ")}
        sent = {what for what in promised if not what.startswith("taken ")}
        assert sent - taken <= found


def test_the_simulation_finds_a_log_that_is_never_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(monkeypatch, "p.db-wal") as record:
        monkeypatch.setattr("postroad.engine.disk._to_disk", lambda descriptor: None)
        store = Engine(tmp_path / "p.db")
        _send(SQLiteQueues(store).create_queue(QueueSpec("jobs")), record, "a")
        end = len(record.steps)
        store.close()
    (tmp_path / "after").mkdir()

    found = _bodies(tmp_path / "after", record.image(end, random.Random(7)))

    assert record.promised(end) - found
