"""What a scenario is, and what its processes have: their place, a history each, and a board for all."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from postroad.wiring import Backend

SCENARIOS = ("queue", "topic", "bus", "outbox", "tasks", "jobs", "agents", "stream")
START_AGAIN = 75
"""The exit code of a process that found its store away, and that a service manager would start again."""
_LOOK_SECONDS = 0.05
StoreName = Literal["sqlite", "postgres", "aws"]
Outcome = Literal["ok", "fail", "unknown"]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run works: its directories, the backend's URL, and the database that holds the effects."""

    store: StoreName
    directory: str
    """What the run needs while it works: the board, what processes print, and the files of the store."""
    report: str
    """Where the history, `run.json` and the report are written."""
    url: str
    dsn: str
    visibility: float
    """The visibility of the scenario's queues; longer in a run without faults, where nothing may be delivered twice."""
    faults: bool
    """Whether anything is broken on purpose; without faults no handler fails either."""

    def backend(self) -> Backend:
        from postroad.wiring import connect

        return connect(self.url)

    @property
    def history(self) -> Path:
        return Path(self.report) / "history"


class History:
    """What one process did, in a file of its own in the directory of all history files.

    A line is one write, and is with the kernel before the next operation begins, so a kill loses none.
    """

    def __init__(self, directory: Path, process: str) -> None:
        self._process = process
        self._file = os.open(directory / f"{process}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, op: str, outcome: Outcome = "ok", **fields: Any) -> None:
        line = {"t": time.monotonic(), "p": self._process, "op": op, "outcome": outcome, **fields}
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    def check(self, invariant: str, ok: bool, detail: str) -> None:
        """Write what no client can see."""
        self.write("check", invariant=invariant, ok=ok, detail=detail)

    def close(self) -> None:
        os.close(self._file)


class State(IntEnum):
    """What a process announces about itself."""

    STARTING = 0
    WORKING = 1
    HOLDING = 2
    """It is at work and holds a delivery."""


class Board:
    """Shared memory with a row for each process, which outlives it: one that is started again goes on counting.

    Attributes:
        states: The state that each process announced last.
        done: How many messages each has sent.
        allowed: How many messages the supervisor lets each send by now.
    """

    def __init__(self, path: Path, rows: int) -> None:
        size = (1 + 3 * rows) * 4
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._words = memoryview(mmap.mmap(descriptor, size)).cast("I")
        finally:
            os.close(descriptor)
        self.states, self.done, self.allowed = (self._words[1 + n * rows : 1 + (n + 1) * rows] for n in range(3))

    @property
    def stopping(self) -> bool:
        """Whether every process must end."""
        return self._words[0] != 0

    def stop(self) -> None:
        self._words[0] = 1


class ChildConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The line of JSON that a client process reads from its stdin when it starts."""

    scenario: str
    role: str
    index: int
    process: str
    """The name in the history: role, index and how often it was started."""
    row: int
    rows: int
    quota: int
    seed: str
    place: Place
    mutant: str | None = None
    load: tuple[str, ...] = ()


class Client:
    """What a client process has to do its part: its place, its history, its random numbers and its announcements."""

    def __init__(self, config: ChildConfig) -> None:
        self.config = config
        self.place = config.place
        self.name = config.process
        self.random = Random(config.seed)  # a repeatable workload, not a secret
        history = History(config.place.history, config.process)
        self.record, self.check = history.write, history.check
        self._board = Board(Path(config.place.directory) / "board", config.rows)
        self._told_to_end = False

    def at_work(self) -> None:
        """Announce that everything is imported and open, so that a kill counts."""
        self.announce(holding=False)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Announce during the block that this process holds a delivery."""
        self.announce(holding=True)
        try:
            yield
        finally:
            self.announce(holding=False)

    def announce(self, *, holding: bool) -> None:
        """Announce whether this process holds a delivery from now on."""
        self._board.states[self.config.row] = State.HOLDING if holding else State.WORKING

    @property
    def stopping(self) -> bool:
        """Whether this process must finish what it holds and end."""
        return self._told_to_end or self._board.stopping

    def end(self) -> None:
        self._told_to_end = True

    def stop_event(self) -> threading.Event:
        stop = threading.Event()

        def watch() -> None:
            while not self.stopping:
                time.sleep(_LOOK_SECONDS)
            stop.set()

        threading.Thread(target=watch, daemon=True).start()
        return stop

    def may_send(self) -> bool:
        return self._board.done[self.config.row] < min(self.config.quota, self._board.allowed[self.config.row])

    def sent(self) -> None:
        """Count one message against the share of this process."""
        self._board.done[self.config.row] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One kind of process. A role that `sends` gets a share of the messages; one that `holds` takes deliveries."""

    work: Callable[[Client, Backend], None]
    processes: int = 1
    sends: bool = False
    holds: bool = False


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the checker has to know about a scenario; these are fields of `run.json`."""

    subscriptions: Mapping[str, tuple[str, ...]]
    ordered: bool
    policy: Literal["block", "park", "skip"] = "block"
    max_receives: int | None = 3
    """None where receives on which no handler began do not count: then nobody outside can count them."""
    visibility: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One system under test.

    Attributes:
        facts: What the checker has to know.
        roles: Its processes by the name of their role.
        prepare: Creates queues, tables and the like, beside the ledger, once, before any process starts.
        unsettled: Returns how much is still on its way; 0 when everything has drained.
        read_back: Writes `dead`, `left` and `check` lines when everything has ended.
        weight: How many of the messages of a run with other scenarios it gets, beside theirs.
        stores: The stores that it runs on.
    """

    facts: Facts
    roles: Mapping[str, Role]
    prepare: Callable[[Place, Backend], None]
    unsettled: Callable[[Place, Backend], int]
    read_back: Callable[[Place, Backend, History], None]
    weight: int
    stores: tuple[StoreName, ...] = ("sqlite", "aws")
    stuck_seconds: float = 20.0
    """How long nothing may move, while all processes are at work, until what is left counts as stuck."""


def scenarios_on(store: StoreName) -> tuple[str, ...]:
    return tuple(name for name in SCENARIOS if store in find_scenario(name).stores)


def find_scenario(name: str) -> Scenario:
    found: Scenario = import_module(f"postroad.testing.verify.scenarios.{name}").SCENARIO
    return found
