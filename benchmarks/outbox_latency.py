"""Rows of waiting: from a commit to the call that publishes it, what an idle dispatcher asks, what a row costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg

from benchmarks import postgres
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.outbox_load import Taker, a_dispatcher, an_outbox, empty, fill
from postroad.outbox import DispatcherConfig, DomainEvent, Outbox

POLL = 1.0
_PATIENCE = 30.0


def _p(share: float, values: list[float]) -> float:
    return statistics.quantiles(values, n=1_000, method="inclusive")[round(share * 1_000) - 1]


def waiting(config: DispatcherConfig, share: float) -> Open:
    """Seconds from the return of a commit to the publish call, of an idle dispatcher."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ExitStack() as stack:
            dsn, outbox = stack.enter_context(an_outbox(directory))
            taker = Taker()
            dispatcher = a_dispatcher(outbox, taker, config)
            dispatcher.start()
            stack.callback(dispatcher.stop)
            connection = stack.enter_context(psycopg.connect(dsn))
            yield Opened(lambda: _p(share, [_once(connection, outbox, taker, n) for n in range(load.messages)]))

    return opened


def _once(connection: psycopg.Connection[Any], outbox: Outbox, taker: Taker, number: int) -> float:
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


_LISTENING = DispatcherConfig(poll=POLL)
_POLLING = DispatcherConfig(poll=POLL, listen=False)
_IDLE = "from a commit to the publish call of an idle dispatcher"

ROWS = [
    Row(
        name="outbox-latency-p50", what=f"{_IDLE}, with LISTEN, p50", unit="seconds", target=1.0,
        loads=_loads(200, 60, 5), ours=_side(waiting(_LISTENING, 0.5)), peer=limit("limit of 10 ms", 0.010),
    ),
    Row(
        name="outbox-latency-p99", what=f"{_IDLE}, with LISTEN, p99", unit="seconds", target=1.0,
        loads=_loads(200, 60, 5), ours=_side(waiting(_LISTENING, 0.99)), peer=limit("limit of 50 ms", 0.050),
    ),
    Row(
        name="outbox-latency-poll", what=f"{_IDLE}, polling every second, p99", unit="seconds", target=1.0,
        loads=_loads(60, 20, 3), ours=_side(waiting(_POLLING, 0.99)), peer=limit("limit of 1.05 s", POLL + 0.050),
    ),
    Row(
        name="outbox-idle", what="statements of an idle dispatcher for each poll (fewer is better)", unit="ratio",
        target=1.0, loads=_loads(50, 20, 5), ours=_side(_idle), peer=limit("limit of 2", 2.0),
    ),
    Row(
        name="outbox-statements", what="statements for each row sent, batch 50 (fewer is better)", unit="ratio",
        target=1.0, loads=_loads(20_000, 5_000, 100), ours=_side(_statements), peer=limit("limit of 0.2", 0.2),
    ),
]  # fmt: skip
