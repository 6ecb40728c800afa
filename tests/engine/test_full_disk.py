"""A full disk refuses what would add to it; acks and deletes have room of their own."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import postroad
from postroad import Backend, OutgoingMessage, QueueSpec, failpoints
from postroad.engine import disk
from postroad.errors import StorageFull
from postroad.queues import purge

RESERVE = "p.db.reserve"


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    with postroad.connect(f"sqlite:///{tmp_path}/p.db") as backend:
        yield backend
    failpoints.load(None)


def _refuse(file: int, size: int, before: int) -> bool:
    return False


def test_room_is_taken_beside_the_file_for_its_owner_only(backend: Backend, tmp_path: Path) -> None:
    kept = (tmp_path / RESERVE).stat()

    assert kept.st_size >= disk.LEAST_HEAD_ROOM
    assert kept.st_blocks * 512 >= kept.st_size
    assert stat.S_IMODE(kept.st_mode) == 0o600


def test_an_ack_that_finds_no_room_gets_the_room_that_is_kept_for_it(backend: Backend, tmp_path: Path) -> None:
    jobs = backend.create_queue(QueueSpec("jobs"))
    jobs.send([OutgoingMessage("one")])
    held = jobs.receive()

    failpoints.load("queue.ack.before_commit=enospc#1")
    (acked,) = jobs.ack(held)

    assert acked.ok
    assert (tmp_path / RESERVE).stat().st_size <= disk.MOST_HEAD_ROOM // 4
    assert jobs.stats().in_flight == 0


def test_without_that_room_nothing_is_added_and_everything_is_taken_out(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = backend.create_queue(QueueSpec("dead"))
    jobs = backend.create_queue(QueueSpec("jobs", dead_letter="dead"))
    jobs.send([OutgoingMessage(str(n)) for n in range(4)])
    os.truncate(tmp_path / RESERVE, 0)
    monkeypatch.setattr(disk, "_allocate", _refuse)

    for add in (
        lambda: jobs.send([OutgoingMessage("five")]),
        lambda: backend.items().put("t/k", b"v"),
        lambda: backend.check(),
    ):
        with pytest.raises(StorageFull, match="disk is full"):
            add()
    acked, released, rejected, kept = jobs.receive(max_messages=4)

    assert jobs.ack([acked])[0].ok
    assert jobs.release([released])[0].ok
    assert jobs.reject([rejected], reason="no")[0].ok
    assert jobs.extend([kept], seconds=60)[0].ok
    assert purge(dead) == 1
    backend.delete_queue("jobs")
    assert backend.queues() == ["dead"]


def test_sending_goes_on_when_the_disk_has_room_again(backend: Backend, tmp_path: Path) -> None:
    jobs = backend.create_queue(QueueSpec("jobs"))
    os.truncate(tmp_path / RESERVE, 0)

    (sent,) = jobs.send([OutgoingMessage("one")])

    assert sent.ok
    assert (tmp_path / RESERVE).stat().st_size >= disk.LEAST_HEAD_ROOM
