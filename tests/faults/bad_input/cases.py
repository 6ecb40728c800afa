"""The cases of the catalogue, and what a surface answers to one."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from postroad.queues import Queue
from postroad.queues.markers import read_dead
from postroad.wiring import Backend

FILE = Path(__file__).parents[1] / "bad_input.toml"
SURFACES = (
    "http",
    "bus",
    "queue",
    "outbox",
    "inbox",
    "worker",
    "jobs",
    "agents",
    "topology",
    "notifications",
    "cli",
    "config",
    "webhook",
)
_MOVED_BY_A_DEAD_LETTER = {"message", "lease", "tally", "trail", "grp", "dedup", "sqlite_sequence"}
State = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the catalogue."""

    id: str
    surface: str
    given: str
    expect: dict[str, Any]
    says: str
    input: Any = None
    build: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """How a surface answered: `kind` is 'status', 'exit', 'error', 'dead_letter' or 'accepted'."""

    kind: str
    value: object
    text: str


class Surface(Protocol):
    """One way into the system, with something stored behind it."""

    def give(self, input: Any) -> Answer:
        """Hand over a bad input and return the answer."""

    def state(self) -> State:
        """Return everything that is stored."""

    def letters(self) -> tuple[State, dict[str, list[Any]]]:
        """Return what no dead letter changes, and the places in which one can be."""

    def works(self) -> None:
        """Hand over a good input and check that it is handled."""

    def close(self) -> None:
        """Give back what was opened."""


def cases() -> list[Case]:
    """Return all cases of the file."""
    return [Case(**row) for row in tomllib.loads(FILE.read_text())["case"]]


def attempt(call: Callable[[], object]) -> Answer:
    """Return the error of a call, with its notes as every traceback shows them."""
    try:
        result = call()
    except Exception as error:
        return Answer("error", type(error).__name__, described(error))
    return Answer("accepted", None, repr(result))


def described(error: BaseException) -> str:
    """Return what a person reads of an error: its text and its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def stored(backend: Backend) -> State:
    """Return all rows of all tables of an embedded store."""
    return dict(backend.ports.queues.engine.read(_all_rows))  # type: ignore[attr-defined]  # an embedded store has one


def _all_rows(connection: Any) -> Iterable[tuple[str, list[Any]]]:
    names = [
        name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ]
    return [(name, list(connection.execute(f"SELECT {_columns(connection, name)} FROM {name}"))) for name in names]


def _columns(connection: Any, table: str) -> str:
    """Return the columns of a table without the times at which a queue was last used, which a refusal may move too."""
    names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    return ", ".join(name for name in names if (table, name) not in (("tally", "last_us"), ("tally", "seen_us")))


def without_messages(state: State) -> State:
    """Return the state without the tables that a message in the dead letters changes."""
    return {name: rows for name, rows in state.items() if name not in _MOVED_BY_A_DEAD_LETTER}


def messages(backend: Backend) -> dict[str, list[Any]]:
    """Return what each queue holds."""
    return {name: list(backend.queue(name).peek(limit=100)) for name in backend.queues()}


def newest_dead_letter(queue: Queue, body: bytes) -> Answer:
    """Return the dead letter with this body as an answer: its reason, and its error as the text."""
    letters = [letter for letter in queue.peek(limit=100) if letter.body == body]
    if not letters:
        return Answer("accepted", None, "not in the dead letters")
    marker = read_dead(letters[-1].attributes)
    return Answer("dead_letter", marker and marker.reason, f"{marker and marker.reason}: {marker and marker.error}")
