"""SQLite's locks stay where SQLite put them, however the file is opened, looked at and closed around them."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import postroad
from postroad import Backend, OutgoingMessage, QueueSpec
from postroad.cli.app import run
from postroad.errors import ConfigurationError
from postroad.operations import doctor
from postroad.outbox import Outbox

pytestmark = [
    pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system shows no locks"),
    pytest.mark.usefixtures("logs_as_they_were"),
]
_LINE = re.compile(r"\d+: POSIX +\S+ +(READ|WRITE) (\d+) [0-9a-f]+:[0-9a-f]+:(\d+) (\d+) ")


def _locks(path: Path) -> set[tuple[str, int]]:
    """The locks of this process on the file: their kind, and the byte at which each begins."""
    found = _LINE.findall(Path("/proc/locks").read_text())
    inode = path.stat().st_ino
    return {(kind, int(start)) for kind, pid, ino, start in found if (int(pid), int(ino)) == (os.getpid(), inode)}


def _is_held(path: Path) -> bool:
    """Whether this process holds what tells other SQLite programs that it has the file open, on both files."""
    return _locks(path) >= {("READ", 0x40000002)} and _locks(Path(f"{path}-shm")) >= {("READ", 128)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "postroad.db"


@pytest.fixture
def backend(path: Path) -> Iterator[Backend]:
    with postroad.connect(f"sqlite:///{path}") as backend:
        backend.create_queue(QueueSpec("jobs")).send([OutgoingMessage("one")])
        yield backend


def test_a_new_file_is_locked_as_soon_as_it_is_open_and_an_old_one_too(path: Path) -> None:
    with postroad.connect(f"sqlite:///{path}"):
        assert _is_held(path)
    with postroad.connect(f"sqlite:///{path}"):
        assert _is_held(path)
    assert _locks(path) == set()


def _opens_it_again(path: Path) -> None:
    postroad.connect(f"sqlite:///{path}").close()


def _opens_it_through_a_link(path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    postroad.connect(f"sqlite:///{link}").close()


def _opens_it_in_many_threads(path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: _opens_it_again(path), range(8)))


def _forks(_: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _forks_and_opens_it_in_the_child(path: Path) -> None:
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException), postroad.connect(f"sqlite:///{path}") as own:
            own.queue("jobs").send([OutgoingMessage("child")])
            os._exit(0 if _is_held(path) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _sees_a_doctor(path: Path) -> None:
    with postroad.connect(f"sqlite:///{path}") as other:
        doctor(other)


def _is_looked_at_by_commands(path: Path) -> None:
    url = f"sqlite:///{path}"
    for command in (["queue", "list"], ["queue", "peek", "jobs"], ["doctor"], ["health"], ["config", "show"]):
        run([*command, "--url", url])


def _is_taken_for_an_outbox(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="embedded engine"):
        Outbox.open(f"sqlite:///{path}").init()


def _is_taken_for_an_outbox_by_another_name(path: Path) -> None:
    name = path.with_name("other-name.db")
    os.link(path, name)
    with pytest.raises(ConfigurationError, match="embedded engine"):
        Outbox.open(f"sqlite:///{name}").init()


@pytest.mark.parametrize(
    "happens",
    [
        _opens_it_again,
        _opens_it_through_a_link,
        _opens_it_in_many_threads,
        _forks,
        _forks_and_opens_it_in_the_child,
        _sees_a_doctor,
        _is_looked_at_by_commands,
        _is_taken_for_an_outbox,
        _is_taken_for_an_outbox_by_another_name,
    ],
)
def test_an_open_backend_keeps_its_locks_when_its_process(
    happens: Callable[[Path], None], path: Path, backend: Backend
) -> None:
    assert _is_held(path)

    happens(path)

    assert _is_held(path)
    assert backend.queue("jobs").send([OutgoingMessage("two")])[0].ok


def test_threads_that_open_a_new_file_at_once_all_hold_it(path: Path) -> None:
    for round_ in range(10):
        new = path.with_name(f"{round_}.db")
        with ThreadPoolExecutor(4) as threads, contextlib.ExitStack() as opened:
            url = f"sqlite:///{new}"
            for backend in list(threads.map(lambda _, url=url: postroad.connect(url), range(4))):
                opened.enter_context(backend)

            assert _is_held(new)


def test_the_last_of_two_backends_holds_the_file_when_the_other_is_closed(path: Path, backend: Backend) -> None:
    other = postroad.connect(f"sqlite:///{path}")
    backend.close()

    assert _is_held(path)
    other.close()
    assert _locks(path) == set()


def test_memory_keeps_its_file_when_a_forked_child_ends_as_a_program_does() -> None:
    with postroad.connect("memory://") as backend:
        agents = backend.agents()
        agents.register("before")
        child = os.fork()
        if child == 0:
            import atexit

            # What a program runs at its end.
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(child, 0)

        agents.register("after")

        assert agents.get("before").agent_id == "before"


def test_python_has_another_library_than_the_engine() -> None:
    """The premise of the tests with a visitor: one that knows nothing of Postroad, and has the old bug."""
    import apsw

    assert sqlite3.sqlite_version != apsw.sqlite_lib_version()
