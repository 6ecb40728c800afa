"""What a producer, a worker or a scheduler was told survives a power cut, and a cut leaves no half of anything."""

from __future__ import annotations

import logging
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest
from tests.tasks.benches import APP, TENANT, Bench
from tests.waiting import eventually

import postroad
from postroad import Backend
from postroad.engine import disk
from postroad.journal import ATTEMPT_FAILED, PENDING, STARTED, TERMINAL, JournalEvent, every_event, task_history
from postroad.tasks import Scheduler, TaskHandle, TaskRegistry
from postroad.tasks.leases import Lease, TaskRecords
from postroad.testing import FakeClock
from postroad.testing.powerloss import Image, Promise, Recording, Sync, image, images, recorded

IMAGES = 150
ROUNDS = 8
START = datetime(2026, 11, 15, 12, tzinfo=UTC)
TICK = "schedule-beat-%Y%m%dT%H%M%SZ"


class Logged(logging.Handler):
    """Notes that the worker took a lease, or that it settled an attempt."""

    def __init__(self, record: Recording) -> None:
        super().__init__(logging.INFO)
        self._record = record
        self._times: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        found = re.match(r"task_(started|retried|completed|failed) request_id=(\S+)", record.getMessage())
        if found is not None:
            self._times[found[0]] += 1
            self._record.add(Promise(f"{found[1]} {found[2]} {self._times[found[0]]}"))


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A producer, a worker and a scheduler at the same time, while the log is copied into the file now and then."""
    monkeypatch.setattr(disk, "CHECKPOINT_PAGES", 60)
    with recorded(tmp_path) as record, postroad.connect(f"sqlite:///{tmp_path / 'p.db'}") as backend:
        with working(backend, record), ThreadPoolExecutor(6) as threads:
            for done in [
                *(threads.submit(produce, backend, record, tmp_path, number) for number in range(ROUNDS)),
                threads.submit(tick, backend, record),
            ]:
                done.result()
    return record


@contextmanager
def working(backend: Backend, record: Recording) -> Iterator[None]:
    """A worker of the backend whose log lines are promises."""
    logger, handler = logging.getLogger("postroad.tasks"), Logged(record)
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    worker = Bench(backend).worker(concurrency=3)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        yield
    finally:
        worker.stop()
        running.join()
        logger.removeHandler(handler)
        logger.setLevel(before)


def produce(backend: Backend, record: Recording, folder: Path, number: int) -> None:
    """Submit tasks that end well, end badly, are tried again, are cancelled, and wait for hours."""
    producer = Bench(backend).producer

    def submitted(*handles: TaskHandle[object]) -> None:
        for handle in handles:
            record.add(Promise(f"submitted {handle.request_id} 1"))

    notes = folder / f"notes-{number}"
    noted = producer.submit("note", {"notes": str(notes)}, request_id=f"note-{number}")
    submitted(noted)
    retried = producer.submit("retry-until", {"attempt": 2}, request_id=f"retry-{number}")
    submitted(retried)
    submitted(producer.submit("fail-with", {"type": "ValueError"}, request_id=f"fail-{number}"))
    submitted(*producer.submit_many([("echo", {"n": n}, f"echo-{number}-{n}") for n in range(4)]))
    late = producer.submit("echo", {}, request_id=f"late-{number}", delay=7_200)
    submitted(late)
    doomed = producer.submit("echo", {}, request_id=f"doomed-{number}", delay=600)
    submitted(doomed)
    assert doomed.cancel()
    record.add(Promise(f"completed {doomed.request_id} 1"))
    eventually(notes.exists)
    record.add(Promise(f"started {noted.request_id} 1"))
    retried.wait(timeout=120)
    record.add(Promise(f"completed {retried.request_id} 1"))


def tick(backend: Backend, record: Recording) -> None:
    """Let a schedule be due again and again."""
    clock, registry = FakeClock(START), TaskRegistry()
    registry.register(lambda input, ctx: None, "beat", every="1s", catch_up="all", queue="beats")
    scheduler = Scheduler(backend, registry=registry, clock=clock, tenant_id=TENANT, app=APP)
    scheduler.tick()
    for _ in range(3 * ROUNDS):
        clock.advance(2)
        assert scheduler.tick() == 2
        for seconds in (1, 0):
            tick = datetime.fromtimestamp(clock.now().timestamp() - seconds, UTC)
            record.add(Promise(f"submitted {tick:{TICK}} 1"))


class Left:
    """What a power cut left of the tasks."""

    def __init__(self, folder: Path, image: Image) -> None:
        image.write(folder)
        with postroad.connect(f"sqlite:///{folder / 'p.db'}") as backend:
            journal, items = backend.journal(), backend.items()
            self.leases = {name: held.lease for name, held in TaskRecords(backend).read_many(TENANT, "").items()}
            pending = every_event(journal, "GSI4", tenant=TENANT, event_type=PENDING)
            self.pending = Counter(event.entity_id for event in pending)
            self.histories = {name: task_history(journal, TENANT, name) for name in self.leases}
            self.put_off = {item.key.rpartition("#")[2] for item in items.scan(f"{TENANT}/DELAYED#", limit=1_000).items}
            self.schedules = items.scan(f"{TENANT}/SCHEDULE#").items
            connection = apsw.Connection(str(folder / "p.db"), flags=apsw.SQLITE_OPEN_READONLY)
            assert connection.pragma("integrity_check") == "ok"
            self.messages = Counter(
                re.search(rb'"requestId":"([^"]+)"', body)[1].decode()  # type: ignore[index]  # every body has one
                for (body,) in connection.execute("SELECT body FROM message")
            )
            connection.close()

    def check_units(self) -> None:
        """Assert that lease, events, message and item of each task belong together."""
        assert self.pending == Counter(list(self.leases))
        for name, lease in self.leases.items():
            self._check_task(name, lease, self.histories[name])
        assert set(self.messages) <= set(self.leases)
        for item in self.schedules:
            after = re.search(rb'"after":(\d+)', item.value)
            assert after is not None
            ticks = range(int(START.timestamp()) + 1, int(after[1]) + 1)
            assert {f"{datetime.fromtimestamp(each, UTC):{TICK}}" for each in ticks} == self._ticks()

    def _check_task(self, name: str, lease: Lease, history: list[JournalEvent]) -> None:
        ends = [str(event.event_id) for event in history if event.event_type in TERMINAL]
        assert ends == ([] if lease.outcome is None else [lease.outcome.event_id])
        tokens = [event.properties["token"] for event in history if event.event_type == STARTED]
        assert tokens == list(range(1, lease.token + 1))
        assert history[-1].event_type == lease.last_event_type
        waits = lease.due_at is not None
        assert (name in self.put_off) == waits
        if name.startswith("doomed"):
            return
        assert self.messages[name] == (0 if waits or lease.outcome is not None else 1)

    def check_promises(self, promised: frozenset[str]) -> None:
        """Assert that everything is there that was promised."""
        for what, name, times in (each.split() for each in promised):
            lease, types = self.leases[name], Counter(event.event_type for event in self.histories[name])
            if what in ("completed", "failed"):
                assert lease.outcome is not None
            elif what == "started":
                assert lease.token >= int(times)
            elif what == "retried":
                assert types[ATTEMPT_FAILED] >= int(times)

    def _ticks(self) -> set[str]:
        return {name for name in self.leases if name.startswith("schedule-")}


@pytest.mark.slow
def test_what_was_acknowledged_about_tasks_survives_a_power_cut_and_never_by_half(
    record: Recording, tmp_path: Path
) -> None:
    first = next(place for place, step in enumerate(record.steps) if isinstance(step, Promise))

    for cut in images(record.steps, IMAGES, random.Random(7), first=first):
        left = Left(tmp_path / "after", cut)

        left.check_units()
        left.check_promises(cut.promised)


def test_the_simulation_finds_an_end_that_was_never_synced(tmp_path: Path) -> None:
    with recorded(tmp_path, "NORMAL") as record:
        with postroad.connect(f"sqlite:///{tmp_path / 'p.db'}") as backend:
            submit_some(backend, record)
            end = len(record.steps)
    cut = next(cut for cut in (image(record, end, random.Random(seed)) for seed in range(99)) if cut.fate == "torn")

    left = Left(tmp_path / "after", cut)

    with pytest.raises((AssertionError, KeyError)):
        left.check_promises(cut.promised)


def test_the_simulation_finds_a_submission_of_several_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backend, "together", lambda backend, unit: unit())
    with recorded(tmp_path) as record, postroad.connect(f"sqlite:///{tmp_path / 'p.db'}") as backend:
        submit_some(backend, record)
    ends = [place for place, step in enumerate(record.steps) if isinstance(step, Sync)]

    with pytest.raises(AssertionError):
        for end in ends[-20:]:
            Left(tmp_path / "after", image(record, end, random.Random(7))).check_units()


def submit_some(backend: Backend, record: Recording) -> None:
    """Submit tasks one by one."""
    for number in range(10):
        handle = Bench(backend).producer.submit("echo", {}, request_id=f"echo-{number}")
        record.add(Promise(f"submitted {handle.request_id} 1"))
