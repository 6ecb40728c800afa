"""Schedules and long delays on emulated AWS: claims in the items of the events table, runs through SQS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.tasks import scheduling
from tests.tasks.benches import APP, TENANT
from tests.waiting import eventually

import postroad
from postroad import Backend, failpoints
from postroad.errors import Unavailable
from postroad.journal import every_event
from postroad.tasks import (
    Scheduler,
    Schedules,
    TaskProducer,
    TaskRegistry,
    ensure_queues,
    scheduler as scheduler_module,
)
from postroad.testing import FakeClock

pytestmark = pytest.mark.aws
NOW = datetime.now(UTC)
DAYS = timedelta(days=1)


@pytest.fixture
def url(ministack_url: str, unique: Callable[[str], str]) -> str:
    return f"aws://us-east-1?endpoint_url={ministack_url}&stage={unique('stage')}"


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    with postroad.connect(url) as opened:
        opened.journal().init()
        ensure_queues(opened)
        yield opened


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    yield
    failpoints.load(None)


def nothing(input: Any, ctx: Any) -> None:
    """Do nothing."""


def scheduler(backend: Backend, clock: FakeClock, **options: Any) -> Scheduler:
    registry = TaskRegistry()
    registry.register(nothing, "nightly", **({"schedule": "0 3 * * *"} | options))
    return Scheduler(backend, registry=registry, clock=clock, tenant_id=TENANT, app=APP)


def runs(backend: Backend) -> list[str]:
    pending = every_event(backend.journal(), "GSI4", tenant=TENANT, event_type="Task Pending")
    return [event.entity_id for event in pending]


def owed(backend: Backend, name: str = "nightly") -> list[int]:
    item = backend.items().get(f"{TENANT}/SCHEDULE#{name}")
    return [] if item is None else msgspec.json.decode(item.value).get("owed", [])


def test_each_tick_is_one_run_when_eight_workers_tick_at_once(backend: Backend) -> None:
    clock = FakeClock(NOW)
    workers = [scheduler(backend, clock) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(Scheduler.tick, workers))
        for day in (1, 2):
            clock.set(NOW + day * DAYS)
            assert sum(threads.map(Scheduler.tick, workers)) == 1

    assert len(runs(backend)) == len(set(runs(backend))) == 2
    assert owed(backend) == []


@pytest.mark.parametrize("place", ["after_claim", "after_submit"])
def test_a_tick_that_was_claimed_by_a_process_that_died_is_run_once(backend: Backend, url: str, place: str) -> None:
    with scheduling.scheduler(url, failpoints=f"scheduler.{place}=kill9#1") as started:
        assert started.wait() == -9
    (tick,) = owed(backend, "beat")
    assert len(runs(backend)) == (0 if place == "after_claim" else 1)

    Scheduler(backend, registry=scheduling.TASKS, tenant_id=TENANT, app=APP).tick()

    found = runs(backend)
    assert found[0] == f"schedule-beat-{datetime.fromtimestamp(tick, UTC):%Y%m%dT%H%M%SZ}"
    assert len(found) == len(set(found))
    assert owed(backend, "beat") == []


def one_that_dies_after_its_claim(backend: Backend) -> tuple[Scheduler, Scheduler]:
    """Return a scheduler that has claimed a run and not submitted it, and another one."""
    clock = FakeClock(NOW)
    dying, other = scheduler(backend, clock), scheduler(backend, clock)
    dying.tick()
    other.tick()
    clock.set(NOW + DAYS)
    failpoints.load("scheduler.after_claim=raise")
    with pytest.raises(Unavailable):
        dying.tick()
    failpoints.load(None)
    return dying, other


def test_another_worker_that_runs_already_submits_what_a_dead_one_claimed(backend: Backend) -> None:
    dying, other = one_that_dies_after_its_claim(backend)

    assert owed(backend) != []
    assert other.tick() == 1
    assert dying.tick() == 0
    assert len(runs(backend)) == 1


def test_a_worker_gives_another_one_time_to_submit_what_it_claimed(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "_PATIENCE_SECONDS", 0.5)
    _, other = one_that_dies_after_its_claim(backend)
    look = other.role().run_once

    assert [look(), look()] == [0, 0]
    assert runs(backend) == []
    eventually(lambda: look() == 1)
    assert len(runs(backend)) == 1


def test_what_was_missed_is_caught_up_on_and_a_pause_is_kept(backend: Backend) -> None:
    clock = FakeClock(NOW)
    scheduler(backend, clock, catch_up="all").tick()

    clock.set(NOW + 3 * DAYS)
    assert scheduler(backend, clock, catch_up="all").tick() == 3
    schedules = Schedules(backend, tenant_id=TENANT, app=APP)
    schedules.pause("nightly")
    clock.set(NOW + 5 * DAYS)

    assert scheduler(backend, clock, catch_up="all").tick() == 0
    assert schedules.resume("nightly").paused is False
    assert schedules.run("nightly").last_request_id in runs(backend)


def test_a_task_with_a_long_delay_is_sent_when_it_is_due_and_not_before(backend: Backend) -> None:
    clock = FakeClock(datetime.now(UTC))
    producer = TaskProducer(backend, tenant_id=TENANT, app=APP)
    one, other = (Scheduler(backend, registry=TaskRegistry(), clock=clock, tenant_id=TENANT, app=APP) for _ in range(2))
    producer.submit("echo", {"n": 1}, request_id="late", delay=7_200)
    assert one.tick() == 0

    # A look shortly before leaves the rest to the queue.
    clock.advance(7_200 - 5)
    assert (one.tick(), other.tick()) == (1, 0)

    queue = backend.queue(f"{backend.stage_prefix}tasks")
    found: list[Any] = []

    def received() -> bool:
        found.extend(queue.receive(wait=1))
        return bool(found)

    eventually(received)
    assert [delivery.attributes["requestId"] for delivery in found] == ["late"]
    assert backend.items().scan(f"{TENANT}/DELAYED#").items == ()


def test_a_task_that_was_put_off_and_sent_by_a_process_that_died_is_received_once_more_at_most(
    backend: Backend,
) -> None:
    clock = FakeClock(datetime.now(UTC))
    TaskProducer(backend, tenant_id=TENANT, app=APP).submit("echo", request_id="late", delay=1_000)
    one = Scheduler(backend, registry=TaskRegistry(), clock=clock, tenant_id=TENANT, app=APP)
    clock.advance(1_001)
    failpoints.load("scheduler.after_send=raise")
    with pytest.raises(Unavailable):
        one.tick()
    failpoints.load(None)

    # The lease says that it was sent.
    assert one.tick() == 0
    assert backend.items().scan(f"{TENANT}/DELAYED#").items == ()
    assert backend.queue(f"{backend.stage_prefix}tasks").stats().visible == 1
