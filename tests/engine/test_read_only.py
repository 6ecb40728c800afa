"""A store that may only be read can be looked at, shows nothing stale, and is left exactly as it was."""

from __future__ import annotations

import ctypes
import hashlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import pytest

import postroad
from postroad import OutgoingMessage, QueueSpec
from postroad.cli.app import run
from postroad.errors import ConfigurationError, NotPermitted, PostroadError, Unavailable
from postroad.operations import doctor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")

KILLED = r"""
import os, sys, postroad
backend = postroad.connect(sys.argv[1])
backend.queue("jobs").send([postroad.OutgoingMessage("in the log")])
os.kill(os.getpid(), 9)
"""
STOPPED = r"""
import os, signal, sys, postroad
with postroad.connect(sys.argv[1]) as backend, backend.transaction():
    backend.queue("jobs").send([postroad.OutgoingMessage("not committed")])
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "data"
    directory.mkdir()
    path = directory / "postroad.db"
    with postroad.connect(f"sqlite:///{path}") as backend:
        queue = backend.create_queue(QueueSpec("jobs", retention=60))
        queue.send([OutgoingMessage("one"), OutgoingMessage("x" * 1_500_000)])
    yield path
    directory.chmod(0o700)


def _forbid(path: Path, *, file: bool = True, directory: bool = True) -> None:
    if file:
        for suffix in ("", "-wal", "-shm"):
            if Path(f"{path}{suffix}").exists():
                Path(f"{path}{suffix}").chmod(0o400)
    if directory:
        path.parent.chmod(0o500)


def _be_nobody_special() -> None:
    """Let modes of files mean something to root too: give all capabilities back."""
    if os.geteuid() == 0:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        assert ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()) == 0


@contextmanager
def _plain_user(work: Callable[..., Any], *arguments: Any) -> Iterator[Callable[[], Any]]:
    """Run the work in a process without privileges; call what is given to wait for what it returned."""
    answer, answers = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _be_nobody_special()
            found = work(*arguments)
        except BaseException as error:
            found = {"failed": f"{type(error).__name__}: {error}"}
        with os.fdopen(answers, "wb") as out:
            out.write(msgspec.json.encode(found))
        os._exit(0)
    os.close(answers)
    with os.fdopen(answer, "rb") as pipe:
        yield lambda: msgspec.json.decode(pipe.read())
    os.waitpid(child, 0)


def _as_plain_user(work: Callable[..., Any], *arguments: Any) -> Any:
    with _plain_user(work, *arguments) as result:
        return result()


def _bodies(url: str) -> list[str]:
    with postroad.connect(url) as backend:
        return [message.body.decode()[:20] for message in backend.queue("jobs").peek()]


def _everything_in(path: Path) -> dict[str, tuple[int, str]]:
    files = [found for found in path.parent.rglob("*") if found.is_file()]
    return {file.name: (file.stat().st_mtime_ns, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files}


FORBIDDEN: dict[str, dict[str, bool]] = {
    "file": {"directory": False},
    "directory": {"file": False},
    "file and directory": {},
}


@pytest.mark.parametrize("forbidden", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_it_can_be_looked_at_and_stays_as_it_was(path: Path, forbidden: dict[str, bool]) -> None:
    _forbid(path, **forbidden)
    before = _everything_in(path)

    def look(url: str) -> dict[str, Any]:
        with postroad.connect(url) as backend:
            queue = backend.queue("jobs")
            return {
                "queues": backend.queues(),
                "bodies": [len(message.body) for message in queue.peek()],
                "visible": queue.stats().visible,
                "retention": backend.queue_spec("jobs").retention,
                "topics": backend.topics(),
                "findings": [finding.code for finding in doctor(backend) if finding.severity == "error"],
            }

    assert _as_plain_user(look, f"sqlite:///{path}") == {
        "queues": ["jobs"],
        "bodies": [3, 1_500_000],
        "visible": 2,
        "retention": 60,
        "topics": [],
        "findings": [],
    }
    assert _everything_in(path) == before


@pytest.mark.usefixtures("logs_as_they_were")
@pytest.mark.parametrize("forbidden", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_commands_show_it(path: Path, forbidden: dict[str, bool]) -> None:
    _forbid(path, **forbidden)
    before = _everything_in(path)

    def look(url: str) -> list[tuple[int, str]]:
        found = []
        for command in (["queue", "list"], ["queue", "peek", "jobs"], ["why", "nothing"], ["doctor"]):
            with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
                code = run([*command, "--url", url])
            found.append((code, out.getvalue() + err.getvalue()))
        return found

    listed, peeked, why, doctored = _as_plain_user(look, f"sqlite:///{path}")

    assert (listed[0], "jobs" in listed[1]) == (0, True), listed
    assert (peeked[0], "1,500,000 B" in peeked[1]) == (0, True), peeked
    assert "nothing is known" in why[1], why
    assert doctored[0] in (0, 1), doctored
    assert "only be read" not in doctored[1]
    assert _everything_in(path) == before


def test_whoever_writes_is_told_that_nothing_was_changed(path: Path) -> None:
    _forbid(path)
    before = _everything_in(path)

    def try_everything(url: str) -> list[str]:
        with postroad.connect(url) as backend:
            queue = backend.queue("jobs")
            attempts: list[Callable[[], object]] = [
                lambda: queue.send([OutgoingMessage("two")]),
                lambda: queue.receive(),
                lambda: queue.receive(wait=1),
                lambda: backend.create_queue(QueueSpec("more")),
                lambda: backend.delete_queue("jobs"),
                lambda: backend.topic("news"),
                lambda: backend.stream("log"),
                lambda: backend.items().put("acme/key", b"value"),
                lambda: backend.agents(),
                lambda: backend.transaction().__enter__(),
                lambda: backend.check(),
            ]
            return [_outcome(attempt) for attempt in attempts]

    assert set(_as_plain_user(try_everything, f"sqlite:///{path}")) == {"NotPermitted, and the remedy"}
    assert _everything_in(path) == before


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        return f"returned {attempt()!r}"
    except NotPermitted as error:
        return "NotPermitted, and the remedy" if "owner of the file" in error.remedy else error.remedy
    except PostroadError as error:
        return repr(error)


@pytest.mark.parametrize("forbidden", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_what_a_killed_writer_left_in_the_log_is_shown(path: Path, forbidden: dict[str, bool]) -> None:
    subprocess.run([sys.executable, "-c", KILLED, f"sqlite:///{path}"], check=False, timeout=120)
    assert Path(f"{path}-wal").stat().st_size
    _forbid(path, **forbidden)

    assert _as_plain_user(_bodies, f"sqlite:///{path}") == ["one", "x" * 20, "in the log"]


def test_a_log_that_cannot_be_read_is_never_left_out_silently(path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, f"sqlite:///{path}"], check=False, timeout=120)
    Path(f"{path}-shm").unlink()
    _forbid(path)
    before = _everything_in(path)

    def refused(url: str) -> tuple[str, str]:
        with pytest.raises(ConfigurationError) as caught:
            postroad.connect(url)
        return str(caught.value), caught.value.remedy

    message, remedy = _as_plain_user(refused, f"sqlite:///{path}")
    assert "its log holds newer messages" in message
    assert "copy the file and its log" in remedy
    assert _everything_in(path) == before


def test_a_file_that_may_not_be_read_or_made_is_refused_with_the_reason(path: Path) -> None:
    path.chmod(0)
    path.parent.chmod(0o500)

    def refused(url: str) -> list[str]:
        reasons = []
        for place in (url, f"{url}.new"):
            with pytest.raises(ConfigurationError) as caught:
                postroad.connect(place)
            reasons.append(str(caught.value).rpartition(": ")[2])
        return reasons

    assert _as_plain_user(refused, f"sqlite:///{path}") == ["this user may not read it", "Permission denied"]


def test_it_shows_what_others_write_meanwhile(path: Path) -> None:
    """The file has no log when it is opened, then one, then none again."""
    url = f"sqlite:///{path}"
    _forbid(path)
    go, goes = os.pipe()
    seen, sees = os.pipe()

    def look(url: str) -> list[int]:
        counts = []
        with postroad.connect(url) as backend:
            queue = backend.queue("jobs")
            for _ in range(4):
                counts.append(queue.stats().visible)
                os.write(sees, b".")
                os.read(go, 1)
            counts.append(len(queue.peek()))
        return counts

    def let_write() -> None:
        path.parent.chmod(0o700)
        path.chmod(0o600)

    with _plain_user(look, url) as result:
        os.read(seen, 1)
        let_write()
        with postroad.connect(url) as backend:
            _forbid(path)
            backend.queue("jobs").send([OutgoingMessage("two")])
            _forbid(path)
            os.write(goes, b".")
            os.read(seen, 1)
            backend.queue("jobs").send([OutgoingMessage("three")])
            os.write(goes, b".")
            os.read(seen, 1)
            let_write()
        with postroad.connect(url) as backend:
            backend.queue("jobs").send([OutgoingMessage("four")])
        _forbid(path)
        os.write(goes, b".")
        os.read(seen, 1)
        os.write(goes, b".")
        assert result() == [2, 3, 4, 5, 5]
    for descriptor in (go, goes, seen, sees):
        os.close(descriptor)


@pytest.fixture
def _a_stopped_writer(path: Path) -> Iterator[None]:
    """Another process stands still in the middle of its transaction."""
    writer = subprocess.Popen([sys.executable, "-c", STOPPED, f"sqlite:///{path}"])
    os.waitpid(writer.pid, os.WUNTRACED)
    yield
    writer.send_signal(signal.SIGCONT)
    assert writer.wait(timeout=120) == 0


@pytest.mark.usefixtures("_a_stopped_writer")
def test_a_file_can_be_opened_and_looked_at_while_a_writer_is_stopped(path: Path) -> None:
    with postroad.connect(f"sqlite:///{path}") as backend:
        queue = backend.queue("jobs")

        assert backend.queues() == ["jobs"]
        assert queue.stats().visible == 2
        assert len(queue.peek()) == 2
        assert [finding for finding in doctor(backend) if finding.severity == "error"] == []
        with pytest.raises(Unavailable, match="locked"):
            queue.send([OutgoingMessage("two")])


def test_opening_a_file_that_exists_writes_nothing(path: Path) -> None:
    url = f"sqlite:///{path}"
    with postroad.connect(url) as first:
        first.queue("jobs").send([OutgoingMessage("two")])
        before = [Path(f"{path}{suffix}").stat() for suffix in ("", "-wal")]

        with postroad.connect(url) as second:
            assert second.queues() == ["jobs"]
            assert second.queue("jobs").stats().visible == 3

        after = [Path(f"{path}{suffix}").stat() for suffix in ("", "-wal")]
    assert [(s.st_size, s.st_mtime_ns) for s in after] == [(s.st_size, s.st_mtime_ns) for s in before]
