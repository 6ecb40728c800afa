"""Rows of waiting: from a commit to the call that publishes it, what an idle dispatcher asks, what a row costs."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import psycopg

from benchmarks import postgres
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.outbox_load import Taker, a_dispatcher, an_outbox, empty, fill
from postroad.outbox import DispatcherConfig, DomainEvent, Outbox

POLL = 1.0
LONGEST_RATIO = 1.5
_PATIENCE = 30.0
_MEETINGS = 20
BLOCKED = 10_000


def _p(share: float, values: list[float]) -> float:
    return statistics.quantiles(values, n=1_000, method="inclusive")[round(share * 1_000) - 1]


def waiting(config: DispatcherConfig, share: float, *, blocked: Callable[[Load], int] = lambda _: 0) -> Open:
    """Seconds from the return of a commit to the publish call, of an idle dispatcher on PostgreSQL."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ExitStack() as stack:
            dsn, outbox = stack.enter_context(an_outbox(directory))
            connection = stack.enter_context(psycopg.connect(dsn))
            yield _waiting(stack, outbox, connection, config, share, load, blocked(load))

    return opened


def waiting_on_sqlite(config: DispatcherConfig, share: float, *, blocked: Callable[[Load], int]) -> Open:
    """Seconds from the return of a commit to the publish call, of an idle dispatcher on a SQLite file."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ExitStack() as stack:
            path = Path(stack.enter_context(TemporaryDirectory(dir=directory))) / "app.db"
            outbox = Outbox.sqlite(path)
            stack.callback(outbox.close)
            outbox.init()
            connection = stack.enter_context(closing(sqlite3.connect(path)))
            connection.execute("PRAGMA journal_mode = WAL")
            yield _waiting(stack, outbox, connection, config, share, load, blocked(load))

    return opened


def _waiting(
    stack: ExitStack, outbox: Outbox, connection: Any, config: DispatcherConfig, share: float, load: Load, blocked: int
) -> Opened:
    _block(connection, outbox, blocked)
    taker = Taker()
    dispatcher = a_dispatcher(outbox, taker, config)
    dispatcher.start()
    stack.callback(dispatcher.stop)
    # The dispatcher meets the blocked keys for the first time, and that is over when these are through.
    for number in range(_MEETINGS if blocked else 0):
        _once(connection, outbox, taker, number)
    return Opened(lambda: _p(share, [_once(connection, outbox, taker, n) for n in range(load.messages)]))


def _block(connection: Any, outbox: Outbox, keys: int) -> None:
    """Add keys of two rows: in one half of them the first has failed, in the other it waits for its next attempt."""
    events = (DomainEvent("benchmarks.held", {"key": f"held{n % keys}"}, {"n": n}) for n in range(2 * keys))
    outbox.add_many(connection, events)
    connection.execute(f"UPDATE outbox SET state = 'FAILED' WHERE seq <= {keys // 2}")
    connection.execute(f"UPDATE outbox SET next_attempt = '2999-01-01T00:00:00.000Z' WHERE seq <= {keys}")
    connection.commit()


def _once(connection: Any, outbox: Outbox, taker: Taker, number: int) -> float:
    # Out of step with the polling, and long after the last one.
    time.sleep(0.05 + 0.037 * (number % 11))
    taker.times.clear()
    outbox.add(connection, DomainEvent("benchmarks.noted", {"key": f"k{number}"}, {"n": number}))
    connection.commit()
    committed = time.time()
    deadline = time.monotonic() + _PATIENCE
    while not taker.times:
        if time.monotonic() > deadline:
            raise WrongResult("an event was not published")
        time.sleep(0.0005)
    return max(taker.times[0] - committed, 1e-6)


@contextmanager
def counted_statements() -> Iterator[list[None]]:
    """One entry for each statement that this process sends, BEGIN and COMMIT included."""
    sent: list[None] = []

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            sent.append(None)
            return real(*arguments, **options)

        return counted

    with (
        mock.patch.object(psycopg.Cursor, "execute", counting(psycopg.Cursor.execute)),
        mock.patch.object(psycopg.Connection, "_exec_command", counting(psycopg.Connection._exec_command)),
    ):
        yield sent


@contextmanager
def _idle(directory: Path, load: Load) -> Iterator[Opened]:
    """Statements for each `poll` of a dispatcher that has nothing to do."""
    with an_outbox(directory) as (_, outbox):
        dispatcher = a_dispatcher(outbox, Taker(), DispatcherConfig(poll=0.1))

        def run() -> float:
            with counted_statements() as statements:
                time.sleep(load.messages * 0.1)
                return max(len(statements), 1) / load.messages

        dispatcher.start()
        time.sleep(0.5)
        yield Opened(run)
        dispatcher.stop()


@contextmanager
def _statements(directory: Path, load: Load) -> Iterator[Opened]:
    """Statements for each row that is sent."""
    with an_outbox(directory) as (dsn, outbox):

        def run() -> float:
            empty(dsn)
            fill(dsn, load.messages)
            taker = Taker(0.005)
            with counted_statements() as statements:
                a_dispatcher(outbox, taker).drain(600)
            taker.check(rows=load.messages, ordered=True)
            return len(statements) / load.messages

        yield Opened(run)


def _side(opened: Open) -> Side:
    return Side(label="postroad", package="postroad", needs=postgres.version, open=opened)


def _loads(full: int, quick: int, smallest: int) -> Loads:
    return Loads(full=Load(messages=full), quick=Load(messages=quick), smallest=Load(messages=smallest))


_CROWDS = Loads(
    full=Load(messages=100, crowd=BLOCKED),
    quick=Load(messages=6, crowd=BLOCKED),
    smallest=Load(messages=5, crowd=50),
)
_LISTENING = DispatcherConfig(poll=POLL)
_BESIDE = "of a key beside 10,000 keys that are blocked or backing off against none"
_POLLING = DispatcherConfig(poll=POLL, listen=False)
_IDLE = "from a commit to the publish call of an idle dispatcher"

ROWS = [
    Row(
        name="outbox-latency-p50",
        what=f"{_IDLE}, with LISTEN, p50",
        unit="seconds",
        target=1.0,
        loads=_loads(200, 12, 5),
        ours=_side(waiting(_LISTENING, 0.5)),
        peer=limit("limit of 10 ms", 0.010),
    ),
    Row(
        name="outbox-latency-p99",
        what=f"{_IDLE}, with LISTEN, p99",
        unit="seconds",
        target=1.0,
        loads=_loads(200, 12, 5),
        ours=_side(waiting(_LISTENING, 0.99)),
        peer=limit("limit of 50 ms", 0.050),
    ),
    Row(
        name="outbox-latency-poll",
        what=f"{_IDLE}, polling every second, p99",
        unit="seconds",
        target=1.0,
        loads=_loads(60, 5, 3),
        ours=_side(waiting(_POLLING, 0.99)),
        peer=limit("limit of 1.05 s", POLL + 0.050),
    ),
    Row(
        name="outbox-blocked-keys",
        what=f"{_IDLE} {_BESIDE}, on PostgreSQL, p50",
        unit="seconds",
        target=1 / LONGEST_RATIO,
        loads=_CROWDS,
        ours=Side(
            label="10,000 blocked keys",
            needs=postgres.version,
            open=waiting(_LISTENING, 0.5, blocked=lambda load: load.crowd),
        ),
        peer=Side(label="none", needs=postgres.version, open=waiting(_LISTENING, 0.5)),
    ),
    Row(
        name="outbox-blocked-keys-sqlite",
        what=f"{_IDLE} {_BESIDE}, on SQLite, p50",
        unit="seconds",
        target=1 / LONGEST_RATIO,
        loads=_CROWDS,
        ours=Side(
            label="10,000 blocked keys", open=waiting_on_sqlite(_LISTENING, 0.5, blocked=lambda load: load.crowd)
        ),
        peer=Side(label="none", open=waiting_on_sqlite(_LISTENING, 0.5, blocked=lambda _: 0)),
    ),
    Row(
        name="outbox-idle",
        what="statements of an idle dispatcher for each poll (fewer is better)",
        unit="ratio",
        target=1.0,
        loads=_loads(50, 20, 5),
        ours=_side(_idle),
        peer=limit("limit of 2", 2.0),
    ),
    Row(
        name="outbox-statements",
        what="statements for each row sent, batch 50 (fewer is better)",
        unit="ratio",
        target=1.0,
        loads=_loads(20_000, 5_000, 100),
        ours=_side(_statements),
        peer=limit("limit of 0.2", 0.2),
    ),
]
