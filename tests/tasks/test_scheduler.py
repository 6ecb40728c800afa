"""The scheduler: one run for each tick, whoever ticks, whatever was missed and whoever dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.tasks import scheduling
from tests.tasks.benches import APP, TENANT
from tests.waiting import eventually

import postroad
from postroad import Backend
from postroad.errors import NotFound, Unavailable
from postroad.journal import every_event
from postroad.tasks import (
    Schedule,
    Scheduler,
    Schedules,
    TaskProducer,
    TaskRegistry,
    TaskWorker,
    schedule_records,
    scheduler as scheduler_module,
)
from postroad.tasks.schedule_records import read_all
from postroad.testing import FakeClock

START = datetime(2026, 11, 15, 12, tzinfo=UTC)
Register = Callable[..., Scheduler]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Backend]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'tasks.db'}"
    with postroad.connect(url, clock=clock) as opened:
        yield opened


def nothing(input: Any, ctx: Any) -> None:
    """Do nothing."""


def scheduler(backend: Backend, **schedules: dict[str, Any]) -> Scheduler:
    """A scheduler of a process that has these tasks."""
    registry = TaskRegistry()
    for name, options in schedules.items():
        registry.register(nothing, name, **options)
    return Scheduler(backend, registry=registry, tenant_id=TENANT, app=APP)


def runs(backend: Backend) -> list[str]:
    """The request ids of every run that was submitted, in order."""
    pending = every_event(backend.journal(), "GSI4", tenant=TENANT, event_type="Task Pending")
    return [event.entity_id for event in pending]


def operations(backend: Backend) -> Schedules:
    return Schedules(backend, tenant_id=TENANT, app=APP)


def break_submissions(patch: pytest.MonkeyPatch, is_broken: Callable[[str], bool]) -> None:
    """Let no task be submitted for whose name `is_broken` says so, alone or with others."""
    submit, submit_many = TaskProducer.submit, TaskProducer.submit_many

    def alone(producer: TaskProducer, name: str, *given: Any, **options: Any) -> Any:
        if is_broken(name):
            raise Unavailable("no")
        return submit(producer, name, *given, **options)

    def together(producer: TaskProducer, calls: Any) -> Any:
        if any(is_broken(name) for name, *_ in calls):
            raise Unavailable("no")
        return submit_many(producer, calls)

    patch.setattr(TaskProducer, "submit", alone)
    patch.setattr(TaskProducer, "submit_many", together)


NIGHTLY = {"nightly": {"schedule": "0 3 * * *"}}


def test_each_tick_is_one_run_however_many_workers_there_are(backend: Backend, clock: FakeClock) -> None:
    workers = [scheduler(backend, **NIGHTLY) for _ in range(3)]
    assert [each.tick() for each in workers] == [0, 0, 0]

    for _ in range(2):
        clock.advance(86_400)
        assert sum(each.tick() for each in workers) == 1

    assert runs(backend) == ["schedule-nightly-20261116T030000Z", "schedule-nightly-20261117T030000Z"]
    assert backend.queue("tasks").stats().visible == 2


def test_the_run_of_a_tick_is_an_ordinary_task(backend: Backend, clock: FakeClock) -> None:
    one = scheduler(backend, **NIGHTLY)
    one.tick()
    clock.set(datetime(2026, 11, 16, 3, tzinfo=UTC))

    one.tick()

    producer = TaskProducer(backend, tenant_id=TENANT, app=APP)
    (pending,) = producer.history("schedule-nightly-20261116T030000Z")
    assert (pending.properties["name"], pending.properties["input"]) == ("nightly", {})


@pytest.mark.parametrize(
    ("catch_up", "days"), [("none", []), ("one", [20]), ("all", [16, 17, 18, 19, 20])], ids=["none", "one", "all"]
)
def test_a_restart_catches_up_on_what_was_missed_as_the_schedule_says(
    backend: Backend, clock: FakeClock, catch_up: str, days: list[int]
) -> None:
    options = {"nightly": {"schedule": "0 3 * * *", "catch_up": catch_up}}
    scheduler(backend, **options).tick()

    clock.advance(5 * 86_400)
    again = scheduler(backend, **options)

    assert again.tick() == len(days)
    assert runs(backend) == [f"schedule-nightly-202611{day}T030000Z" for day in days]
    # And it goes on with the next one.
    clock.set(datetime(2026, 11, 21, 3, tzinfo=UTC))
    assert again.tick() == 1


def test_more_missed_ticks_than_one_claim_holds_are_all_run(backend: Backend, clock: FakeClock) -> None:
    options = {"often": {"every": "1m", "catch_up": "all"}}
    scheduler(backend, **options).tick()

    clock.advance(3 * 3_600 + 30)

    assert scheduler(backend, **options).tick() == 180
    assert len(set(runs(backend))) == 180


def test_a_schedule_that_was_seen_first_now_has_missed_nothing(backend: Backend, clock: FakeClock) -> None:
    assert scheduler(backend, often={"every": "10m", "catch_up": "all"}).tick() == 0
    clock.advance(599)
    assert scheduler(backend, often={"every": "10m", "catch_up": "all"}).tick() == 0
    clock.advance(1)
    assert scheduler(backend, often={"every": "10m", "catch_up": "all"}).tick() == 1


def test_a_clock_that_is_set_back_repeats_no_tick(backend: Backend, clock: FakeClock) -> None:
    one = scheduler(backend, often={"every": "10m"})
    one.tick()
    clock.advance(600)
    one.tick()

    clock.step(-3_600)
    assert one.tick() == 0
    clock.step(3_600)

    assert one.tick() == 0
    assert len(runs(backend)) == 1


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_clock_that_was_far_ahead_does_not_stop_a_schedule_for_so_long(
    backend: Backend, clock: FakeClock, restarted: bool
) -> None:
    one = scheduler(backend, **NIGHTLY)
    one.tick()
    clock.step(365 * 86_400)
    assert one.role().run_once() == 1

    clock.step(-365 * 86_400)
    one = scheduler(backend, **NIGHTLY) if restarted else one
    assert one.role().run_once() == 0
    clock.advance(86_400)

    assert one.role().run_once() == 1
    assert runs(backend) == ["schedule-nightly-20261116T030000Z", "schedule-nightly-20271115T030000Z"]


def test_a_clock_that_jumps_ahead_is_a_gap_that_is_caught_up_on(backend: Backend, clock: FakeClock) -> None:
    one = scheduler(backend, often={"every": "10m"}, each={"every": "10m", "catch_up": "all"})
    one.tick()

    clock.step(3_600)

    assert one.tick() == 1 + 6


def test_a_paused_schedule_runs_no_more_until_it_is_resumed(backend: Backend, clock: FakeClock) -> None:
    one, other = scheduler(backend, **NIGHTLY), scheduler(backend, **NIGHTLY)
    one.tick()
    other.tick()

    paused = operations(backend).pause("nightly")
    clock.advance(5 * 86_400)
    assert [one.tick(), other.tick()] == [0, 0]
    resumed = operations(backend).resume("nightly")

    assert (paused.paused, paused.next_at) == (True, None)
    assert (resumed.paused, resumed.next_at) == (False, datetime(2026, 11, 21, 3, tzinfo=UTC))
    # What the pause skipped was not missed.
    assert [one.tick(), other.tick()] == [0, 0]
    clock.advance(86_400)
    assert one.tick() + other.tick() == 1
    assert runs(backend) == ["schedule-nightly-20261121T030000Z"]


def test_a_pause_outlives_the_workers(backend: Backend, clock: FakeClock) -> None:
    scheduler(backend, **NIGHTLY).tick()
    operations(backend).pause("nightly")

    clock.advance(86_400)

    assert scheduler(backend, **NIGHTLY).tick() == 0
    assert scheduler(backend, nightly={"schedule": "0 4 * * *"}).tick() == 0
    assert operations(backend).list_all()[0].paused


def test_a_run_on_request_is_one_more_and_shifts_nothing(backend: Backend, clock: FakeClock) -> None:
    one = scheduler(backend, **NIGHTLY)
    one.tick()

    shown = operations(backend).run("nightly")
    clock.advance(86_400)
    one.tick()

    assert shown.last_at == START
    assert shown.last_request_id is not None
    assert runs(backend) == [shown.last_request_id, "schedule-nightly-20261116T030000Z"]


def test_schedules_are_listed_with_their_next_and_last_runs(backend: Backend, clock: FakeClock) -> None:
    one = scheduler(backend, nightly={"schedule": "0 3 * * *", "tz": "Europe/Athens"}, often={"every": "10m"})
    one.tick()
    clock.advance(600)
    one.tick()

    nightly, often = operations(backend).list_all()

    assert (nightly.name, nightly.task, nightly.schedule, nightly.tz) == (
        "nightly",
        "nightly",
        "0 3 * * *",
        "Europe/Athens",
    )
    assert (nightly.last_at, nightly.last_request_id) == (None, None)
    assert nightly.next_at == datetime(2026, 11, 16, 1, tzinfo=UTC)
    assert often.schedule == "every 10m"
    assert often.last_at == clock.now()
    assert often.last_request_id == "schedule-often-20261115T121000Z"


@pytest.mark.parametrize("verb", ["pause", "resume", "run"])
@pytest.mark.parametrize("name", ["nigtly", "", "\n", "x" * 2_000])
def test_a_schedule_that_is_not_there_is_not_found(backend: Backend, verb: str, name: str) -> None:
    scheduler(backend, **NIGHTLY).tick()

    with pytest.raises(NotFound) as refused:
        getattr(operations(backend), verb)(name)

    assert refused.value.nearest == ("nightly" if name == "nigtly" else None)


def test_a_new_definition_takes_over_and_begins_with_its_next_tick(backend: Backend, clock: FakeClock) -> None:
    old = scheduler(backend, **NIGHTLY)
    old.tick()
    clock.advance(86_400)

    new = scheduler(backend, nightly={"schedule": "0 1 * * *", "catch_up": "all"})

    assert new.tick() == 0
    # A worker of the old version follows the new one.
    clock.set(datetime(2026, 11, 17, 1, tzinfo=UTC))
    assert old.tick() + new.tick() == 1
    clock.set(datetime(2026, 11, 17, 3, tzinfo=UTC))
    assert old.tick() + new.tick() == 0
    assert runs(backend) == ["schedule-nightly-20261117T010000Z"]


def test_a_task_that_lost_its_schedule_runs_by_itself_no_more(backend: Backend, clock: FakeClock) -> None:
    old = scheduler(backend, **NIGHTLY)
    old.tick()

    scheduler(backend, nightly={}).tick()
    clock.advance(86_400)

    assert old.tick() == 0
    assert operations(backend).list_all() == []


@pytest.mark.parametrize("change", [{"schedule": "0 4 * * *"}, {}], ids=["changed", "removed"])
def test_a_definition_wins_over_a_worker_of_an_older_version_that_writes_meanwhile(
    backend: Backend, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    scheduler(backend, **NIGHTLY).tick()

    def overtaken(*given: Any) -> Any:
        found = read_all(*given)
        operations(backend).run("nightly")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(schedule_records, "read_all", overtaken)
        scheduler(backend, nightly=change).tick()

    assert [each.schedule for each in operations(backend).list_all()] == list(change.values())


def test_a_task_has_its_runs_in_its_own_queue(backend: Backend, clock: FakeClock) -> None:
    one = scheduler(backend, nightly={"schedule": "0 3 * * *", "queue": "slow"})
    one.tick()

    clock.advance(86_400)

    assert one.tick() == 1
    operations(backend).run("nightly")
    assert (backend.queue("slow").stats().visible, backend.queue("tasks").stats().visible) == (2, 0)


def test_a_worker_without_the_task_leaves_its_schedule_alone(backend: Backend, clock: FakeClock) -> None:
    scheduler(backend, **NIGHTLY).tick()

    clock.advance(86_400)

    assert scheduler(backend, other={"every": "1d"}).tick() == 0
    assert [each.name for each in operations(backend).list_all()] == ["nightly", "other"]
    assert scheduler(backend, **NIGHTLY).tick() == 1


def test_a_schedule_that_this_machine_cannot_read_holds_nothing_up(backend: Backend, clock: FakeClock) -> None:
    foreign = {"task": "far", "schedule": {"cron": "0 3 * * *", "tz": "Mars/Olympus"}, "queue": "tasks", "after": 0}
    for name, value in {"far": msgspec.json.encode(foreign), "broken": b"{"}.items():
        backend.items().put(f"{TENANT}/SCHEDULE#{name}", value)
    one = scheduler(backend, **NIGHTLY)
    one.tick()

    clock.advance(86_400)

    assert one.tick() == 1
    assert [each.name for each in operations(backend).list_all()] == ["nightly"]
    assert [each.name for each in operations(backend).page()[0]] == ["nightly"]


def test_a_definition_replaces_what_this_machine_cannot_read(backend: Backend, clock: FakeClock) -> None:
    backend.items().put(f"{TENANT}/SCHEDULE#nightly", b"{")
    one = scheduler(backend, **NIGHTLY)
    one.tick()

    clock.advance(86_400)

    assert one.tick() == 1


def test_a_tick_that_was_submitted_by_hand_holds_nothing_up(backend: Backend, clock: FakeClock) -> None:
    one = scheduler(backend, nightly={"schedule": "0 3 * * *"}, later={"schedule": "0 3 * * *"})
    one.tick()
    producer = TaskProducer(backend, tenant_id=TENANT, app=APP)
    producer.submit("other", {"n": 1}, request_id="schedule-later-20261116T030000Z")

    clock.advance(86_400)

    assert one.tick() == 1
    clock.advance(86_400)
    assert one.tick() == 2


def test_an_error_of_one_schedule_does_not_hold_up_the_others(
    backend: Backend, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = scheduler(backend, **{f"task-{number}": {"every": "1d"} for number in range(120)})
    one.tick()
    broken = True
    break_submissions(monkeypatch, lambda name: name == "task-7" and broken)
    clock.advance(86_400)
    with pytest.raises(Unavailable):
        one.tick()
    assert len(runs(backend)) == 119

    broken = False
    assert one.tick() == 1
    assert len(set(runs(backend))) == 120


def test_the_role_tries_what_failed_again_after_a_pause_and_logs_it_once(
    backend: Backend, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(scheduler_module, "log_event", lambda event, **fields: logged.append(event))
    look = scheduler(backend, good={"every": "1d"}, bad={"every": "1d"}).role().run_once
    look()
    tried = list[float]()

    def sometimes(name: str) -> bool:
        if name == "bad":
            tried.append(time.monotonic())
        return name == "bad" and len(tried) < 4

    break_submissions(monkeypatch, sometimes)
    clock.advance(86_400)

    # Both are first tried in one commit.
    assert look() == 1
    assert look() == 0
    assert runs(backend) == ["schedule-good-20261116T000000Z"]
    eventually(lambda: look() == 1)
    assert len(tried) == 4
    assert tried[2] - tried[1] >= 0.2
    assert logged == ["schedule_failed"]


def test_a_store_that_does_not_answer_fails_the_role_and_nothing_is_lost(
    backend: Backend, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = scheduler(backend, **{f"task-{number}": {"every": "1d"} for number in range(9)}).role().run_once
    look()
    clock.advance(86_400)

    with monkeypatch.context() as patch:
        break_submissions(patch, lambda name: True)
        with pytest.raises(Unavailable):
            look()

    done = 0

    def all_done() -> bool:
        nonlocal done
        done += look()
        return done == 9

    eventually(all_done)
    assert len(set(runs(backend))) == 9


def test_the_schedules_of_a_worker_are_those_that_its_children_found(on_sqlite: Backend) -> None:
    worker = TaskWorker(on_sqlite, registry=scheduling.TASKS, tenant_id=TENANT, app=APP, wait=0.05)
    assert worker.tasks() is None

    worker.run(until_idle=True)

    found = worker.tasks()
    assert found is not None
    assert {name: (each.schedule, each.queue) for name, each in found.items()} == {
        "beat": (Schedule(every=1, catch_up="all"), None)
    }


@pytest.mark.slow
def test_four_processes_run_each_second_once_even_when_they_are_killed(on_sqlite: Backend) -> None:
    with ExitStack() as stack:
        started = [stack.enter_context(scheduling.scheduler(on_sqlite.url)) for _ in range(4)]
        for number, victim in enumerate(started[:3]):
            eventually(lambda number=number: len(runs(on_sqlite)) >= 2 * (number + 1))  # type: ignore[misc]
            victim.kill()
        enough = len(runs(on_sqlite)) + 2
        eventually(lambda: len(runs(on_sqlite)) >= enough)

    found = runs(on_sqlite)
    assert len(found) == len(set(found))
    seconds = [datetime.strptime(each, "schedule-beat-%Y%m%dT%H%M%SZ") for each in found]
    assert seconds == [seconds[0] + timedelta(seconds=number) for number in range(len(seconds))]
    assert on_sqlite.queue("tasks").stats().visible == len(found)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["after_claim", "after_submit"])
def test_a_tick_whose_scheduler_was_killed_is_run_by_the_next_one(on_sqlite: Backend, place: str) -> None:
    with scheduling.scheduler(on_sqlite.url, failpoints=f"scheduler.{place}=kill9#1") as started:
        assert started.wait() == -9
    at = time.time()

    Scheduler(on_sqlite, registry=scheduling.TASKS, tenant_id=TENANT, app=APP).tick()

    found = runs(on_sqlite)
    seconds = [datetime.strptime(each, "schedule-beat-%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) for each in found]
    assert seconds[0].timestamp() <= at
    assert seconds == [seconds[0] + timedelta(seconds=number) for number in range(len(seconds))]
