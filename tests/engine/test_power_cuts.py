"""What was promised survives a power cut at any moment, whatever the disk kept of what it was not told to keep."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from postroad.engine import disk
from postroad.engine.engine import Engine
from postroad.engine.transaction import every
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.queues.sqlite import SQLiteQueue, SQLiteQueues
from postroad.testing.powerloss import Image, Promise, Recording, image, images, recorded

IMAGES = 300


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Three threads send, a fourth receives and acks, and the log is copied into the file now and then."""
    monkeypatch.setattr(disk, "CHECKPOINT_PAGES", 60)
    with recorded(tmp_path) as record:
        store = Engine(tmp_path / "p.db")
        queue = SQLiteQueues(store).create_queue(QueueSpec("jobs"))
        with ThreadPoolExecutor(4) as threads:
            senders = [threads.submit(_send, queue, record, f"{number}") for number in range(3)]
            threads.submit(_receive, queue, record, 40).result()
            for sender in senders:
                sender.result()
        store.close()
    return record


def _send(queue: SQLiteQueue, record: Recording, name: str) -> None:
    for number in range(40):
        body = f"{name}-{number}"
        assert queue.send([OutgoingMessage(body)])[0].ok
        record.add(Promise(body))


def _receive(queue: SQLiteQueue, record: Recording, enough: int) -> None:
    for _ in range(enough):
        deliveries = queue.receive(max_messages=1, wait=1)
        for delivery in deliveries:
            record.add(Promise(f"taken {delivery.body.decode()}"))
        queue.ack(deliveries)


def _bodies(directory: Path, image: Image) -> set[str]:
    store = Engine(image.write(directory) / "p.db")
    try:
        assert store.read(lambda connection: connection.pragma("integrity_check")) == "ok"
        SQLiteQueues(store)
        rows = store.read(lambda connection: every(connection, "SELECT body FROM message"))
    finally:
        store.close()
    return {body.decode() for (body,) in rows}


@pytest.mark.slow
def test_nothing_that_was_promised_is_lost_to_a_power_cut(record: Recording, tmp_path: Path) -> None:
    for cut in images(record.steps, IMAGES, random.Random(7)):
        found = _bodies(tmp_path / "after", cut)

        taken = {what.removeprefix("taken ") for what in cut.promised if what.startswith("taken ")}
        sent = {what for what in cut.promised if not what.startswith("taken ")}
        assert sent - taken <= found, (cut.end, cut.fate)


def test_the_simulation_finds_a_log_that_is_never_synced(tmp_path: Path) -> None:
    with recorded(tmp_path, "NORMAL") as record:
        store = Engine(tmp_path / "p.db")
        _send(SQLiteQueues(store).create_queue(QueueSpec("jobs")), record, "a")
        end = len(record.steps)
        store.close()
    cut = next(cut for cut in (image(record, end, random.Random(seed)) for seed in range(99)) if cut.fate == "torn")

    found = _bodies(tmp_path / "after", cut)

    assert cut.promised - found
