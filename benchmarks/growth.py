"""Rows that compare the embedded queue with itself at two sizes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import ours
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.workload import PADDING
from postroad import Delivery, OutgoingMessage, Queue

BATCH = 10
FILL_BATCH = 1_000
_numbers = itertools.count()
Make = Callable[[int], list[OutgoingMessage]]


def _standing(*, backlog: Callable[[Load], int], groups: Callable[[Load], int] | None = None) -> Open:
    """A side that moves messages through a queue which already holds a backlog."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ours.open_queue(directory, fifo=groups is not None) as queue:
            make = _maker(groups(load) if groups else None)
            _fill(queue, make, backlog(load))
            yield Opened(lambda: _loop(queue, make, load.messages), lambda: ours.durability(queue, directory))

    return opened


def _maker(groups: int | None) -> Make:
    """What makes the next messages; with groups, each message goes to the next group."""

    def make(count: int) -> list[OutgoingMessage]:
        numbers = list(itertools.islice(_numbers, count))
        if groups is None:
            return [OutgoingMessage(f"{number}-{PADDING}") for number in numbers]
        return [OutgoingMessage(f"{n}-{PADDING}", group=f"g{n % groups}", dedup_id=str(n)) for n in numbers]

    return make


def _fill(queue: Queue, make: Make, count: int) -> None:
    for first in range(0, count, FILL_BATCH):
        ours.send(queue, make(min(FILL_BATCH, count - first)))


def _loop(queue: Queue, make: Make, messages: int) -> float:
    """Send ten, receive ten, ack ten, so that the backlog stays; messages per second."""
    batches = [make(BATCH) for _ in range(messages // BATCH)]
    deliveries: list[Delivery] = []
    started = time.perf_counter()
    for batch in batches:
        ours.send(queue, batch)
        taken = queue.receive(max_messages=BATCH)
        queue.ack(taken)
        deliveries += taken
    seconds = time.perf_counter() - started
    _check(deliveries, messages)
    return messages / seconds


def _check(deliveries: list[Delivery], messages: int) -> None:
    if len({delivery.message_id for delivery in deliveries}) != messages:
        raise WrongResult(f"{messages} wanted, {len(deliveries)} received, or one of them twice")
    last: dict[str, int] = {}
    for delivery in deliveries:
        number = int(delivery.body.split(b"-", 1)[0])
        if delivery.group is not None and last.get(delivery.group, -1) >= number:
            raise WrongResult(f"group {delivery.group} came out of order")
        last[delivery.group or ""] = number


def _crowds(messages: int, full: int, quick: int) -> Loads:
    return Loads(
        full=Load(messages=messages, crowd=full),
        quick=Load(messages=messages // 4, crowd=quick),
        smallest=Load(messages=40, crowd=200),
    )


def _side(label: str, opened: Open) -> Side:
    return Side(label=label, open=opened)


ROWS = [
    Row(
        name="backlog-1m",
        unit="per_second",
        target=0.8,
        loads=_crowds(10_000, 1_000_000, 100_000),
        what="send, receive and ack in batches of 10 with a backlog of 1,000,000 against one of 1,000",
        ours=_side("backlog of 1,000,000", _standing(backlog=lambda load: load.crowd)),
        peer=_side("backlog of 1,000", _standing(backlog=lambda load: min(1_000, load.crowd))),
    ),
    Row(
        name="fifo-groups-few",
        unit="per_second",
        target=0.85,
        loads=_crowds(10_000, 100_000, 100_000),
        what="FIFO with 100,000 groups against 10, few of them waiting at a time",
        ours=_side("100,000 groups", _standing(backlog=lambda _: 0, groups=lambda load: load.crowd)),
        peer=_side("10 groups", _standing(backlog=lambda _: 0, groups=lambda _: 10)),
    ),
    Row(
        name="fifo-groups-all",
        unit="per_second",
        target=0.5,
        loads=_crowds(10_000, 100_000, 20_000),
        what="FIFO with 100,000 groups against 10, all of them non-empty, the same backlog",
        ours=_side("100,000 groups", _standing(backlog=lambda load: load.crowd, groups=lambda load: load.crowd)),
        peer=_side("10 groups", _standing(backlog=lambda load: load.crowd, groups=lambda _: 10)),
    ),
]
