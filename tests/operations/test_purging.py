"""Purge for operators: confirmed, recorded, and into an archive."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from postroad.errors import ConfigurationError, InvalidInput, QueueNotFound, StorageFull
from postroad.operations import AuditLog, purge
from postroad.queues import OutgoingMessage, Queue, QueueSpec
from postroad.wiring import Backend, connect

KILLED = """
import sys
from pathlib import Path
from postroad import failpoints
from postroad.operations import purge
from postroad.wiring import connect

failpoints.load("queue.purge.mid=kill9#3")
purge(connect(sys.argv[1]), "jobs", confirm="jobs", reason="test", archive=Path(sys.argv[2]))
"""


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    monkeypatch.setenv("POSTROAD_AUDIT_LOG", str(tmp_path / "audit.jsonl"))
    with connect("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/x.db") as opened:
        yield opened


@pytest.fixture
def jobs(backend: Backend) -> Queue:
    queue = backend.create_queue(QueueSpec("jobs", visibility=60))
    queue.send([OutgoingMessage("a", {"EventType": "placed"}), OutgoingMessage("snow \u2603"), OutgoingMessage("c")])
    return queue


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_purge_removes_everything_and_is_recorded(backend: Backend, jobs: Queue) -> None:
    jobs.receive(max_messages=1)

    purged = purge(backend, "jobs", confirm="jobs", reason="test data", actor="ada")

    start, end = AuditLog().read()
    assert (purged, jobs.peek()) == (3, [])
    assert (start.action, start.target, start.actor) == ("queue.purge.start", "jobs", "ada")
    assert (start.detail, end.action, end.detail) == ({"reason": "test data"}, "queue.purge.end", {"purged": 3})


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("confirm", {"confirm": "job"}),
        ("confirm", {"confirm": ""}),
        ("reason", {"reason": ""}),
        ("reason", {"reason": "  "}),
        ("archive", {"archive": Path("/nowhere/a.jsonl")}),
        ("archive", {"archive": Path("/")}),
    ],
)
def test_what_is_missing_or_wrong_is_refused_and_nothing_changes(
    backend: Backend, jobs: Queue, field: str, given: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput) as refused:
        purge(backend, "jobs", **{"confirm": "jobs", "reason": "test", **given})

    assert refused.value.field == field
    assert len(jobs.peek()) == 3
    assert list(AuditLog().read()) == []


def test_a_queue_that_does_not_exist_is_refused(backend: Backend) -> None:
    with pytest.raises(QueueNotFound):
        purge(backend, "nowhere", confirm="nowhere", reason="test")


def test_without_a_record_nothing_is_removed_and_no_archive_is_left(
    backend: Backend, jobs: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_AUDIT_LOG", "/nowhere/audit.jsonl")

    with pytest.raises(ConfigurationError, match="cannot be written"):
        purge(backend, "jobs", confirm="jobs", reason="test", archive=tmp_path / "a.jsonl")

    assert len(jobs.peek()) == 3
    assert not (tmp_path / "a.jsonl").exists()


def test_an_archive_holds_every_message_and_only_its_owner_may_read_it(
    backend: Backend, jobs: Queue, tmp_path: Path
) -> None:
    jobs.receive(max_messages=1)
    before = jobs.peek()
    archive = tmp_path / "a.jsonl"

    purged = purge(backend, "jobs", confirm="jobs", reason="test", archive=archive)

    kept = lines(archive)
    assert (purged, jobs.peek()) == (3, [])
    assert [line["message_id"] for line in kept] == [message.message_id for message in before]
    assert [line["body"] for line in kept] == ["a", "snow \u2603", "c"]
    assert (kept[0]["attributes"], kept[0]["receive_count"], kept[0]["state"]) == (
        {"EventType": "placed"},
        1,
        "in_flight",
    )
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert list(AuditLog().read())[-1].detail == {"purged": 3, "archived": 3}


def test_an_archive_is_appended_to_and_a_torn_line_of_a_crash_is_cut(
    backend: Backend, jobs: Queue, tmp_path: Path
) -> None:
    archive = tmp_path / "a.jsonl"
    archive.write_text('{"message_id":"before","body":"kept"}\n{"message_id":"to')
    archive.chmod(0o644)

    purge(backend, "jobs", confirm="jobs", reason="test", archive=archive)

    assert [line["body"] for line in lines(archive)] == ["kept", "a", "snow \u2603", "c"]
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600


def test_a_file_that_holds_something_else_is_no_archive(backend: Backend, jobs: Queue, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("these are my notes")

    with pytest.raises(InvalidInput, match="something else"):
        purge(backend, "jobs", confirm="jobs", reason="test", archive=notes)

    assert (notes.read_text(), len(jobs.peek())) == ("these are my notes", 3)


def test_a_full_disk_keeps_the_messages(
    backend: Backend, jobs: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = os.pwrite

    def full(descriptor: int, text: bytes, at: int) -> int:
        if text.startswith(b'{"message_id":'):
            raise OSError(28, "No space left on device")
        return written(descriptor, text, at)

    with monkeypatch.context() as patch, pytest.raises(StorageFull, match="No space left"):
        patch.setattr("os.pwrite", full)
        purge(backend, "jobs", confirm="jobs", reason="test", archive=tmp_path / "a.jsonl")

    end = list(AuditLog().read())[-1]
    assert len(jobs.peek()) == 3
    assert "No space left" in end.detail["error"]
    assert end.detail["archived"] == 0


def test_large_bodies_are_archived_whole(backend: Backend, tmp_path: Path) -> None:
    jobs = backend.create_queue(QueueSpec("jobs", max_message_bytes=1_024))
    jobs.send([OutgoingMessage("x" * 5_000)])

    purge(backend, "jobs", confirm="jobs", reason="test", archive=tmp_path / "a.jsonl")

    [kept] = lines(tmp_path / "a.jsonl")
    assert kept["body"] == "x" * 5_000


def test_a_damaged_message_is_archived_as_it_is_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with connect(f"sqlite:///{path}") as backend:
        jobs = backend.create_queue(QueueSpec("jobs"))
        jobs.send([OutgoingMessage("good"), OutgoingMessage("bad", {"EventType": "placed"})])
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE message SET body = x'ff00', attributes = '{' WHERE attributes IS NOT NULL")
    connection.close()

    with connect(f"sqlite:///{path}") as backend:
        assert "Damaged" in backend.queue("jobs").peek()[1].attributes
        purged = purge(backend, "jobs", confirm="jobs", reason="damaged", archive=tmp_path / "a.jsonl")

    good, bad = lines(tmp_path / "a.jsonl")
    assert (purged, good["body"], bad["body_base64"]) == (2, "good", "/wA=")


@pytest.mark.slow
def test_a_purge_that_was_killed_has_lost_nothing_and_goes_on(tmp_path: Path) -> None:
    url, archive = f"sqlite:///{tmp_path}/x.db", tmp_path / "a.jsonl"
    texts = [f"{number:04}" for number in range(500)]
    with connect(url) as backend:
        backend.create_queue(QueueSpec("jobs")).send([OutgoingMessage(text) for text in texts])
    environment = {**os.environ, "POSTROAD_AUDIT_LOG": str(tmp_path / "audit.jsonl")}

    killed = subprocess.run([sys.executable, "-c", KILLED, url, str(archive)], env=environment, check=False, timeout=60)
    kept = {line["body"] for line in lines(archive)}
    with connect(url) as backend:
        left = [message.body.decode() for message in backend.queue("jobs").peek(limit=1_000)]
        purged = purge(backend, "jobs", confirm="jobs", reason="again", archive=archive)
        empty = backend.queue("jobs").peek()

    assert killed.returncode == -signal.SIGKILL
    assert 0 < len(left) < 500
    assert kept | set(left) == set(texts)
    assert (purged, empty) == (len(left), [])
    assert {line["body"] for line in lines(archive)} == set(texts)
    assert AuditLog(tmp_path / "audit.jsonl").verify().ok
