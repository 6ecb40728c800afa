"""A worker of several queues."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
from tests.tasks.benches import APP, TENANT, Bench, lines, working
from tests.waiting import eventually

from postroad.errors import ConfigurationError
from postroad.tasks import TaskProducer
from postroad.tasks.threads import Poller


def producer(bench: Bench, queue: str) -> TaskProducer:
    return TaskProducer(bench.backend, queue=queue, tenant_id=TENANT, app=APP)


def completed(bench: Bench, request_id: str) -> bool:
    return bench.state(request_id).state == "completed"


def test_one_worker_runs_the_tasks_of_all_its_queues(bench: Bench) -> None:
    handles = [producer(bench, queue).submit("echo", {"queue": queue}) for queue in ("tasks", "slow", "tasks", "slow")]

    bench.work(queue=("tasks", "slow"), concurrency=2)

    states = [bench.state(handle.request_id) for handle in handles]
    assert [(state.state, state.output["queue"]) for state in states] == [
        ("completed", queue) for queue in ("tasks", "slow", "tasks", "slow")
    ]


def test_a_retry_goes_back_to_the_queue_that_the_task_came_from(bench: Bench) -> None:
    handle = producer(bench, "slow").submit("fail-loudly", {"again": True, "until": 2})

    bench.work(queue=("tasks", "slow"))

    assert bench.state(handle.request_id).attempt == 2
    assert bench.state(handle.request_id).state == "completed"


def test_an_empty_queue_keeps_no_runner_from_a_full_one(bench: Bench, tmp_path: Path) -> None:
    notes, until = tmp_path / "notes", tmp_path / "until"
    with working(bench, queue=("tasks", "slow", "empty"), concurrency=2, wait=20):
        for _ in range(2):
            producer(bench, "slow").submit("wait-for-file", {"notes": str(notes), "until": str(until)})
        # Both runners have a task, although the pollers of two empty queues wait for some.
        eventually(lambda: len(lines(notes)) == 2)
        until.touch()


def test_one_runner_serves_two_queues(bench: Bench) -> None:
    with working(bench, queue=("tasks", "slow"), concurrency=1):
        for number in range(4):
            handle = producer(bench, ("tasks", "slow")[number % 2]).submit("echo")
            eventually(partial(completed, bench, handle.request_id))


def test_a_run_until_idle_ends_although_tasks_arrive_while_it_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = list[bool](), Poller._all_empty

    def late(poller: Poller) -> bool:
        found = look(poller)
        if poller._shared.queue_name == "slow":
            return found and len(looks) >= 2
        looks.extend([found] if found else [])
        if len(looks) == 2:
            # This poller has seen all queues empty for the last time, and the other one has not.
            for queue in ("slow", "tasks"):
                producer(bench, queue).submit("echo", {"queue": queue})
        return found

    monkeypatch.setattr(Poller, "_all_empty", late)
    running = threading.Thread(target=lambda: bench.work(queue=("tasks", "slow")), daemon=True)
    running.start()
    running.join(30)

    assert not running.is_alive()
    assert len(looks) >= 2


@pytest.mark.parametrize(("queue", "why"), [((), "none is named"), (("a", "a"), "a, a names a queue twice")])
def test_queues_that_are_not_distinct_are_refused(bench: Bench, queue: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"queue: {why}"):
        bench.worker(queue=queue)
