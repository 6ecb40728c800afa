"""Rows of queue operations: redrive beside a loop of one's own, beside itself, and looks at a long backlog."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import postroad
from benchmarks import ours
from benchmarks.emulator import REGION, running_moto
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.growth import FILL_BATCH
from benchmarks.limits import limit
from benchmarks.sqs import CREDENTIALS, counted_requests
from benchmarks.workload import PADDING
from postroad import OutgoingMessage, Queue, QueueSpec
from postroad.operations import Match, RedriveReport, fingerprint, redrive
from postroad.queues import Move
from postroad.queues.markers import mark_dead
from postroad.queues.port import as_movable
from postroad.views import overview, queue_detail, queue_row

DEAD, HOME = "dead", "orders"
BATCH = 10
_FEWER = 10
_LOOKS = 50
_ROOT = Path(__file__).parents[1]
_MEMORY = 50_000_000
_OFTEN, _SELDOM = "ValueError: order {} is unknown [orders.py:place]", "KeyError: '{}' [orders.py:price]"
_TYPE = "orders.placed"


def _letter(number: int) -> OutgoingMessage:
    """A dead letter; one in a hundred died of something else."""
    error = (_OFTEN if number % 100 else _SELDOM).format(number)
    attributes = mark_dead({"EventType": _TYPE}, source=HOME, receives=3, error=error, at=datetime.now(UTC))
    return OutgoingMessage(f"{number}-{PADDING}", attributes)


@contextmanager
def _dead_letters(directory: Path, count: int) -> Iterator[postroad.Backend]:
    with postroad.connect(ours.url(directory)) as backend:
        backend.create_queue(QueueSpec(DEAD, visibility=600))
        backend.create_queue(QueueSpec(HOME, visibility=600, dead_letter=DEAD))
        _fill(backend.queue(DEAD), count)
        yield backend


@contextmanager
def _account(directory: Path, queues: int) -> Iterator[postroad.Backend]:
    """A backend on emulated SQS with so many queues beside the dead letters and their source."""
    with ExitStack() as stack:
        endpoint = stack.enter_context(running_moto(directory))
        told = {**CREDENTIALS, "POSTROAD_AUDIT_LOG": str(directory / "audit.jsonl")}
        stack.enter_context(mock.patch.dict(os.environ, told))
        backend = stack.enter_context(postroad.connect(f"aws://{REGION}?endpoint_url={endpoint}"))
        backend.create_queue(QueueSpec(DEAD))
        backend.create_queue(QueueSpec(HOME, dead_letter=DEAD))
        for number in range(queues):
            backend.create_queue(QueueSpec(f"other-{number}"))
        yield backend


@contextmanager
def _listing(directory: Path, load: Load) -> Iterator[Opened]:
    """Requests for each queue of a list with what they hold."""
    with _account(directory, load.crowd) as backend:

        def run() -> float:
            with counted_requests() as requests:
                found = backend.overviews()
            if len(found) != load.crowd + 2:
                raise WrongResult(f"{len(found)} queues are listed of {load.crowd + 2}")
            return len(requests) / len(found)

        yield Opened(run)


def _redriving_on_sqs(queues: Callable[[Load], int]) -> Open:
    """Requests of one redrive beside so many other queues."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with _account(directory, queues(load)) as backend:

            def run() -> float:
                backend.queue(DEAD).send([_letter(number) for number in range(BATCH)])
                with counted_requests() as requests:
                    report = redrive(backend, DEAD, native=False, stop_after=0)
                if report.moved != BATCH:
                    raise WrongResult(f"{report.moved} of {BATCH} were moved")
                return float(len(requests))

            yield Opened(run)

    return opened


def _fill(queue: Queue, count: int) -> None:
    for first in range(0, count, FILL_BATCH):
        ours.send(queue, [_letter(number) for number in range(first, min(first + FILL_BATCH, count))])


def _put_back(backend: postroad.Backend, expected: int) -> None:
    """Let everything be a dead letter again, so that the next round finds what this one found."""
    source, cursor, moved = as_movable(backend.queue(HOME)), None, 0
    while True:
        step = source.move(
            lambda message: Move(to=DEAD, attributes=dict(_letter(int(message.body.split(b"-")[0])).attributes)),
            cursor=cursor,
        )
        moved += len(step.moved)
        if (cursor := step.cursor) is None:
            break
    if moved != expected:
        raise WrongResult(f"{expected} wanted, {moved} came to {HOME}")


def _redriving(count: Callable[[Load], int]) -> Open:
    """A side that redrives a whole queue; messages per second."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        wanted = count(load)
        with _dead_letters(directory, wanted) as backend:

            def run() -> float:
                seconds = _timed(lambda: _check(redrive(backend, DEAD), wanted))
                _put_back(backend, wanted)
                return wanted / seconds

            yield Opened(run, lambda: ours.durability(backend.queue(DEAD), directory))

    return opened


@contextmanager
def _looping(directory: Path, load: Load) -> Iterator[Opened]:
    """A side that receives ten, sends ten and acks ten until the dead letters are gone; messages per second."""
    with _dead_letters(directory, load.crowd) as backend:
        dead, home = backend.queue(DEAD), backend.queue(HOME)

        def loop() -> None:
            while held := dead.receive(max_messages=BATCH):
                ours.send(home, [OutgoingMessage(delivery.body, delivery.attributes) for delivery in held])
                dead.ack(held)

        def run() -> float:
            seconds = _timed(loop)
            _put_back(backend, load.crowd)
            return load.crowd / seconds

        yield Opened(run, lambda: ours.durability(dead, directory))


@contextmanager
def _choosing(directory: Path, load: Load) -> Iterator[Opened]:
    """Seconds for a redrive of one message in a hundred, chosen by its failure group."""
    match = Match(fingerprint=fingerprint(_SELDOM.format(0), _TYPE))
    with _dead_letters(directory, load.crowd) as backend:

        def run() -> float:
            wanted = load.crowd // 100
            seconds = _timed(lambda: _check(redrive(backend, DEAD, match=match), wanted))
            _put_back(backend, wanted)
            return seconds

        yield Opened(run)


@contextmanager
def _peeking(directory: Path, load: Load) -> Iterator[Opened]:
    """Seconds for one walk through the whole queue by peek."""
    with _dead_letters(directory, load.crowd) as backend:
        yield Opened(lambda: _timed(lambda: _peek_all(backend.queue(DEAD), load.crowd)))


def _peek_all(queue: Queue, wanted: int) -> None:
    seen, after = 0, None
    while page := queue.peek(limit=1_000, after=after):
        seen, after = seen + len(page), page[-1].message_id
    if seen != wanted:
        raise WrongResult(f"{wanted} wanted, {seen} seen")


@contextmanager
def _growing(directory: Path, load: Load) -> Iterator[Opened]:
    """Bytes by which a process grows that redrives everything."""
    with _dead_letters(directory, load.crowd) as backend:

        def run() -> float:
            command = [sys.executable, "-m", "benchmarks.operations", str(directory), str(load.crowd)]
            grown = subprocess.run(command, check=True, cwd=_ROOT, stdout=subprocess.PIPE, text=True).stdout
            _put_back(backend, load.crowd)
            # A process that did not grow at all is no better than one that grew by a page.
            return max(4_096.0, float(grown))

        yield Opened(run)


def _looking(backlog: Callable[[Load], int]) -> Open:
    """Seconds for listing, showing and peeking, over and over, beside a backlog."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with _dead_letters(directory, backlog(load)) as backend:
            yield Opened(lambda: _timed(lambda: _look(backend)))

    return opened


def _look(backend: postroad.Backend) -> None:
    for _ in range(_LOOKS):
        rows = [queue_row(overview(backend, name)) for name in backend.queues()]
        shown = queue_detail(backend, DEAD)
        peeked = backend.queue(DEAD).peek(limit=10)
        if len(rows) != 2 or shown.sources != [HOME] or len(peeked) != 10:
            raise WrongResult("the queues do not look as they should")


def _check(report: RedriveReport, wanted: int) -> None:
    if (report.status, report.moved) != ("done", wanted):
        raise WrongResult(f"{wanted} wanted: {report}")


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _loads(full: int, quick: int) -> Loads:
    return Loads(
        full=Load(messages=full, crowd=full),
        quick=Load(messages=quick, crowd=quick),
        smallest=Load(messages=200, crowd=200),
    )


_REDRIVEN = _loads(100_000, 20_000)

_CALLS = Loads(
    full=Load(messages=BATCH, crowd=34), quick=Load(messages=BATCH, crowd=34), smallest=Load(messages=BATCH, crowd=12)
)

ROWS = [
    Row(
        name="queue-list-calls",
        unit="ratio",
        target=1.0,
        loads=_CALLS,
        what="HTTP requests for each queue in a list of queues on SQS (fewer is better)",
        ours=Side(label="postroad", package="postroad", open=_listing),
        peer=limit("limit of 1.1", 1.1),
    ),
    Row(
        name="redrive-calls",
        unit="ratio",
        target=1.0,
        loads=_CALLS,
        what="HTTP requests of a redrive on SQS beside 34 other queues against one beside none (fewer is better)",
        ours=Side(label="34 other queues", open=_redriving_on_sqs(lambda load: load.crowd)),
        peer=Side(label="no other queue", open=_redriving_on_sqs(lambda _: 0)),
    ),
    Row(
        name="redrive-loop",
        unit="per_second",
        target=2.0,
        loads=_REDRIVEN,
        what="redrive of 100,000 messages against a loop of receive, send and ack in tens",
        ours=Side(label="redrive", open=_redriving(lambda load: load.crowd)),
        peer=Side(label="loop in tens", open=_looping),
    ),
    Row(
        name="redrive-growth",
        unit="per_second",
        target=1 / 1.2,
        loads=_REDRIVEN,
        what="messages per second of a redrive of 100,000 against one of 10,000 (within 20 %)",
        ours=Side(label="100,000 messages", open=_redriving(lambda load: load.crowd)),
        peer=Side(label="10,000 messages", open=_redriving(lambda load: load.crowd // _FEWER)),
    ),
    Row(
        name="redrive-memory",
        unit="bytes",
        target=1.0,
        loads=_REDRIVEN,
        what="bytes by which a process grows that redrives 100,000 messages (fewer is better)",
        ours=Side(label="redrive", open=_growing),
        peer=limit("limit of 50 MB", _MEMORY),
    ),
    Row(
        name="redrive-match",
        unit="seconds",
        target=1 / 3,
        loads=_REDRIVEN,
        what="redrive of the 1 % of 100,000 messages that match against one full peek scan (at most 3 times as long)",
        ours=Side(label="redrive by match", open=_choosing),
        peer=Side(label="peek scan", open=_peeking),
    ),
    Row(
        name="looks-1m",
        unit="seconds",
        target=0.5,
        loads=_loads(1_000_000, 100_000),
        what="list, show and peek beside a backlog of 1,000,000 against one of 1,000 (at most twice as long)",
        ours=Side(label="backlog of 1,000,000", open=_looking(lambda load: load.crowd)),
        peer=Side(label="backlog of 1,000", open=_looking(lambda load: min(1_000, load.crowd))),
    ),
]


def main() -> None:
    """Redrive everything in the directory's file, and print by how many bytes this process grew meanwhile."""
    directory, wanted = Path(sys.argv[1]), int(sys.argv[2])
    with postroad.connect(ours.url(directory)) as backend:
        before = _peak_bytes()
        _check(redrive(backend, DEAD), wanted)
        print(_peak_bytes() - before)


def _peak_bytes() -> int:
    """The most memory this program has held; what `getrusage` tells is at first that of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) * 1_024


if __name__ == "__main__":
    main()
