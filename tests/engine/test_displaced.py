"""The file, its log, its shared memory or its directory is removed or replaced while a backend has it open."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.waiting import eventually

import postroad
from postroad import Backend, OutgoingMessage, QueueSpec
from postroad.engine.engine import Engine
from postroad.errors import ConfigurationError, StorageDamaged

SEND = r"""
import sys, postroad
with postroad.connect(sys.argv[1]) as backend:
    queue = backend.queue("jobs")
    assert all(queue.send([postroad.OutgoingMessage(f"other {n}")])[0].ok for n in range(30))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    return directory / "postroad.db"


@pytest.fixture
def backend(path: Path) -> Iterator[Backend]:
    with postroad.connect(f"sqlite:///{path}") as backend:
        backend.create_queue(QueueSpec("jobs")).send([OutgoingMessage("before")])
        yield backend


def _removed(suffix: str) -> Callable[[Path], None]:
    return lambda path: Path(f"{path}{suffix}").unlink()


def _replaced(suffix: str) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        file = Path(f"{path}{suffix}")
        copy = file.with_name("copy")
        shutil.copyfile(file, copy)
        copy.replace(file)

    return replace


def _directory_removed(path: Path) -> None:
    shutil.rmtree(path.parent)


def _directory_moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def _directory_replaced(path: Path) -> None:
    copy = path.parent.with_name("copy")
    shutil.copytree(path.parent, copy)
    _directory_moved(path)
    copy.rename(path.parent)


def _parts(change: Callable[[str], Callable[[Path], None]]) -> list[Callable[[Path], None]]:
    return [change(suffix) for suffix in ("", "-wal", "-shm")]


@pytest.mark.parametrize(
    "displace",
    [*_parts(_removed), *_parts(_replaced), _directory_removed, _directory_moved, _directory_replaced],
    ids=[
        "file removed",
        "log removed",
        "memory removed",
        "file replaced",
        "log replaced",
        "memory replaced",
        "directory removed",
        "directory moved",
        "directory replaced",
    ],
)
def test_the_next_durable_write_notices_and_nothing_is_acknowledged_any_more(
    path: Path, backend: Backend, displace: Callable[[Path], None]
) -> None:
    queue = backend.queue("jobs")

    displace(path)

    for attempt in ("first", "second"):
        with pytest.raises(StorageDamaged, match=r"postroad\.db.* removed or replaced"):
            queue.send([OutgoingMessage(attempt)])
    with pytest.raises(StorageDamaged):
        queue.receive()
    with pytest.raises(StorageDamaged):
        queue.peek()


def test_a_receiver_that_only_waits_notices_too(path: Path, backend: Backend) -> None:
    queue = backend.queue("jobs")
    queue.ack(queue.receive())

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.receive, wait=20)
        Path(f"{path}-wal").unlink()

        assert isinstance(waiting.exception(timeout=120), StorageDamaged)


def test_a_long_log_that_was_removed_is_not_copied_into_the_file(path: Path) -> None:
    engine = Engine(path)
    engine.write(lambda tx: tx.connection.execute("CREATE TABLE number (n)"))
    Path(f"{path}-wal").unlink()
    before = path.read_bytes()

    engine._checkpoints._due_at = 0
    engine.write(lambda tx: tx.connection.execute("INSERT INTO number VALUES (1)"), durable=False)

    with pytest.raises(StorageDamaged):
        engine.write(lambda tx: None, durable=False)
    engine.close()
    assert path.read_bytes() == before


def test_closing_beside_a_removed_log_leaves_the_work_of_another_process_alone(path: Path, backend: Backend) -> None:
    url = f"sqlite:///{path}"
    for suffix in ("-wal", "-shm"):
        shutil.copyfile(f"{path}{suffix}", path.with_name(f"kept{suffix}"))
        Path(f"{path}{suffix}").unlink()
        path.with_name(f"kept{suffix}").rename(f"{path}{suffix}")
    killed_at_its_end = SEND + "    import os; os.kill(os.getpid(), 9)\n"
    subprocess.run([sys.executable, "-c", killed_at_its_end, url], check=False, timeout=120)

    with pytest.raises(StorageDamaged):
        backend.queue("jobs").send([OutgoingMessage("mine")])
    backend.close()

    with postroad.connect(url) as after:
        bodies = [message.body.decode() for message in after.queue("jobs").peek(limit=100)]
    assert bodies == ["before", *(f"other {n}" for n in range(30))]


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize("displace", [_removed(""), _replaced(""), _directory_removed])
def test_after_a_fork_no_other_file_is_opened_in_its_place(
    path: Path, backend: Backend, displace: Callable[[Path], None]
) -> None:
    queue = backend.queue("jobs")
    displace(path)
    left = sorted(path.parent.glob("*"))

    _fork()

    with pytest.raises(StorageDamaged):
        queue.send([OutgoingMessage("never")])
    assert sorted(path.parent.glob("*")) == left


def test_a_file_that_is_replaced_while_the_process_forks_is_not_taken_for_the_old_one(path: Path) -> None:
    engine = Engine(path)
    engine.before_fork()
    _replaced("")(path)
    engine.after_fork_in_parent()

    with pytest.raises(StorageDamaged):
        engine.write(lambda tx: None)
    engine.close()


def test_ctrl_c_while_the_file_is_opened_again_after_a_fork_lets_nobody_wait_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def write() -> None:
        engine.write(lambda tx: None)

    def write_in_a_block() -> None:
        with engine.transaction():
            engine.write(lambda tx: None)

    def refuse(write: Callable[[], None]) -> None:
        with pytest.raises(ConfigurationError, match="could not be opened again after a fork"):
            write()
        refused.append(write)

    refused: list[Callable[[], None]] = []
    engine = Engine(path)
    engine.before_fork()
    waiting = [threading.Thread(target=refuse, args=(each,), daemon=True) for each in (write, write_in_a_block)]
    for thread in waiting:
        thread.start()
    eventually(lambda: len(engine._turns._waiting) == 2)
    monkeypatch.setattr(engine, "_open", interrupt)
    engine.after_fork_in_parent()
    for thread in waiting:
        thread.join(20)

    assert set(refused) == {write, write_in_a_block}
    refuse(write)


def test_a_log_that_is_removed_right_after_another_change_beside_it_is_missed(backend: Backend, path: Path) -> None:
    queue = backend.queue("jobs")
    (path.parent / "other").touch()
    queue.send([OutgoingMessage("looked at")])

    Path(f"{path}-wal").unlink()

    with pytest.raises(StorageDamaged, match="was removed or replaced"):
        queue.send([OutgoingMessage("lost")])


def test_a_log_that_is_removed_is_missed_where_directories_keep_whole_seconds(backend: Backend, path: Path) -> None:
    queue = backend.queue("jobs")
    second = time.time_ns() // 1_000_000_000 * 1_000_000_000
    os.utime(path.parent, ns=(second, second))
    queue.send([OutgoingMessage("looked at")])

    Path(f"{path}-wal").unlink()
    os.utime(path.parent, ns=(second, second))

    with pytest.raises(StorageDamaged, match="was removed or replaced"):
        queue.send([OutgoingMessage("lost")])


def test_files_are_looked_at_only_when_their_directory_changes(
    backend: Backend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = backend.queue("jobs")
    looks: list[str] = []
    look = os.stat
    eventually(lambda: time.time_ns() - path.parent.stat().st_mtime_ns > 30_000_000)
    queue.send([OutgoingMessage("looked at")])

    def counted(place: object, *args: object, **options: object) -> os.stat_result:
        looks.append(str(place))
        return look(place, *args, **options)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr("postroad.engine.disk.os.stat", counted)
    for _ in range(20):
        queue.send([OutgoingMessage("quick")])

    assert looks.count(f"{path}-wal") == 0
    assert looks.count(str(path.parent)) == 20
