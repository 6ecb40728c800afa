"""Old events leave the journal in small steps; running tasks and open jobs stay whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.jobs.floor import APP, TENANT, Floor

import postroad
from postroad import Backend
from postroad.errors import ConfigurationError, InvalidInput
from postroad.journal import JournalEvent, every_event, tasks_by_state
from postroad.journal.maintenance import DAY_MS, Expiry, Pruned, prune, verify
from postroad.tasks import Reconciler
from postroad.testing import FakeClock

TASKS = [{"taskId": "a", "name": "step"}, {"taskId": "b", "name": "step", "dependsOn": ["a"]}]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backend]:
    monkeypatch.setenv("EVENTS_TTL_DAYS", "30")
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'tasks.db'}"
    with postroad.connect(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def floor(backend: Backend) -> Floor:
    """Jobs of every kind: over, failed, open."""
    floor = Floor(backend)
    for job_id in ("over", "failed", "open"):
        floor.jobs.submit_job(TASKS, job_id=job_id)
    floor.complete("over", "a", "b")
    floor.end("failed", "a", "Task Failed")
    floor.complete("open", "a")
    floor.wake()
    return floor


def now(clock: FakeClock) -> int:
    return int(clock.now().timestamp() * 1_000)


def left(floor: Floor) -> set[str]:
    return {event.entity_id for event in every_event(floor.backend.journal(), "PK", tenant=TENANT)}


def record(backend: Backend, clock: FakeClock, name: str, **given: Any) -> JournalEvent:
    event = JournalEvent.create(
        "Store Opened",
        tenant_id=TENANT,
        entity_type="STORE",
        entity_id=name,
        app=APP,
        clock=clock,
        **{"properties": {}, **given},
    )
    assert backend.journal().append([event])[0].ok
    return event


def test_what_is_over_goes_and_running_tasks_and_open_jobs_stay_whole(floor: Floor, clock: FakeClock) -> None:
    floor.producer.submit("step", request_id="waiting")
    floor.producer.submit("step", request_id="cancelled")
    floor.producer.cancel("cancelled")
    record(floor.backend, clock, "store")
    clock.advance(40 * 86_400)
    record(floor.backend, clock, "young")
    everything = len(list(every_event(floor.backend.journal(), "PK", tenant=TENANT)))
    totals: list[Pruned] = []

    pruned = prune(floor.backend.journal(), TENANT, before=now(clock) - 30 * DAY_MS, progress=totals.append)

    assert left(floor) == {"failed", "failed.a", "open", "open.a", "open.b", "waiting", "young"}
    assert pruned.removed + pruned.kept == everything - 1
    assert totals[-1] == pruned
    assert floor.states("open") == {"a": "completed", "b": "pending"}
    assert tasks_by_state(floor.backend.journal(), TENANT)["completed"] == ["open.a"]
    assert verify(floor.backend.journal(), TENANT).differences == []
    floor.end("open", "b", output=2)
    floor.wake()
    assert floor.status("open")["status"] == "completed"


def test_a_task_goes_as_a_whole_when_its_last_event_is_old(floor: Floor, clock: FakeClock) -> None:
    clock.advance(20 * 86_400)
    floor.end("open", "b", output=2)
    floor.wake()
    clock.advance(20 * 86_400)

    prune(floor.backend.journal(), TENANT, before=now(clock) - 30 * DAY_MS)
    assert floor.states("open") == {"a": "completed", "b": "completed"}

    clock.advance(20 * 86_400)
    prune(floor.backend.journal(), TENANT, before=now(clock) - 30 * DAY_MS)
    assert left(floor) == {"failed", "failed.a"}


def test_the_reconciler_obeys_the_ttl(floor: Floor, clock: FakeClock) -> None:
    reconciler = Reconciler(floor.backend, tenant_id=TENANT, app=APP)
    reconciler.run_once()
    assert "over" in left(floor)

    clock.advance(31 * 86_400)
    reconciler.run_once()

    assert left(floor) == {"failed", "failed.a", "open", "open.a", "open.b"}


def test_an_event_that_came_late_is_kept_from_its_arrival(backend: Backend, clock: FakeClock) -> None:
    record(backend, clock, "late", timestamp=now(clock) - 60 * DAY_MS)
    journal = backend.journal()

    assert Expiry(journal, TENANT).step(now(clock)) == 0
    clock.advance(31 * 86_400)
    assert Expiry(journal, TENANT).step(now(clock)) == 1


def test_a_sweep_takes_small_steps_and_passes_what_it_keeps(backend: Backend, clock: FakeClock) -> None:
    floor = Floor(backend)
    base = now(clock)
    for place in range(2_100):
        floor.producer.submit("step", request_id=f"w-{place}") if place % 100 == 0 else record(
            backend, clock, f"s-{place}", timestamp=base + place
        )
        if place % 100 == 0:
            clock.advance(0.1)
    running = [
        JournalEvent.create(
            "Task Pending",
            tenant_id=TENANT,
            entity_id="busy",
            app=APP,
            timestamp=base - 10_000 + number,
            properties={"requestId": "busy", "name": "step"},
        )
        for number in range(2_500)
    ]
    backend.journal().append(running)
    clock.advance(31 * 86_400)
    expiry = Expiry(backend.journal(), TENANT)

    removed = [expiry.step(now(clock)) for _ in range(4)]

    assert max(removed) <= 2_000
    assert removed[0] == 0
    assert sum(removed) == 2_100 - 21
    assert len(left(floor)) == 22


def test_blobs_of_removed_events_go_too(backend: Backend, clock: FakeClock) -> None:
    gone = record(backend, clock, "large", properties={"text": "x" * 300_000})
    clock.advance(40 * 86_400)
    kept = record(backend, clock, "large", properties={"text": "y" * 300_000})
    blobs = backend.blobs()
    assert blobs is not None

    prune(backend.journal(), TENANT, before=now(clock) - DAY_MS)

    latest = backend.journal().latest(TENANT, "STORE", "large")
    assert latest is not None
    assert (latest.event_id, latest.properties) == (kept.event_id, kept.properties)
    clock.advance(10)
    assert blobs.prune("events/", older_than=1) == 1, f"the blob of {gone.event_id} stayed"


def test_other_tenants_are_not_touched(backend: Backend, clock: FakeClock) -> None:
    record(backend, clock, "store")
    clock.advance(86_400)

    assert prune(backend.journal(), "other", before=now(clock)) == Pruned()
    assert prune(backend.journal(), TENANT, before=now(clock)) == Pruned(removed=1)


def test_without_a_ttl_nothing_goes_by_itself(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVENTS_TTL_DAYS", raising=False)
    with postroad.connect(f"sqlite:///{tmp_path / 'a.db'}", clock=clock) as backend:
        record(backend, clock, "store")
        clock.advance(4_000 * 86_400)

        assert Expiry(backend.journal(), TENANT).step(now(clock)) == 0


def test_the_rows_of_what_went_are_out_of_the_file(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "a.db"
    with postroad.connect(f"sqlite:///{path}", clock=clock) as backend:
        floor = Floor(backend)
        floor.jobs.submit_job(TASKS, job_id="over")
        floor.complete("over", "a", "b")
        clock.advance(86_400)
        prune(backend.journal(), TENANT, before=now(clock))

    with apsw.Connection(str(path)) as connection:
        counts = [connection.execute(f"SELECT count(*) FROM {name}").get for name in ("journal_event", "journal_task")]
    connection.close()
    assert counts == [0, 0]


@pytest.mark.parametrize("days", ["0", "x", "-1", "1.5"])
def test_a_ttl_that_is_none_is_refused_before_a_file_is_made(
    days: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTS_TTL_DAYS", days)

    with pytest.raises(ConfigurationError, match="EVENTS_TTL_DAYS"):
        postroad.connect(f"sqlite:///{tmp_path / 'a.db'}")

    assert list(tmp_path.iterdir()) == []


def test_a_moment_that_is_none_is_refused(backend: Backend) -> None:
    moment: Any = "yesterday"
    with pytest.raises(InvalidInput, match="before"):
        prune(backend.journal(), TENANT, before=moment)
