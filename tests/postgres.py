"""A PostgreSQL for tests: the one at $PG_DSN, else one of its own for each test process."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

_START_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1
_UNPRIVILEGED = "nobody"
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "1s",
}


@contextmanager
def postgres_server(directory: Path, **settings: str) -> Iterator[str]:
    """A PostgreSQL of one's own below the directory; the DSN of its database `postgres`, as superuser."""
    programs = _programs()
    _open_the_way_to(directory)
    data = directory / "pg"
    data.mkdir(mode=0o700)
    _give_away(data)
    as_user = _unprivileged()
    initdb = [str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"]
    initdb += ["--no-locale", "-c", "log_min_messages=fatal"]
    subprocess.run(initdb, check=True, capture_output=True, cwd="/", user=as_user)
    options = [f"-c{name}={value}" for name, value in (_SETTINGS | settings).items()]
    command = [str(programs / "postgres"), "-D", str(data), "-k", str(data), *options]
    process = subprocess.Popen(
        command, cwd="/", user=as_user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=_end_with_us
    )
    try:
        dsn = f"postgresql://postgres@/postgres?host={data}"
        _wait_for(dsn, process)
        yield dsn
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait()


@contextmanager
def fresh_database(server: str) -> Iterator[str]:
    """A database of the test's own on the server; its DSN."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        yield _with_database(server, name)
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The DSN of a server on which databases may be made."""
    if (dsn := os.environ.get("PG_DSN")) is not None:
        yield dsn
        return
    with postgres_server(tmp_path_factory.mktemp("pg")) as dsn:
        yield dsn


@pytest.fixture
def postgres_dsn(postgres: str) -> Iterator[str]:
    """The DSN of an empty database of the test's own."""
    with fresh_database(postgres) as dsn:
        yield dsn


def _with_database(server: str, name: str) -> str:
    # A URL stays a URL: the schemes of DSNs are part of what is tested.
    head, question, options = server.partition("?")
    if "://" not in head:
        return make_conninfo(server, dbname=name)
    scheme, _, rest = head.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/{name}{question}{options}"


def _programs() -> Path:
    found = importlib.util.find_spec("pgserver")
    folder = None if found is None or found.origin is None else Path(found.origin).parent / "pginstall" / "bin"
    if folder is None or not (folder / "postgres").exists():
        _missing("absent: PostgreSQL is not installed; `make setup` installs one, or set PG_DSN")
        raise AssertionError
    return folder


def _missing(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _unprivileged() -> int | None:
    """PostgreSQL refuses to run as root."""
    return pwd.getpwnam(_UNPRIVILEGED).pw_uid if os.geteuid() == 0 else None


def _give_away(data: Path) -> None:
    if (owner := _unprivileged()) is not None:
        os.chown(data, owner, -1)


def _open_the_way_to(directory: Path) -> None:
    if _unprivileged() is None:
        return
    for folder in (directory, *directory.parents):
        if (mode := folder.stat().st_mode) & 0o001 == 0:
            folder.chmod(mode | 0o011)


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
