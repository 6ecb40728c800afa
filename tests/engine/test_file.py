"""The embedded file: what it refuses, how it is kept, what it survives."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import postroad
from postroad import OutgoingMessage, QueueSpec
from postroad.engine.engine import Engine
from postroad.errors import ConfigurationError, SchemaMismatch, StorageDamaged, StorageFull
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing.clock import FakeClock


def _open(path: Path, clock: FakeClock) -> tuple[Engine, SQLiteQueues]:
    engine = Engine(path, clock=clock)
    return engine, SQLiteQueues(engine)


def test_a_text_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary, today nothing was lost")

    with pytest.raises(ConfigurationError, match=r"notes\.txt"):
        postroad.connect(f"sqlite:///{path}")

    assert path.read_text() == "dear diary, today nothing was lost"
    assert list(tmp_path.iterdir()) == [path]


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (n)")
    other.close()
    before = path.read_bytes()

    with pytest.raises(ConfigurationError, match="another program"):
        postroad.connect(f"sqlite:///{path}")

    assert path.read_bytes() == before


@pytest.mark.parametrize("place", ["", "missing/postroad.db"])
def test_a_directory_or_a_missing_one_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigurationError):
        postroad.connect(f"sqlite:///{tmp_path / place}")

    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"there is no directory {tmp_path / 'missing'}"):
        postroad.connect(f"sqlite:///{tmp_path / 'missing' / 'postroad.db'}")


CONNECT = """
import sys, postroad
try:
    postroad.connect(sys.argv[1])
except postroad.errors.ConfigurationError as error:
    print(error, error.field)
"""


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, _make_socket, lambda path: path.symlink_to("/dev/null")])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "pipe.db")

    # In a process of its own, which can be ended if the pipe holds it.
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, f"sqlite:///{tmp_path / 'pipe.db'}"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )

    assert "is a pipe, a socket or a device, not a file url" in done.stdout


SHORT_OF_DESCRIPTORS = """
import os, resource, sys, postroad, postroad.errors
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
postroad.connect(sys.argv[1]).close()
url = sys.argv[2]
# Whatever is opened next gets the lowest free number.
free = os.dup(0)
os.close(free)
before, outcomes = len(os.listdir("/proc/self/fd")), []
for more in range(24):
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, hard))
    try:
        with postroad.connect(url) as backend:
            queue = backend.create_queue(postroad.QueueSpec("jobs"))
            queue.send([postroad.OutgoingMessage("one")])
            queue.ack(queue.receive(wait=5))
            queue.receive(wait=0.01)
        outcomes.append("ok")
    except postroad.errors.Unavailable as error:
        outcomes.append("refused" if "ulimit" in error.remedy or "blob" in str(error) else repr(error))
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
print(*outcomes)
print(len(os.listdir("/proc/self/fd")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system shows no descriptors")
def test_a_process_without_a_free_descriptor_is_told_so_and_keeps_none(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / name}" for name in ("first.db", "postroad.db")]

    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_DESCRIPTORS, *urls], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.stderr == ""
    outcomes, left = done.stdout.splitlines()
    assert outcomes.split() == sorted(outcomes.split(), key="refused ok".index)
    assert {"ok", "refused"} == set(outcomes.split())
    assert left == "0"


def test_an_empty_file_that_others_may_read_becomes_private(tmp_path: Path) -> None:
    path = tmp_path / "postroad.db"
    path.touch(mode=0o644)

    with postroad.connect(f"sqlite:///{path}"):
        modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.glob("postroad.db*") if each.is_file()}

    assert set(modes.values()) == {0o600}, modes


def test_a_file_of_a_newer_postroad_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "postroad.db"
    engine, _ = _open(path, FakeClock())
    engine.write(lambda tx: tx.connection.execute("UPDATE part SET version = 99 WHERE name = 'queues'"))
    engine.close()

    with pytest.raises(SchemaMismatch, match="99"):
        postroad.connect(f"sqlite:///{path}")


def test_sec04_the_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with postroad.connect(f"sqlite:///{tmp_path / 'postroad.db'}") as backend:
            queue = backend.create_queue(QueueSpec("jobs"))
            queue.send([OutgoingMessage("x" * 2_000_000)])
            queue.receive(wait=0.01)
            queue.receive(wait=0.01)
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
            kinds = {path.name: path.is_dir() for path in tmp_path.rglob("*")}
    finally:
        os.umask(before)

    sockets = {path for path in modes if path.startswith(str(os.getpid()))}
    assert {mode for name, mode in modes.items() if kinds[name]} == {0o700}
    assert {mode for name, mode in modes.items() if not kinds[name] and name not in sockets} == {0o600}


def test_after_a_reboot_leases_are_over_and_delays_go_by_the_wall_clock(tmp_path: Path) -> None:
    clock = FakeClock()
    engine, queues = _open(tmp_path / "postroad.db", clock)
    queue = queues.create_queue(QueueSpec("jobs", visibility=600))
    queue.send([OutgoingMessage("leased")])
    queue.receive()
    queue.send([OutgoingMessage("delayed", delay=300)])
    engine.close()

    clock.advance(100)
    clock.reboot(seconds=60)
    engine, queues = _open(tmp_path / "postroad.db", clock)
    queue = queues.queue("jobs")
    at_once = queue.receive()
    clock.advance(139)
    early = queue.receive()
    clock.advance(2)
    due = queue.receive()
    engine.close()

    assert [(delivery.body, delivery.receive_count) for delivery in at_once] == [(b"leased", 2)]
    assert early == []
    assert [delivery.body for delivery in due] == [b"delayed"]


def test_after_a_reboot_fifo_groups_are_free_in_order_and_duplicates_are_still_known(tmp_path: Path) -> None:
    clock = FakeClock()
    engine, queues = _open(tmp_path / "postroad.db", clock)
    queue = queues.create_queue(QueueSpec("jobs.fifo", fifo=True, visibility=600))
    queue.send([OutgoingMessage(body, group="g", dedup_id=body) for body in ("a", "b", "c")])
    queue.receive(max_messages=2)
    engine.close()

    clock.reboot()
    engine, queues = _open(tmp_path / "postroad.db", clock)
    queue = queues.queue("jobs.fifo")
    (duplicate,) = queue.send([OutgoingMessage("a", group="g", dedup_id="a")])
    received = queue.receive()
    engine.close()

    assert duplicate.message_id == received[0].message_id
    assert [(delivery.body, delivery.receive_count) for delivery in received] == [(b"a", 2), (b"b", 2), (b"c", 1)]


@pytest.mark.parametrize("step", [timedelta(hours=-1), timedelta(hours=1), timedelta(milliseconds=-200)])
def test_a_step_of_the_wall_clock_neither_ends_a_lease_nor_repeats_a_sequence(tmp_path: Path, step: timedelta) -> None:
    clock = FakeClock()
    engine, queues = _open(tmp_path / "postroad.db", clock)
    queue = queues.create_queue(QueueSpec("jobs", visibility=30))
    (first,) = queue.send([OutgoingMessage("one")])
    (held,) = queue.receive()

    clock.set(clock.now() + step)
    (second,) = queue.send([OutgoingMessage("two", delay=10)])
    during = queue.receive()
    clock.advance(31)
    after = queue.receive()
    engine.close()

    assert during == []
    assert {delivery.body for delivery in after} == {b"one", b"two"}
    assert first.sequence is not None
    assert second.sequence is not None
    assert second.sequence > first.sequence
    assert all(delivery.sent_at >= held.sent_at for delivery in after)


def test_a_full_disk_refuses_the_send_keeps_what_was_there_and_goes_on(tmp_path: Path) -> None:
    engine, queues = _open(tmp_path / "postroad.db", FakeClock())
    queue = queues.create_queue(QueueSpec("jobs"))
    queue.send([OutgoingMessage("before")])
    pages = engine.write(lambda tx: int(tx.connection.pragma("page_count")))
    engine._writer.pragma("max_page_count", pages)

    with pytest.raises(StorageFull):
        queue.send([OutgoingMessage("x" * 500_000)])
    (held,) = queue.receive()
    acked = queue.ack([held])
    engine._writer.pragma("max_page_count", 1_000_000)
    queue.send([OutgoingMessage("after")])

    assert held.body == b"before"
    assert acked[0].ok
    assert [delivery.body for delivery in queue.receive()] == [b"after"]
    engine.close()


def test_two_backends_of_one_process_share_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'postroad.db'}"
    with postroad.connect(url) as one, postroad.connect(url) as other:
        one.create_queue(QueueSpec("jobs")).send([OutgoingMessage("hello")])

        received = other.queue("jobs").receive(wait=5)

    assert [delivery.body for delivery in received] == [b"hello"]


def test_a_path_too_long_for_a_socket_still_wakes_receivers(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    url = f"sqlite:///{deep / 'postroad.db'}"
    with postroad.connect(url) as one, postroad.connect(url) as other:
        queue = one.create_queue(QueueSpec("jobs"))
        assert other.queue("jobs").receive(wait=0.05) == []
        queue.send([OutgoingMessage("hello")])

        received = other.queue("jobs").receive(wait=5)

    assert [delivery.body for delivery in received] == [b"hello"]


def test_a_file_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "postroad.db"
    postroad.connect(f"sqlite:///{path}").close()
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM file")
    connection.commit()
    connection.close()
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - its own descriptor comes and goes

    with pytest.raises(StorageDamaged):
        Engine(path)

    assert len(os.listdir("/proc/self/fd")) == len(before)  # noqa: PTH208
