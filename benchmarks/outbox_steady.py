"""The row of the long run: 500 rows a second come, are sent and pruned, and a claim takes no longer in the end.

How long the run is can be given in seconds: OUTBOX_STEADY_SECONDS=120.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg

from benchmarks import postgres
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.outbox_load import FILL, KEYS, a_dispatcher, an_outbox
from postroad import OutgoingMessage, SendResult
from postroad.outbox import Outbox
from postroad.outbox.dispatching.postgres import PostgresDispatchStore

SECONDS = int(os.environ.get("OUTBOX_STEADY_SECONDS", "1800"))
ROWS_PER_SECOND = 500
PORTION = 25
KEPT = timedelta(seconds=10)
_PRUNE_EVERY = 2.0
_PATIENCE = 60.0
_DEAD_SHARE, _DEAD_BASE = 0.2, 100_000


@dataclass(slots=True)
class Tally:
    """Publishes nowhere; remembers of each key only the last number, since a long run publishes millions."""

    count: int = 0
    last: dict[str | None, int] = field(default_factory=dict)
    out_of_order: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        with self.lock:
            for message in messages:
                seq = int(message.attributes["Seq"])
                self.out_of_order += self.last.get(message.group, 0) >= seq
                self.last[message.group] = seq
            self.count += len(messages)
        return [SendResult(ok=True) for _ in messages]


@contextmanager
def timed_claims() -> Iterator[list[float]]:
    """The seconds of each claim that this process makes and that finds something."""
    taken: list[float] = []
    real = PostgresDispatchStore.claim

    def timed(store: PostgresDispatchStore, *arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        rows = real(store, *arguments, **options)
        if rows:
            taken.append(time.perf_counter() - started)
        return rows

    with mock.patch.object(PostgresDispatchStore, "claim", timed):
        yield taken


def after(seconds: Callable[[Load], int]) -> Open:
    """A side on which the load has run for so long; the median seconds of a claim under the same load."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ExitStack() as stack:
            dsn, outbox = stack.enter_context(an_outbox(directory))
            tally = Tally()
            dispatcher = a_dispatcher(outbox, tally)
            dispatcher.start()
            stack.callback(dispatcher.stop)
            connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            _drive(connection, outbox, tally, seconds(load) * ROWS_PER_SECOND)

            def run() -> float:
                with timed_claims() as claims:
                    _drive(connection, outbox, tally, load.messages)
                return statistics.median(claims)

            yield Opened(run)

    return opened


def _drive(connection: psycopg.Connection[Any], outbox: Outbox, tally: Tally, rows: int) -> None:
    """Add rows at their pace, prune beside, and wait until all are sent."""
    wanted, started = tally.count + rows, time.monotonic()
    prune_at = started
    for added in range(0, rows, PORTION):
        time.sleep(max(0.0, started + added / ROWS_PER_SECOND - time.monotonic()))
        connection.execute(FILL, {"rows": min(PORTION, rows - added), "keys": KEYS, "lane": "tr_"})
        if time.monotonic() >= prune_at:
            prune_at = time.monotonic() + _PRUNE_EVERY
            outbox.prune(older_than=KEPT)
            _check(outbox, tally)
    deadline = time.monotonic() + _PATIENCE
    while tally.count < wanted:
        if time.monotonic() > deadline:
            raise WrongResult(f"{wanted} wanted, {tally.count} published")
        time.sleep(0.005)


def _check(outbox: Outbox, tally: Tally) -> None:
    """Refuse a run that breaks the order of a key, or leaves more dead rows than autovacuum is asked to allow."""
    if tally.out_of_order:
        raise WrongResult(f"{tally.out_of_order} came out of order")
    status = outbox.status()
    live = status.pending + status.sent
    if status.dead_tuples > _DEAD_SHARE * live + _DEAD_BASE:
        raise WrongResult(f"{status.dead_tuples} dead rows beside {live} live ones")


def _side(label: str, opened: Open) -> Side:
    return Side(label=label, needs=postgres.version, open=opened)


ROWS = [
    Row(
        name="outbox-steady",
        unit="seconds",
        target=1 / 1.5,
        what=f"claim at 500 rows a second with prune, after {SECONDS:,} seconds of it against at the start",
        loads=Loads(
            full=Load(messages=2_500, crowd=SECONDS),
            quick=Load(messages=250, crowd=min(SECONDS, 5)),
            smallest=Load(messages=200, crowd=1),
        ),
        ours=_side("in the end", after(lambda load: load.crowd)),
        peer=_side("at the start", after(lambda _: 0)),
        note="refused when dead rows exceed 20 % of live ones + 100,000",
    ),
]
