"""The journal on the embedded engine: appends beside bare inserts, and everything beside itself at two sizes."""

from __future__ import annotations

import random
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import Mock, patch

import apsw

import postroad
from benchmarks import ours
from benchmarks.frame import Durability, Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.journal_life import Life
from postroad.engine import disk
from postroad.engine.disk import CHECKPOINT_PAGES
from postroad.engine.file import WRITER_CACHE_KIB, make_file, open_file
from postroad.journal import AppendResult, Journal, JournalEvent, task_state
from postroad.journal.port import Entry, place_of
from postroad.journal.sqlite import SCHEMA

BATCH = 100
FILL_BATCH = 1_000
FEW = 1_000
_SCOPE = "INSERT INTO journal_scope (id, name) VALUES (?, ?)"
_EVENT = """
INSERT INTO journal_event (tenant, entity, app, kind, place, received_ms, ttl, crc, body)
VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?)
"""
_TASK = "INSERT OR REPLACE INTO journal_task VALUES (?, 1, 1, 1, ?, ?, ?)"
Run = Callable[[Journal, Life, int], float]


def _standing(run: Run, events: Callable[[Load], int], *, writes: bool = True) -> Open:
    """A side that writes to or reads a journal which already holds events."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        life = Life()
        with postroad.connect(ours.url(directory)) as backend:
            journal = backend.journal()
            for first in range(0, events(load), FILL_BATCH):
                _append(journal, life.events(min(FILL_BATCH, events(load) - first)))
            durability = (lambda: _durability(journal, life, directory)) if writes else None
            yield Opened(lambda: run(journal, life, load.messages), durability)

    return opened


def _append(journal: Journal, events: Sequence[JournalEvent]) -> None:
    _check(journal.append(events))


def _check(results: Iterable[AppendResult]) -> None:
    if not all(result.ok and not result.duplicate for result in results):
        raise WrongResult("an append failed")


def _appending(journal: Journal, life: Life, messages: int) -> float:
    """Append batches; events per second."""
    batches = [life.events(BATCH) for _ in range(max(1, messages // BATCH))]
    results: list[AppendResult] = []
    started = time.perf_counter()
    for batch in batches:
        results += journal.append(batch)
    seconds = time.perf_counter() - started
    _check(results)
    found = journal.query("PK", tenant=life.tenant, start=batches[0][0].timestamp, limit=1000).events
    if [event.event_id for event in found[:BATCH]] != [event.event_id for event in batches[0]]:
        raise WrongResult("what was appended is not what is read")
    return len(batches) * BATCH / seconds


def _asking(quantile: Callable[[list[float]], float], ask: Callable[[Journal, Life], None]) -> Run:
    """Ask again and again; the seconds of one question, the middle one or one of the slowest."""

    def run(journal: Journal, life: Life, messages: int) -> float:
        times = []
        for _ in range(messages):
            started = time.perf_counter()
            ask(journal, life)
            times.append(time.perf_counter() - started)
        return quantile(times)

    return run


def _state(journal: Journal, life: Life) -> None:
    request_id = random.choice(life.finished)
    state = task_state(journal, life.tenant, request_id)
    if state is None or state.state != "completed" or state.request_id != request_id:
        raise WrongResult(f"{request_id} is {state}")


def _page(journal: Journal, life: Life) -> None:
    index, asked = random.choice(life.questions)
    page = journal.query(index, tenant=life.tenant, start=random.choice(life.times), limit=100, **asked)
    if len(page.events) != 100 or page.cursor is None:
        raise WrongResult(f"{index}: a page of {len(page.events)}")


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def _bare(*, made_before: bool) -> Open:
    """A loop of the inserts that an append makes, one synced commit for each batch; JSON in it, or made beforehand."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        life, numbers = Life(), dict[str, int]()
        make_file(directory / "bare.db")
        with closing(open_file(directory / "bare.db", cache_kib=WRITER_CACHE_KIB)) as db:
            db.execute(SCHEMA.steps[0])
            db.wal_autocheckpoint(CHECKPOINT_PAGES)

            def run() -> float:
                batches = [life.events(BATCH) for _ in range(max(1, load.messages // BATCH))]
                made = [_rows(batch, numbers) for batch in batches] if made_before else []
                started = time.perf_counter()
                for number, batch in enumerate(batches):
                    _insert(db, made[number] if made_before else _rows(batch, numbers))
                return len(batches) * BATCH / (time.perf_counter() - started)

            yield Opened(run, lambda: Durability(journal=str(db.pragma("journal_mode")), synchronous="FULL"))

    return opened


Rows = dict[str, list[tuple[object, ...]]]


def _rows(events: Sequence[JournalEvent], numbers: dict[str, int]) -> Rows:
    """What the events become in the tables."""
    rows: Rows = {_SCOPE: [], _EVENT: [], _TASK: []}
    for event in events:
        names = [event.tenant_id, event.entity_id, event.app, event.event_type]
        for name in names:
            if name not in numbers:
                numbers[name] = len(numbers) + 1
                rows[_SCOPE].append((numbers[name], f"{event.tenant_id}#TASK#{name}"))
        body, place = Entry.of(event).body, place_of(event)
        rows[_EVENT].append((*(numbers[name] for name in names), place, event.timestamp, zlib.crc32(body), body))
    # A heartbeat leaves the state of its task as it is.
    latest = {event.entity_id: event.event_type for event in events if event.event_type != "Task Heartbeat"}
    for entity, kind in latest.items():
        done = kind == "Task Completed"
        rows[_TASK].append((numbers[entity], "completed" if done else "processing", 1, int(done)))
    return rows


def _insert(db: apsw.Connection, batch: Rows) -> None:
    db.execute("BEGIN IMMEDIATE")
    for statement, rows in batch.items():
        for row in rows:
            db.execute(statement, row)
    db.execute("COMMIT")


def _durability(journal: Journal, life: Life, directory: Path) -> Durability:
    """Whether an append returned only after a sync of the log, which is what FULL does inside the commit."""
    with patch.object(disk, "to_disk", Mock(wraps=disk.to_disk)) as syncs:
        _append(journal, life.events(1))
    path = str((directory / ours.FILE).resolve())
    modes = {str(each.pragma("journal_mode")) for each in apsw.connections() if each.filename == path}
    return Durability(journal="/".join(sorted(modes)), synchronous="FULL" if syncs.call_count else "NORMAL")


def _sizes(messages: int) -> Loads:
    return Loads(
        full=Load(messages=messages, crowd=1_000_000),
        quick=Load(messages=messages, crowd=100_000),
        smallest=Load(messages=100, crowd=2_000),
    )


def _growth(name: str, what: str, run: Run, *, unit: str, target: float, messages: int) -> Row:
    """The same work on a large journal and on a small one."""
    return Row(
        name=name,
        unit=unit,  # type: ignore[arg-type]  # one of the units
        target=target,
        loads=_sizes(messages),
        what=f"{what} with 1,000,000 events in the journal against 1,000",
        ours=Side(label="1,000,000 events", open=_standing(run, lambda load: load.crowd, writes=run is _appending)),
        peer=Side(label="1,000 events", open=_standing(run, lambda load: FEW, writes=run is _appending)),
    )


ROWS = [
    Row(
        name="journal-append",
        unit="per_second",
        target=0.5,
        what="append in batches of 100, durable, beside a bare loop that writes the same events into the same tables",
        ours=Side(label="journal.append", open=_standing(_appending, lambda load: FEW)),
        peer=Side(label="bare inserts", open=_bare(made_before=False)),
        loads=Loads(full=Load(messages=20_000), quick=Load(messages=5_000), smallest=Load(messages=100)),
        note="checks, the fold of states, results and the sharing of the file are on our side only",
    ),
    Row(
        name="journal-append-rows",
        unit="per_second",
        target=None,
        what="the same beside inserts of rows that were made beforehand, their JSON included",
        ours=Side(label="journal.append", open=_standing(_appending, lambda load: FEW)),
        peer=Side(label="bare inserts of rows", open=_bare(made_before=True)),
        loads=Loads(full=Load(messages=20_000), quick=Load(messages=5_000), smallest=Load(messages=100)),
    ),
    _growth(
        "journal-append-1m", "append in batches of 100", _appending, unit="per_second", target=0.8, messages=10_000
    ),
    _growth(
        "journal-state-1m-p50",
        "task_state, the median",
        _asking(statistics.median, _state),
        unit="seconds",
        target=0.5,
        messages=2_000,
    ),
    _growth(
        "journal-state-1m-p99",
        "task_state, the 99th percentile",
        _asking(_p99, _state),
        unit="seconds",
        target=0.33,
        messages=2_000,
    ),
    _growth(
        "journal-query-1m-p50",
        "query of 100 events, the median",
        _asking(statistics.median, _page),
        unit="seconds",
        target=0.5,
        messages=1_000,
    ),
    _growth(
        "journal-query-1m-p99",
        "query of 100 events, the 99th percentile",
        _asking(_p99, _page),
        unit="seconds",
        target=0.33,
        messages=1_000,
    ),
]
