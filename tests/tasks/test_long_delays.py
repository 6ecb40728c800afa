"""Delays that are longer than a queue can hold a message back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.benches import APP, TENANT

import postroad
from postroad import Backend
from postroad.errors import Conflict, InvalidTask, Unavailable
from postroad.tasks import Reconciler, Scheduler, TaskMessage, TaskProducer, TaskRegistry, submissions
from postroad.tasks.submissions import Submissions
from postroad.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime(2026, 11, 15, 12, tzinfo=UTC))


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Backend]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'tasks.db'}"
    with postroad.connect(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def producer(backend: Backend) -> TaskProducer:
    return TaskProducer(backend, tenant_id=TENANT, app=APP)


@pytest.fixture
def scheduler(backend: Backend) -> Scheduler:
    return Scheduler(backend, registry=TaskRegistry(), tenant_id=TENANT, app=APP)


def waiting(backend: Backend, queue: str = "tasks") -> int:
    """How many messages a worker could receive."""
    return backend.queue(queue).stats().visible


def put_off(backend: Backend) -> int:
    """How many tasks wait in items."""
    return len(backend.items().scan(f"{TENANT}/DELAYED#").items)


@pytest.mark.parametrize("delay", [901, 7_200, 31_536_000])
def test_a_task_with_a_long_delay_is_sent_when_it_is_due_and_once(
    backend: Backend, clock: FakeClock, producer: TaskProducer, scheduler: Scheduler, delay: int
) -> None:
    others = Scheduler(backend, registry=TaskRegistry(), tenant_id=TENANT, app=APP)
    producer.submit("echo", {"n": 1}, request_id="late", delay=delay)

    clock.advance(delay - 1)
    assert (scheduler.tick(), others.tick(), waiting(backend)) == (0, 0, 0)
    state = producer.status("late")
    assert state is not None
    assert state.state == "pending"
    clock.advance(1)

    assert (scheduler.tick(), others.tick(), waiting(backend)) == (1, 0, 1)
    assert put_off(backend) == 0
    (delivery,) = backend.queue("tasks").receive(max_messages=10)
    assert b'"n":1' in delivery.body


def test_a_delay_that_a_queue_can_hold_needs_no_scheduler(backend: Backend, producer: TaskProducer) -> None:
    producer.submit("echo", delay=900)

    assert put_off(backend) == 0
    assert backend.queue("tasks").stats().delayed == 1


@pytest.mark.parametrize("delay", [-1, 31_536_001, float("nan"), float("inf"), "366d"])
def test_a_delay_beyond_a_year_is_refused(backend: Backend, producer: TaskProducer, delay: Any) -> None:
    with pytest.raises(InvalidTask, match=r"delay: .* is not from 0 to 31536000 seconds, a year") as refused:
        producer.submit("echo", delay=delay)

    assert refused.value.field == "delay"
    assert put_off(backend) == 0


def test_a_producer_that_submits_at_a_time_does_so_however_late_it_submits(
    backend: Backend, clock: FakeClock, producer: TaskProducer
) -> None:
    at_noon = producer.options(at=clock.now() + timedelta(seconds=600))

    clock.advance(500)
    at_noon.submit("echo")
    at_noon.submit_many([("echo", {})])
    at_noon.submit("echo", delay="5m")
    at_noon.options(delay=200).submit("echo")
    clock.advance(100)

    stats = backend.queue("tasks").stats()
    assert (stats.visible, stats.delayed) == (2, 2)


def test_the_reconciler_leaves_it_alone(backend: Backend, clock: FakeClock, producer: TaskProducer) -> None:
    producer.submit("echo", request_id="late", delay=7_200)

    for _ in range(4):
        clock.advance(1_000)
        assert Reconciler(backend, tenant_id=TENANT, app=APP).run_once() == 0

    assert waiting(backend) == 0


def test_the_same_request_again_is_the_same_run_at_its_first_time(
    backend: Backend, clock: FakeClock, producer: TaskProducer, scheduler: Scheduler
) -> None:
    first = producer.submit("echo", request_id="late", delay=7_200)
    clock.advance(60)
    again = producer.submit("echo", request_id="late", delay=7_200)
    with pytest.raises(Conflict):
        producer.submit("echo", {"n": 2}, request_id="late", delay=7_200)

    clock.advance(7_140)

    assert (first.created, again.created) == (True, False)
    assert (scheduler.tick(), waiting(backend), put_off(backend)) == (1, 1, 0)


def test_a_task_that_was_cancelled_is_never_sent_and_can_be_retried(
    backend: Backend, clock: FakeClock, producer: TaskProducer, scheduler: Scheduler
) -> None:
    producer.submit("echo", request_id="late", delay=7_200)
    assert producer.cancel("late")

    producer.retry("late")
    assert waiting(backend) == 1
    clock.advance(7_200)

    assert (scheduler.tick(), waiting(backend), put_off(backend)) == (0, 1, 0)


def test_a_large_input_waits_in_a_blob(
    backend: Backend, clock: FakeClock, producer: TaskProducer, scheduler: Scheduler
) -> None:
    producer.submit("echo", {"text": "x" * 700_000}, request_id="large", delay=7_200)

    clock.advance(7_200)

    assert (scheduler.tick(), waiting(backend), put_off(backend)) == (1, 1, 0)


def test_a_task_whose_blob_is_gone_fails_and_says_so(
    backend: Backend, clock: FakeClock, producer: TaskProducer, scheduler: Scheduler
) -> None:
    producer.submit("echo", {"text": "x" * 700_000}, request_id="large", delay=7_200)
    blobs = backend.blobs()
    assert blobs is not None
    clock.advance(7_200)
    blobs.prune("delays/", older_than=0)

    scheduler.tick()

    state = producer.status("large")
    assert state is not None
    assert (state.state, state.error_category) == ("failed", "validation")
    assert "gone from the blobs" in str(state.error)
    assert put_off(backend) == 0


def test_a_task_goes_to_the_queue_it_was_submitted_to(backend: Backend, clock: FakeClock, scheduler: Scheduler) -> None:
    TaskProducer(backend, queue="slow", tenant_id=TENANT, app=APP).submit("echo", delay=1_000)
    clock.advance(1_000)

    scheduler.tick()

    assert (waiting(backend, "slow"), waiting(backend)) == (1, 0)


def test_one_that_cannot_be_sent_does_not_hold_up_the_others_and_is_tried_again(
    backend: Backend, clock: FakeClock, producer: TaskProducer, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        producer.submit("echo", request_id=f"late-{number}", delay=1_000 + number)
    clock.advance(2_000)
    resend, broken = Submissions.resend, True

    def sometimes(submissions: Submissions, submission: Any, held: Any) -> bool:
        if submission.message.request_id == "late-0" and broken:
            raise Unavailable("no")
        return resend(submissions, submission, held)

    monkeypatch.setattr(Submissions, "resend", sometimes)
    with pytest.raises(Unavailable):
        scheduler.tick()
    assert waiting(backend) == 2

    broken = False
    assert (scheduler.tick(), waiting(backend), put_off(backend)) == (1, 3, 0)


def test_many_that_are_due_at_once_are_sent_together_and_a_broken_one_alone_is_left(
    backend: Backend, clock: FakeClock, producer: TaskProducer, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(120):
        producer.submit("echo", request_id=f"late-{number}", delay=1_000)
    clock.advance(1_000)
    resend = Submissions.resend

    def sometimes(submissions: Submissions, submission: Any, held: Any) -> bool:
        if submission.message.request_id == "late-7":
            raise Unavailable("no")
        return resend(submissions, submission, held)

    monkeypatch.setattr(Submissions, "resend", sometimes)
    with pytest.raises(Unavailable):
        scheduler.tick()

    assert (waiting(backend), put_off(backend)) == (119, 1)


def test_the_rest_of_a_submission_that_died_is_kept_for_an_hour_and_then_removed(
    backend: Backend, clock: FakeClock, scheduler: Scheduler
) -> None:
    now = int(clock.now().timestamp() * 1_000)
    message = TaskMessage(request_id="late", name="echo")
    submissions.put_off(backend, TENANT, message, queue="tasks", due_at=now + 1_000_000)

    # The lease is written after the item, so it may still come.
    clock.advance(1_100)
    assert (scheduler.tick(), put_off(backend)) == (0, 1)
    clock.advance(3_600)

    assert (scheduler.tick(), put_off(backend), waiting(backend)) == (0, 0, 0)


def test_the_role_looks_when_the_next_one_is_due(
    backend: Backend, clock: FakeClock, producer: TaskProducer, scheduler: Scheduler
) -> None:
    look = scheduler.role().run_once
    assert look() == 0
    producer.submit("echo", delay=1_000)

    clock.advance(999)
    assert look() == 0
    clock.advance(1)

    assert look() == 1


def test_a_clock_that_is_set_back_by_years_holds_up_no_later_task(
    clock: FakeClock, producer: TaskProducer, scheduler: Scheduler
) -> None:
    look = scheduler.role().run_once
    clock.step(4 * 31_536_000)
    assert look() == 0
    clock.step(-4 * 31_536_000)
    producer.submit("echo", delay=1_000)

    clock.advance(1_000)

    assert look() == 1
