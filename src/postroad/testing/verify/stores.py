"""The stores of a run: what each gives the processes to connect to, and which nemeses it has."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from postroad.errors import ConfigurationError
from postroad.testing.proxy import FaultProxy
from postroad.testing.verify.history import History
from postroad.testing.verify.nemeses import FileNemeses, Nemeses, RunFailed
from postroad.testing.verify.plan import Action, Plan
from postroad.testing.verify.scenario import Facts, Place
from postroad.testing.verify.servers import Server, ask_postgres, emulator, postgres_server
from postroad.wiring import parse_url

if TYPE_CHECKING:
    from postroad.testing.verify.run import Options

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
    """Return the visibility of this run, in seconds."""
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
            nemeses = PostgresNemeses(options.dsn, work, history)
            dsn = nemeses.dsn
        elif options.store == "aws":
            nemeses = AWSNemeses(options.url, work, history, plan)
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


class PostgresNemeses(Nemeses):
    """Restarts PostgreSQL with the mode `immediate`; at a server that is not its own, it ends all connections instead.

    Args:
        dsn: The database of the user, if there is one.
        work: Where a server of its own has its files.
        history: The history of the supervisor.
    """

    def __init__(self, dsn: str | None, work: Path, history: History) -> None:
        self._history = history
        self._server: Server | None = None
        if dsn is None:
            self._server, self.dsn = postgres_server(work)
        else:
            self.dsn = dsn
            ask_postgres(dsn, "SELECT 1")

    def begin(self, action: Action, processes: Iterable[int]) -> None:
        """Restart the server."""
        if action.do != "server":
            return
        self._history.write("restart", target="postgres", detail="immediate" if self._server else _END_OTHERS)
        if self._server is not None:
            self._server.restart()
        else:
            ask_postgres(self.dsn, _END_OTHERS)

    def close(self) -> None:
        """Stop the server, if it is its own."""
        if self._server is not None:
            self._server.stop()


class AWSNemeses(Nemeses):
    """The fault proxy before an emulator, which follows the rules of AWS more closely than the emulator does.

    Args:
        url: The URL of the user, with its endpoint; None starts an emulator.
        work: Where an emulator of its own has its files.
        history: The history of the supervisor.
        plan: How many calls the proxy breaks.
    """

    def __init__(self, url: str | None, work: Path, history: History, plan: Plan) -> None:
        self._history, self._asked = history, plan.proxy_faults
        self._server: Server | None = None
        if url is None:
            self._server, endpoint = emulator(work)
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
        """Break no more calls."""
        self.look()
        self._proxy.clear()

    def close(self) -> None:
        """Stop the proxy, and the emulator if it is its own."""
        self._proxy.__exit__()
        if self._server is not None:
            self._server.stop()
