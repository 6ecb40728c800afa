"""Rows of topologies: plans that grow with their queues only, applies that cost a plan, and the audit file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import postroad
from benchmarks.emulator import REGION, running, version
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.sqs import CREDENTIALS, counted_requests
from postroad.operations import AuditLog
from postroad.queues import QueueSpec
from postroad.topology import QueueDecl, Topology, apply, chat_topology, plan

FEW, MANY = 100, 1_000
_GROWTH = 15
_SECOND = 1.5
_READS = 3.0
_APPENDS = 200


def _queues(count: int) -> Topology:
    return Topology("bench", tuple(QueueDecl(QueueSpec(f"orders-{number}")) for number in range(count)))


def _applied(count: Callable[[Load], int], work: Callable[[Topology, postroad.Backend], None]) -> Open:
    """A side that does the work on a file in which all the queues were made."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        topology = _queues(count(load))
        with postroad.connect(f"sqlite:///{directory / 'bench.db'}") as backend:
            apply(topology, backend)
            yield Opened(lambda: _timed(lambda: work(topology, backend)))

    return opened


def _plan(topology: Topology, backend: postroad.Backend) -> None:
    if not plan(topology, backend).empty:
        raise WrongResult("a plan of what is there already has something to do")


def _apply(topology: Topology, backend: postroad.Backend) -> None:
    if apply(topology, backend).applied:
        raise WrongResult("a second apply wrote something")


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def _asking(directory: Path, load: Load) -> Iterator[Opened]:
    """Requests for each resource of a plan on AWS."""
    topology = chat_topology("rtchat", "bench")
    with ExitStack() as stack:
        endpoint = stack.enter_context(running(directory))
        told = {**CREDENTIALS, "POSTROAD_AUDIT_LOG": str(directory / "audit.jsonl")}
        stack.enter_context(mock.patch.dict(os.environ, told))
        backend = stack.enter_context(postroad.connect(f"aws://{REGION}?endpoint_url={endpoint}"))
        apply(topology, backend)

        def run() -> float:
            with counted_requests() as seen:
                _plan(topology, backend)
            return len(seen) / len(topology.resources)

        yield Opened(run)


def _appending(records: Callable[[Load], int]) -> Open:
    """A side that appends to an audit file which already holds records."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        log = AuditLog(directory / "audit.jsonl")
        log.append("purge", "orders", {"purged": 1})
        # What lies before the last record is never read: copies of it make a long file quickly.
        log.path.write_bytes(log.path.read_bytes() * records(load))
        yield Opened(lambda: _APPENDS / _timed(lambda: _append(log)))

    return opened


def _append(log: AuditLog) -> None:
    for number in range(_APPENDS):
        log.append("purge", "orders", {"purged": number})


_SIZES = Loads(
    full=Load(messages=MANY, crowd=MANY), quick=Load(messages=MANY, crowd=MANY), smallest=Load(messages=20, crowd=20)
)
_RECORDS = Loads(
    full=Load(messages=_APPENDS, crowd=100_000),
    quick=Load(messages=_APPENDS, crowd=100_000),
    smallest=Load(messages=_APPENDS, crowd=100),
)

ROWS = [
    Row(
        name="topology-plan-1000",
        unit="seconds",
        target=1 / _GROWTH,
        loads=_SIZES,
        what=f"plan of 1,000 queues that are there against one of 100 (at most {_GROWTH} times as long)",
        ours=Side(label="1,000 queues", open=_applied(lambda load: load.crowd, _plan)),
        peer=Side(label="100 queues", open=_applied(lambda load: min(FEW, load.crowd), _plan)),
    ),
    Row(
        name="topology-second-apply",
        unit="seconds",
        target=1 / _SECOND,
        loads=_SIZES,
        what=f"a second apply of 1,000 queues against a plan of them (at most {_SECOND} times as long)",
        ours=Side(label="second apply", open=_applied(lambda load: load.crowd, _apply)),
        peer=Side(label="plan", open=_applied(lambda load: load.crowd, _plan)),
    ),
    Row(
        name="topology-aws-reads",
        unit="ratio",
        target=1.0,
        loads=_SIZES,
        what="HTTP requests for each resource in a plan of the chat topology on AWS (fewer is better)",
        ours=Side(label="postroad", package="postroad", needs=version, open=_asking),
        peer=limit("limit of 3", _READS),
    ),
    Row(
        name="audit-append",
        unit="per_second",
        target=0.8,
        loads=_RECORDS,
        what="appends to an audit file of 100,000 records against one of a single record",
        ours=Side(label="100,000 records", open=_appending(lambda load: load.crowd)),
        peer=Side(label="1 record", open=_appending(lambda _: 1)),
    ),
]
