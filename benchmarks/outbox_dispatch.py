"""Rows of the dispatcher beside loops written by hand, beside job queues, and beside itself at other sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import outbox_loops, outbox_peers, postgres
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.outbox_load import Taker, a_dispatcher, an_outbox, empty, fill, fill_sent
from benchmarks.processes import child, hear
from postroad import OutgoingMessage
from postroad.outbox import Outbox

CALL_SECONDS = 0.005
SLOW_CALL_SECONDS = 0.050
SMALL_KEYS = 1_000
PORTION = 1_000
_PATIENCE = 600.0


def emptying(*, seconds: float) -> Open:
    """A side that publishes all rows; rows per second."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with an_outbox(directory) as (dsn, outbox):

            def run() -> float:
                empty(dsn)
                fill(dsn, load.messages)
                taker = Taker(seconds)
                dispatcher = a_dispatcher(outbox, taker)
                started = time.perf_counter()
                dispatcher.drain(_PATIENCE)
                elapsed = time.perf_counter() - started
                taker.check(rows=load.messages, ordered=True)
                return load.messages / elapsed

            yield Opened(run)

    return opened


def standing(*, backlog: Callable[[Load], int] = lambda _: 0, sent: Callable[[Load], int] = lambda _: 0) -> Open:
    """A side that publishes portions of 1,000 rows out of a table that holds more; rows per second."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with an_outbox(directory) as (dsn, outbox):
            if rows := sent(load):
                fill_sent(dsn, rows)
            portion = min(PORTION, load.messages)
            fill(dsn, max(backlog(load) - portion, 0))
            yield Opened(lambda: _portions(dsn, outbox, portion, load.messages // portion))

    return opened


def _portions(dsn: str, outbox: Outbox, rows: int, times: int) -> float:
    elapsed = 0.0
    for _ in range(times):
        fill(dsn, rows)
        elapsed += _publish_first(outbox, rows)
    return rows * times / elapsed


def _publish_first(outbox: Outbox, rows: int) -> float:
    """Seconds until so many rows are published, whatever else there is."""
    taker = Taker(CALL_SECONDS, enough=rows)
    dispatcher = a_dispatcher(outbox, taker)
    started = time.perf_counter()
    dispatcher.start()
    _wait_for(taker)
    elapsed = time.perf_counter() - started
    dispatcher.stop()
    taker.check(rows=None, ordered=True)
    return elapsed


def _wait_for(taker: Taker) -> None:
    if not taker.full.wait(_PATIENCE):
        raise WrongResult(f"{taker.enough} wanted, {len(taker.taken)} published")


def beside_a_big_key(rows: Callable[[Load], int]) -> Open:
    """Seconds until keys of one row are sent, beside a key of so many."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with an_outbox(directory) as (dsn, outbox):

            def run() -> float:
                empty(dsn)
                fill(dsn, rows(load), keys=1, lane="big_")
                fill(dsn, load.messages, keys=load.messages, lane="small_")
                taker = Taker(CALL_SECONDS)
                dispatcher = a_dispatcher(outbox, taker)
                started = time.perf_counter()
                dispatcher.start()
                while _left(dsn) > 0:
                    time.sleep(0.005)
                elapsed = time.perf_counter() - started
                dispatcher.stop()
                taker.check(rows=None, ordered=True)
                return elapsed

            yield Opened(run)

    return opened


def _left(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(
            "SELECT count(*) FROM outbox WHERE state NOT IN ('SENT', 'SKIPPED') AND held = 0 "
            "AND coalesce(tenant, '') = 'tnt_1' AND lane >= 'small_' AND lane < 'small_~'"
        ).fetchone()
    return int(found[0]) if found else 0


def dispatch(dsn: str, pipe: Connection) -> None:
    """A process that dispatches whenever it is told to, and answers with what it published and when."""
    outbox = Outbox.postgres(dsn)
    pipe.send("ready")
    while pipe.recv() is not None:
        taker = Taker(SLOW_CALL_SECONDS)
        dispatcher = a_dispatcher(outbox, taker)
        dispatcher.start()
        pipe.recv()
        dispatcher.stop()
        pipe.send(list(zip(taker.times, taker.taken, strict=True)))
    outbox.close()


def in_processes(count: int) -> Open:
    """A side whose dispatchers are processes; rows per second until nothing is pending."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ExitStack() as stack:
            dsn, _ = stack.enter_context(an_outbox(directory))
            pipes = [stack.enter_context(child(dispatch, dsn)) for _ in range(count)]
            connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))

            def run() -> float:
                empty(dsn)
                fill(dsn, load.messages)
                started = time.perf_counter()
                for pipe in pipes:
                    pipe.send("go")
                while _pending(connection) > 0:
                    time.sleep(0.01)
                elapsed = time.perf_counter() - started
                together(pipes).check(rows=load.messages, ordered=True)
                return load.messages / elapsed

            yield Opened(run)

    return opened


def together(pipes: list[Connection]) -> Taker:
    """Stop the dispatchers; what all of them published, in the order of time."""
    calls: list[tuple[float, OutgoingMessage]] = []
    for pipe in pipes:
        pipe.send("stop")
        told: Any = hear(pipe)
        calls += told
    calls.sort(key=lambda call: call[0])
    return Taker(taken=[message for _, message in calls])


def _pending(connection: psycopg.Connection[tuple[int]]) -> int:
    found = connection.execute("SELECT count(*) FROM outbox WHERE state NOT IN ('SENT', 'SKIPPED')").fetchone()
    return found[0] if found else 0


def _ours(opened: Open, label: str = "postroad") -> Side:
    return Side(label=label, package="postroad", needs=postgres.version, open=opened)


def _by_hand(label: str, opened: Open) -> Side:
    return Side(label=label, package="psycopg", needs=postgres.version, open=opened)


def _peer(name: str, opened: Open) -> Side:
    return Side(label=name, package=name, needs=postgres.version, open=opened)


def _itself(label: str, opened: Open) -> Side:
    return Side(label=label, needs=postgres.version, open=opened)


def _loads(messages: int) -> Loads:
    return Loads(full=Load(messages=messages), quick=Load(messages=messages // 4), smallest=Load(messages=100))


def _crowds(messages: int, full: int, quick: int) -> Loads:
    return Loads(
        full=Load(messages=messages, crowd=full),
        quick=Load(messages=messages, crowd=quick),
        smallest=Load(messages=100, crowd=200),
    )


_WORK = "publish rows of 2,000 keys with a publisher that takes 5 ms for each call"

ROWS = [
    Row(
        name="outbox-seed",
        what=_WORK,
        unit="per_second",
        target=8.0,
        loads=_loads(20_000),
        ours=_ours(emptying(seconds=CALL_SECONDS)),
        peer=_by_hand(
            "the seed's mock loop without its sleep",
            outbox_loops.looping(
                outbox_loops.seeds_loop, seconds=CALL_SECONDS, share=outbox_loops.SEED_SHARE, index=False
            ),
        ),
    ),
    Row(
        name="outbox-bare",
        what=_WORK,
        unit="per_second",
        target=0.7,
        loads=_loads(20_000),
        ours=_ours(emptying(seconds=CALL_SECONDS)),
        peer=_by_hand(
            "bare batched loop that keeps no order", outbox_loops.looping(outbox_loops.bare_loop, seconds=CALL_SECONDS)
        ),
    ),
    Row(
        name="outbox-procrastinate",
        what=_WORK,
        unit="per_second",
        target=None,
        loads=_loads(2_000),
        ours=_ours(emptying(seconds=CALL_SECONDS)),
        note="a job of the peer is one call and keeps no order",
        peer=_peer("procrastinate", outbox_peers.PROCRASTINATE(CALL_SECONDS)),
    ),
    Row(
        name="outbox-pgqueuer",
        what=_WORK,
        unit="per_second",
        target=None,
        loads=_loads(2_000),
        ours=_ours(emptying(seconds=CALL_SECONDS)),
        note="a job of the peer is one call and keeps no order",
        peer=_peer("pgqueuer", outbox_peers.PGQUEUER(CALL_SECONDS)),
    ),
    Row(
        name="outbox-sent-1m",
        unit="per_second",
        target=0.8,
        loads=_crowds(5_000, 1_000_000, 200_000),
        what="publish portions of 1,000 rows with 1,000,000 rows that were sent before against none",
        ours=_itself("1,000,000 SENT rows", standing(sent=lambda load: load.crowd)),
        peer=_itself("none", standing()),
    ),
    Row(
        name="outbox-backlog",
        unit="per_second",
        target=0.8,
        loads=_crowds(5_000, 100_000, 20_000),
        what="publish portions of 1,000 rows with a backlog of 100,000 against one of 1,000",
        ours=_itself("backlog of 100,000", standing(backlog=lambda load: load.crowd)),
        peer=_itself("backlog of 1,000", standing(backlog=lambda load: min(1_000, load.crowd))),
    ),
    Row(
        name="outbox-big-key",
        unit="seconds",
        target=0.5,
        loads=_crowds(SMALL_KEYS, 100_000, 20_000),
        what="send 1,000 keys of one row beside a key of 100,000 rows against alone",
        ours=_itself("beside a key of 100,000", beside_a_big_key(lambda load: load.crowd)),
        peer=_itself("alone", beside_a_big_key(lambda _: 0)),
    ),
    Row(
        name="outbox-four",
        unit="per_second",
        target=2.5,
        loads=_loads(20_000),
        what="publish rows of 2,000 keys, 50 ms for each call, 4 dispatchers in processes of their own against 1",
        ours=_itself("4 dispatchers", in_processes(4)),
        peer=_itself("1 dispatcher", in_processes(1)),
    ),
]
