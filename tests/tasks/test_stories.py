"""What `why` tells about tasks: heartbeats in one line, lost workers, and tasks that wait for others of their job."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.tasks.benches import APP, TENANT, Bench

import postroad
from postroad.jobs import JobDispatcher, Jobs
from postroad.journal import HEARTBEAT, STARTED, Story, iso
from postroad.tasks import EventFactory, TaskRecords
from postroad.tasks.stories import task_story
from postroad.testing import FakeClock


class Workplace(Bench):
    """A bench whose clock stands still, and workers that take tasks and are never heard of again."""

    def __init__(self, clock: FakeClock, backend: postroad.Backend) -> None:
        super().__init__(backend)
        self.clock = clock
        self._records = TaskRecords(backend)

    def take(self, request_id: str, worker: str, *, beats: int = 0) -> None:
        """Let a worker take the task, beat so often and die."""
        held = self._records.read(TENANT, request_id)
        assert held is not None
        factory = EventFactory(app=APP, environment="dev", origin="sqs-worker", clock=self.clock, worker_id=worker)
        until = int(self.clock.now().timestamp()) + 45
        lease = held.lease.taken(owner=worker, run=1, until=until, now_ms=factory.now_ms())
        task = lease.task(TENANT, request_id)
        common: dict[str, Any] = {"effectiveUntil": until, "workerId": worker, "processId": 7}
        started = factory.event(STARTED, task, attemptNumber=lease.attempts, **common)
        self._records.write(TENANT, request_id, lease, [started], expect=held)
        for number in range(1, beats + 1):
            self.clock.advance(1)
            beat = factory.event(HEARTBEAT, task, heartbeatNumber=number, elapsedMs=1, memoryUsage={"rss": 1}, **common)
            self._records.record([beat])

    def story(self, request_id: str) -> Story:
        found = task_story(self.backend, TENANT, request_id)
        assert found is not None
        return found


@pytest.fixture
def workplace() -> Iterator[Workplace]:
    clock = FakeClock()
    with postroad.connect("memory://", clock=clock) as backend:
        yield Workplace(clock, backend)


def test_heartbeats_in_a_row_are_one_line(workplace: Workplace) -> None:
    workplace.producer.submit("echo", request_id="r")
    workplace.take("r", "w1", beats=12)
    last = workplace.last("r", "Task Heartbeat")

    steps = workplace.story("r").steps

    assert [step.what for step in steps] == ["Task Pending", "Task Processing Started", "Task Heartbeat"]
    assert steps[-1].detail is not None
    assert steps[-1].detail.startswith("12 heartbeats, the last at ")
    assert steps[-1].detail.endswith(f"{last.timestamp % 1_000:03}Z")
    assert steps[-1].by == "w1"


def test_one_heartbeat_is_told_as_it_is(workplace: Workplace) -> None:
    workplace.producer.submit("echo", request_id="r")
    workplace.take("r", "w1", beats=1)

    assert workplace.story("r").steps[-1].detail is None


def test_a_worker_that_was_lost_is_shown_when_its_lease_has_ended(workplace: Workplace) -> None:
    workplace.producer.submit("echo", request_id="r")
    workplace.take("r", "w1", beats=2)
    before = workplace.story("r")
    workplace.clock.advance(60)

    after = workplace.story("r")

    assert (before.verdict, before.steps[-1].what) == ("in_flight", "Task Heartbeat")
    assert (after.verdict, after.summary) == ("retrying", "task r, run 1: its worker w1 was lost")
    lost = after.steps[-1]
    assert (lost.what, lost.by, lost.ok) == ("lease_expired", "w1", False)
    assert lost.detail is not None
    assert lost.detail.startswith("the worker was lost: nothing was heard of it after")


def test_a_lost_worker_stays_in_the_story_after_the_next_one_finished(workplace: Workplace) -> None:
    workplace.producer.submit("echo", request_id="r")
    workplace.take("r", "w1", beats=3)
    workplace.clock.advance(60)
    workplace.take("r", "w2")
    workplace.producer.cancel("r")

    steps = workplace.story("r").steps

    assert [(step.what, step.by) for step in steps[1:]] == [
        ("Task Processing Started", "w1"),
        ("Task Heartbeat", "w1"),
        ("lease_expired", "w1"),
        ("Task Processing Started", "w2"),
        ("Task Cancelled", "producer"),
    ]


@pytest.fixture
def job(bench: Bench) -> Jobs:
    """A job `j`: b and c depend on a, d on both."""
    jobs = Jobs(bench.backend, tenant_id=TENANT, app=APP)
    jobs.submit_job(
        [
            {"taskId": "a", "name": "fail-with", "input": {"type": "ValueError"}},
            {"taskId": "b", "name": "echo", "dependsOn": ["a"]},
            {"taskId": "c", "name": "echo"},
            {"taskId": "d", "name": "echo", "dependsOn": ["b", "c"]},
        ],
        job_id="j",
    )
    return jobs


def told(bench: Bench, request_id: str) -> tuple[str, str, str]:
    story = task_story(bench.backend, TENANT, request_id)
    assert story is not None
    return story.verdict, story.summary.partition(": ")[2], story.next


def test_a_task_that_is_put_off_tells_until_when_and_who_sends_it(workplace: Workplace) -> None:
    due = workplace.clock.now() + timedelta(hours=2)
    workplace.producer.options(at=due, request_id="later").submit("echo")

    story = workplace.story("later")

    assert story.summary == f"task later, run 1: is put off until {iso(round(due.timestamp() * 1_000))}"
    assert story.next.endswith("postroad worker --roles scheduler")


@pytest.mark.usefixtures("job")
def test_a_task_that_waits_for_others_of_its_job_names_them(bench: Bench) -> None:
    story = task_story(bench.backend, TENANT, "j.d")

    assert told(bench, "j.b") == ("waiting", "waits for a (pending)", "it begins when a is completed")
    assert told(bench, "j.d") == (
        "waiting",
        "waits for b (waiting), c (pending)",
        "it begins when b, c are completed",
    )
    assert story is not None
    assert [step.what for step in story.steps] == ["Job Created"]
    assert [each.id for each in story.related] == ["j", "j.b", "j.c"]
    begun = task_story(bench.backend, TENANT, "j.c")
    assert begun is not None
    assert [(each.id, each.relation) for each in begun.related] == [("j", "caused_by"), ("j.d", "causes")]


@pytest.mark.usefixtures("job")
def test_a_task_behind_a_failed_one_is_blocked_and_tells_how_to_go_on(bench: Bench) -> None:
    bench.work()
    dispatcher = JobDispatcher(bench.backend, tenant_id=TENANT, app=APP)
    dispatcher.dispatch("j")

    assert told(bench, "j.b") == ("blocked", "waits for a (failed)", "run a again: postroad job resume j")
    assert told(bench, "j.d") == ("blocked", "waits for b (waiting)", "run a again: postroad job resume j")


@pytest.mark.usefixtures("job")
def test_a_task_that_no_job_has_is_not_known(bench: Bench) -> None:
    assert task_story(bench.backend, TENANT, "j.e") is None
    assert task_story(bench.backend, TENANT, "k.a") is None
