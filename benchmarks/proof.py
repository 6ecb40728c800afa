"""What the proof costs: the checker beside a bare loop, its memory, the history of a run, and unset failpoints."""

from __future__ import annotations

import hashlib
import json
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from postroad import OutgoingMessage, QueueSpec, connect, failpoints
from postroad.queues import Queue
from postroad.testing.checker import check
from postroad.testing.verify.scenario import History

PRODUCERS, CONSUMERS, KEYS = 2, 3, 12
LINES_PER_MESSAGE = 7
TIMES_LONGER = 10
RUN = {"format": 1, "ordered": True, "subscriptions": {"orders": ["mail"]}, "drained": True}


def write_history(directory: Path, messages: int) -> None:
    """Write the history of a run in which every message was handled once."""
    (directory / "history").mkdir()
    (directory / "run.json").write_text(json.dumps(RUN))
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for line in _lines(messages):
            process = line["p"]
            if process not in files:
                files[process] = stack.enter_context((directory / "history" / f"{process}.jsonl").open("w"))
            files[process].write(json.dumps(line) + "\n")


def _lines(messages: int) -> Iterator[dict[str, Any]]:
    counts: Counter[str] = Counter()
    ids = [str(UUID(bytes=hashlib.md5(b"%d" % number, usedforsecurity=False).digest())) for number in range(messages)]
    moments = (number / 10_000 for number in range(messages * LINES_PER_MESSAGE))

    def line(process: str, op: str, outcome: str = "ok", **fields: Any) -> dict[str, Any]:
        return {"t": next(moments), "p": process, "op": op, "outcome": outcome, **fields}

    for number, id in enumerate(ids):
        producer, consumer = f"producer-{number % PRODUCERS}", f"consumer-{number % CONSUMERS}"
        key = f"k{number % KEYS}"
        message: dict[str, Any] = {
            "id": id,
            "key": key,
            "n": counts[key],
            "sha": hashlib.sha256(id.encode()).hexdigest(),
        }
        counts[key] += 1
        settled = {"sub": "mail", "id": id, "receipt": f"{id}:1"}
        yield line(producer, "publish", "unknown", topic="orders", **message)
        yield line(producer, "publish", topic="orders", **message)
        received = line(consumer, "receive", receive_count=1, token=1, sequence=f"{number:020}", **message | settled)
        yield received
        yield line(consumer, "handled", key=key, n=message["n"], t0=received["t"], **settled)
        yield line(consumer, "ack", "unknown", **settled)
        yield line(consumer, "ack", t0=received["t"], **settled)
    for id in ids:
        yield line("supervisor", "effect", sub="mail", id=id)


def _check(directory: Path, messages: int) -> None:
    report = check(directory)
    if (report.verdict, report.counts.effects) != ("ok", messages):
        raise WrongResult(f"{report.verdict}, {report.counts.effects} effects, {report.findings[:1]}")


@contextmanager
def _checker(directory: Path, load: Load) -> Iterator[Opened]:
    write_history(directory, load.messages)

    def lines_per_second() -> float:
        started = time.perf_counter()
        _check(directory, load.messages)
        return load.messages * LINES_PER_MESSAGE / (time.perf_counter() - started)

    yield Opened(lines_per_second)


@contextmanager
def _bare_loop(directory: Path, load: Load) -> Iterator[Opened]:
    write_history(directory, load.messages)

    def lines_per_second() -> float:
        lines, started = 0, time.perf_counter()
        for path in (directory / "history").iterdir():
            with path.open("rb") as file:
                for line in file:
                    json.loads(line)
                    lines += 1
        if lines != load.messages * LINES_PER_MESSAGE:
            raise WrongResult(f"{lines} lines")
        return lines / (time.perf_counter() - started)

    yield Opened(lines_per_second)


def _memory(times: int) -> Open:
    """A side that measures the most memory that a check of a history of this length takes at a time."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        messages = load.messages * times
        write_history(directory, messages)

        def peak() -> float:
            tracemalloc.start()
            try:
                _check(directory, messages)
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        yield Opened(peak)

    return opened


def _moving(write: Callable[[History], Callable[..., None]]) -> Open:
    """A side that sends, receives and acks messages one at a time, and writes down what it does as `verify` would."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        history = History(directory, "one")
        note = write(history)
        with connect(f"sqlite:///{directory}/store.db") as backend:
            queue = backend.create_queue(QueueSpec("orders"))

            def messages_per_second() -> float:
                started = time.perf_counter()
                for number in range(load.messages):
                    _move(queue, f"{number}", note)
                return load.messages / (time.perf_counter() - started)

            yield Opened(messages_per_second)
        history.close()

    return opened


def _move(queue: Queue, body: str, note: Callable[..., None]) -> None:
    sent: dict[str, Any] = {"id": body, "key": "k", "n": 0, "sha": hashlib.sha256(body.encode()).hexdigest()}
    note("publish", "unknown", topic="orders", **sent)
    [result] = queue.send([OutgoingMessage(body)])
    note("publish", topic="orders", **sent)
    [delivery] = queue.receive()
    if not result.ok or delivery.body != body.encode():
        raise WrongResult(f"{delivery.body!r} in place of {body}")
    settled = {"sub": "mail", "id": body, "receipt": delivery.receipt}
    note("receive", receive_count=delivery.receive_count, token=1, **sent | settled)
    note("handled", key="k", n=0, t0=0.0, **settled)
    note("ack", "unknown", **settled)
    queue.ack([delivery])
    note("ack", t0=0.0, **settled)


@contextmanager
def _failpoints(directory: Path, load: Load) -> Iterator[Opened]:
    """Count the failpoints that a message hits, and measure what one costs that is not set."""
    with connect(f"sqlite:///{directory}/store.db") as backend:
        queue = backend.create_queue(QueueSpec("orders"))

        def part() -> float:
            with patch.object(failpoints, "hit") as counted:
                _move(queue, "counted", _nothing)
            hits = counted.call_count
            if not hits:
                raise WrongResult("a message hits no failpoint")
            started = time.perf_counter()
            for number in range(load.messages):
                _move(queue, f"{number}", _nothing)
            moved = time.perf_counter()
            for _ in range(load.messages):
                failpoints.hit("queue.send.before_commit")
            return hits * (time.perf_counter() - moved) / (moved - started)

        yield Opened(part)


def _nothing(*args: Any, **fields: Any) -> None:
    """Write nothing down."""


ROWS = [
    Row(
        name="verify-checker",
        what="lines of a history that the checker of `verify` checks in a second",
        unit="per_second",
        target=0.2,
        ours=Side(label="postroad", package="postroad", open=_checker),
        peer=Side(label="a bare json.loads loop over the same lines", open=_bare_loop),
        loads=Loads(full=Load(messages=30_000), quick=Load(messages=5_000), smallest=Load(messages=50)),
    ),
    Row(
        name="verify-checker-memory",
        what="the most memory of a check of a history ten times as long",
        unit="bytes",
        target=0.5,
        ours=Side(label="ten times as long", open=_memory(TIMES_LONGER)),
        peer=Side(label="a short history", open=_memory(1)),
        loads=Loads(full=Load(messages=5_000), quick=Load(messages=1_000), smallest=Load(messages=50)),
    ),
    Row(
        name="verify-history",
        what="messages sent, received and acked one at a time while each step is written to a history",
        unit="per_second",
        target=0.7,
        ours=Side(label="with a history", open=_moving(lambda history: history.write)),
        peer=Side(label="without", open=_moving(lambda history: _nothing)),
        loads=Loads(full=Load(messages=3_000), quick=Load(messages=1_000), smallest=Load(messages=20)),
    ),
    Row(
        name="failpoints-unset",
        what="part of a message's send, receive and ack that unset failpoints take",
        unit="ratio",
        target=1.0,
        ours=Side(label="failpoints", open=_failpoints),
        peer=limit("limit of 1 %", 0.01),
        loads=Loads(full=Load(messages=3_000), quick=Load(messages=1_000), smallest=Load(messages=20)),
    ),
]
