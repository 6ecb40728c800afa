"""Other SQLite programs read, back up and vacuum the file while Postroad works on it, and nothing is lost."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import postroad
from postroad import QueueSpec

pytestmark = pytest.mark.slow

SENDER = r"""
import sys, postroad
backend = postroad.connect(sys.argv[1])
queue = backend.queue("jobs")
n = 0
while True:
    (result,) = queue.send([postroad.OutgoingMessage(f"{sys.argv[2]} {n}")])
    assert result.ok
    print(f"{sys.argv[2]} {n}\n", end="", flush=True)
    n += 1
"""
READ = """
import sqlite3, sys
file = sqlite3.connect(sys.argv[1])
print(file.execute("SELECT count(*) FROM message").fetchone()[0])
file.close()
"""
BACK_UP = """
import sqlite3, sys
file, copy = sqlite3.connect(sys.argv[1]), sqlite3.connect(sys.argv[2])
file.backup(copy)
file.close()
print(copy.execute("SELECT count(*) FROM message").fetchone()[0])
"""
VACUUM = """
import sqlite3, sys
file = sqlite3.connect(sys.argv[1], timeout=60)
file.execute("VACUUM INTO ?", (sys.argv[2],))
file.close()
print(sqlite3.connect(sys.argv[2]).execute("SELECT count(*) FROM message").fetchone()[0])
"""
_SHELL = {
    READ: [".timeout 60000", "SELECT count(*) FROM message;"],
    BACK_UP: [".timeout 60000", ".backup copy.db", "SELECT count(*) FROM message;"],
    VACUUM: [".timeout 60000", "VACUUM INTO 'copy.db';", "SELECT count(*) FROM message;"],
}


def _visit(visitor: str, what: str, path: Path) -> int:
    """How many messages the visitor saw."""
    copy = path.with_name("copy.db")
    copy.unlink(missing_ok=True)
    command = (
        [sys.executable, "-c", what, str(path), str(copy)]
        if visitor == "python"
        else ["sqlite3", str(path), *_SHELL[what]]
    )
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=120, check=True)
    return int(done.stdout)


def _start(url: str, name: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SENDER, url, str(name)], stdout=subprocess.PIPE, text=True)


def _drain(url: str) -> list[str]:
    found: list[str] = []
    with postroad.connect(url) as backend:
        queue = backend.queue("jobs")
        while deliveries := queue.receive(max_messages=100, visibility=600):
            found += [delivery.body.decode() for delivery in deliveries]
            queue.ack(deliveries)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "postroad.db"
    with postroad.connect(f"sqlite:///{path}") as backend:
        backend.create_queue(QueueSpec("jobs"))
    return path


@pytest.mark.parametrize(
    "visitor",
    [
        "python",
        pytest.param("shell", marks=pytest.mark.skipif(not shutil.which("sqlite3"), reason="no sqlite3 program")),
    ],
)
@pytest.mark.parametrize("what", [READ, BACK_UP, VACUUM], ids=["reads", "backs up", "vacuums into"])
def test_nothing_acknowledged_is_lost_when_senders_are_killed_behind_a_visitor(
    path: Path, what: str, visitor: str
) -> None:
    url, acknowledged = f"sqlite:///{path}", list[str]()
    for round_ in range(3):
        sender = _start(url, round_)
        assert sender.stdout is not None
        acknowledged += [sender.stdout.readline().strip() for _ in range(20)]
        seen = _visit(visitor, what, path)
        assert seen >= len(acknowledged)
        acknowledged += [sender.stdout.readline().strip() for _ in range(20)]
        sender.kill()
        acknowledged += [line for line in sender.communicate()[0].splitlines() if line]

    found = _drain(url)

    assert sorted(set(acknowledged) - set(found)) == []
    assert len(found) == len(set(found))


def test_nothing_is_lost_in_a_storm_of_senders_and_visitors(path: Path) -> None:
    url, acknowledged = f"sqlite:///{path}", list[str]()
    for round_ in range(2):
        senders = [_start(url, f"{round_}-{n}") for n in range(3)]
        for sender in senders:
            assert sender.stdout is not None
            acknowledged += [sender.stdout.readline().strip() for _ in range(5)]
        for what in (READ, VACUUM, BACK_UP, READ):
            assert _visit("python", what, path) >= len(acknowledged)
        for sender in senders:
            sender.send_signal(signal.SIGKILL)
            acknowledged += [line for line in sender.communicate()[0].splitlines() if line]

    found = _drain(url)

    assert sorted(set(acknowledged) - set(found)) == []
    assert len(found) == len(set(found))


def test_a_visitor_cannot_take_the_log_away_from_an_open_backend(path: Path) -> None:
    with postroad.connect(f"sqlite:///{path}") as backend:
        queue = backend.queue("jobs")
        queue.send([postroad.OutgoingMessage("one")])
        log = Path(f"{path}-wal").stat().st_ino

        assert _visit("python", READ, path) == 1

        assert Path(f"{path}-wal").stat().st_ino == log
        queue.send([postroad.OutgoingMessage("two")])
        copy = path.with_name("as-after-a-kill")
        copy.mkdir()
        for suffix in ("", "-wal"):
            # Read by another process: closing them here would drop the locks.
            subprocess.run(["cp", f"{path}{suffix}", f"{copy / path.name}{suffix}"], check=True)
    assert _drain(f"sqlite:///{copy / path.name}") == ["one", "two"]


def test_a_log_in_another_mode_is_refused_to_a_visitor_while_the_file_is_open(path: Path) -> None:
    change = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('PRAGMA journal_mode=DELETE')"
    with postroad.connect(f"sqlite:///{path}"):
        refused = subprocess.run(
            [sys.executable, "-c", change, str(path)], capture_output=True, text=True, timeout=120, check=False
        )

    assert "locked" in refused.stderr
