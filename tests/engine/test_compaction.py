"""A file that was drained gives its room back while others use it, and loses nothing whatever happens meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import postroad
from postroad import Backend, OutgoingMessage, QueueSpec
from postroad.engine import compaction
from postroad.engine.compaction import Compaction
from postroad.errors import NotSupported

_COMPACT = """
import sys
import postroad
from postroad.engine import compaction
compaction.STEP_PAGES = 8
with postroad.connect(sys.argv[1]) as backend:
    def report(done):
        print(done.steps, flush=True)
        if done.steps == 3:
            sys.stdin.readline()
    backend.compact(progress=report)
"""
_TRAFFIC = """
import sys
import postroad
from postroad import OutgoingMessage
with postroad.connect(sys.argv[1]) as backend:
    queue, n = backend.queue("traffic"), 0
    print("ready", flush=True)
    while n < 300:
        assert queue.send([OutgoingMessage(str(n))])[0].ok
        (delivery,) = queue.receive(max_messages=1)
        assert delivery.body == str(n).encode()
        queue.ack([delivery])
        n += 1
print(n, flush=True)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/p.db"


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    with postroad.connect(url) as backend:
        yield backend


def _bloat(backend: Backend, *, kept: int = 50) -> list[bytes]:
    """Send much, drain most of it, and return what is left: every so many a message, to the end of the file."""
    queue = backend.create_queue(QueueSpec("jobs", visibility=600))
    for start in range(0, 3_000, 100):
        queue.send([OutgoingMessage(f"{start + n}".ljust(2_000)) for n in range(100)])
    held = []
    while deliveries := queue.receive(max_messages=1_000):
        held += deliveries
    left = held[:: len(held) // kept]
    queue.ack([delivery for delivery in held if delivery not in left])
    queue.release(left)
    return sorted(delivery.body for delivery in left)


def _bodies(backend: Backend) -> list[bytes]:
    return sorted(message.body for message in backend.queue("jobs").peek(limit=1_000))


def _is_sound(path: Path) -> bool:
    connection = apsw.Connection(str(path))
    found = connection.pragma("integrity_check")
    connection.close()
    return bool(found == "ok")


def test_a_drained_file_gives_its_room_back_and_keeps_its_messages(backend: Backend, tmp_path: Path) -> None:
    left = _bloat(backend)
    reports: list[Compaction] = []

    done = backend.compact(progress=reports.append)

    assert done.before_bytes > 6_000_000
    assert done.after_bytes < 1_000_000
    assert (tmp_path / "p.db").stat().st_size <= done.after_bytes
    assert (tmp_path / "p.db-wal").stat().st_size == 0
    assert done.given_back_bytes == done.before_bytes - done.after_bytes
    assert [each.steps for each in reports] == list(range(1, done.steps + 1))
    assert not done.rebuilt
    assert _bodies(backend) == left
    assert backend.compact().steps == 0


def test_others_send_and_receive_while_a_file_is_compacted(
    backend: Backend, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = _bloat(backend)
    backend.create_queue(QueueSpec("traffic"))
    monkeypatch.setattr(compaction, "STEP_PAGES", 8)
    other = subprocess.Popen([sys.executable, "-c", _TRAFFIC, url], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"

    done = backend.compact()

    assert other.communicate()[0] == "300\n"
    assert other.returncode == 0
    assert done.steps > 0
    # The log can be cut only when nobody reads it at that moment.
    assert backend.compact().after_bytes < 1_500_000
    assert _bodies(backend) == left
    backend.close()
    assert _is_sound(tmp_path / "p.db")


def test_a_compaction_that_is_killed_loses_nothing_and_the_next_one_goes_on(url: str, tmp_path: Path) -> None:
    with postroad.connect(url) as backend:
        left = _bloat(backend)
    victim = subprocess.Popen(
        [sys.executable, "-c", _COMPACT, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    assert [victim.stdout.readline() for _ in range(3)] == ["1\n", "2\n", "3\n"]
    victim.kill()
    victim.communicate()

    assert victim.returncode == -signal.SIGKILL
    assert _is_sound(tmp_path / "p.db")
    with postroad.connect(url) as backend:
        assert _bodies(backend) == left
        assert backend.compact().after_bytes < 1_000_000
        assert _bodies(backend) == left


def _make_as_before(path: Path) -> None:
    """Turn the file into one of an earlier version, which knows no way back from a page to its owner."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "delete")
    connection.pragma("auto_vacuum", 0)
    connection.execute("VACUUM")
    connection.close()


def test_a_file_of_an_earlier_version_is_rebuilt_once(url: str, tmp_path: Path) -> None:
    with postroad.connect(url) as backend:
        backend.create_queue(QueueSpec("others"))
    _make_as_before(tmp_path / "p.db")

    with postroad.connect(url) as backend:
        left = _bloat(backend)
        first = backend.compact()
        left_after = _bodies(backend)
        again = backend.compact()

    assert first.rebuilt
    assert first.after_bytes < 1_000_000
    assert left_after == left
    assert not again.rebuilt


def test_a_large_file_of_an_earlier_version_is_rebuilt_only_when_told(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postroad.connect(url) as backend:
        backend.create_queue(QueueSpec("others"))
    _make_as_before(tmp_path / "p.db")
    monkeypatch.setattr(compaction, "REBUILT_AT_ONCE", 10_000)

    with postroad.connect(url) as backend:
        with pytest.raises(NotSupported, match="written anew") as refused:
            backend.compact()
        done = backend.compact(rebuild=True)

    assert "--rebuild" in str(refused.value.remedy)
    assert done.rebuilt


def test_memory_has_no_file_to_compact() -> None:
    with postroad.connect("memory://") as backend, pytest.raises(NotSupported, match="no file"):
        backend.compact()
