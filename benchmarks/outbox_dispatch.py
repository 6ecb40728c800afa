"""Rows of the dispatcher beside loops written by hand, beside itself at other sizes, and beside limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from benchmarks import outbox_loops, postgres
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side
from benchmarks.outbox_load import Taker, empty, fill
from postroad.outbox import DispatcherConfig, Outbox, OutboxDispatcher

CALL_SECONDS = 0.005
_PATIENCE = 600.0


@contextmanager
def an_outbox(directory: Path) -> Iterator[tuple[str, Outbox]]:
    """An outbox of one's own on the server that both sides share, with its DSN."""
    with ExitStack() as stack:
        dsn = stack.enter_context(postgres.database(stack.enter_context(postgres.shared(directory))))
        outbox = Outbox.postgres(dsn)
        stack.callback(outbox.close)
        outbox.init()
        yield dsn, outbox


def a_dispatcher(outbox: Outbox, taker: Taker, config: DispatcherConfig | None = None) -> OutboxDispatcher:
    return OutboxDispatcher(outbox, taker, config or DispatcherConfig(), metrics=CollectorRegistry())


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


def _ours(opened: Open, label: str = "postroad") -> Side:
    return Side(label=label, package="postroad", needs=postgres.version, open=opened)


def _by_hand(label: str, opened: Open) -> Side:
    return Side(label=label, package="psycopg", needs=postgres.version, open=opened)


def _loads(messages: int) -> Loads:
    return Loads(full=Load(messages=messages), quick=Load(messages=messages // 4), smallest=Load(messages=100))


_WORK = "publish rows of 2,000 keys with a publisher that takes 5 ms for each call"

ROWS = [
    Row(
        name="outbox-seed", what=_WORK, unit="per_second", target=8.0, loads=_loads(20_000),
        ours=_ours(emptying(seconds=CALL_SECONDS)),
        peer=_by_hand(
            "the seed's mock loop without its sleep",
            outbox_loops.looping(
                outbox_loops.seeds_loop, seconds=CALL_SECONDS, share=outbox_loops.SEED_SHARE, index=False
            ),
        ),
    ),
    Row(
        name="outbox-bare", what=_WORK, unit="per_second", target=0.7, loads=_loads(20_000),
        ours=_ours(emptying(seconds=CALL_SECONDS)),
        peer=_by_hand(
            "bare batched loop that keeps no order", outbox_loops.looping(outbox_loops.bare_loop, seconds=CALL_SECONDS)
        ),
    ),
]  # fmt: skip
