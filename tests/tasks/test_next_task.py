"""The commit that ends a task takes the next one, when a child waits for it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.benches import APP, TENANT, Bench
from tests.tasks.processes import worker
from tests.waiting import eventually

from postroad import Backend, OutgoingMessage
from postroad.journal import TERMINAL, JournalEvent
from postroad.tasks import Reconciler, TaskRecords
from postroad.tasks.attempts import Attempt
from postroad.tasks.runner import TaskRunner

pytestmark = pytest.mark.slow

LASTING: dict[str, Any] = {"child_reuse": 10, "concurrency": 1}
SHORT: dict[str, Any] = {"visibility_extension": 1.0, "extension_interval": 0.3}


@pytest.fixture
def bench(on_sqlite: Backend) -> Bench:
    return Bench(on_sqlite)


def test_a_worker_asks_for_a_task_once_and_goes_on_with_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[object] = []
    handle = TaskRunner._handle

    def counted(runner: TaskRunner, delivery: Any) -> None:
        handled.append(delivery)
        handle(runner, delivery)

    monkeypatch.setattr(TaskRunner, "_handle", counted)
    handles = [bench.producer.submit("echo", {"n": n}) for n in range(5)]

    bench.work(**LASTING)

    assert len(handled) == 1
    for each in handles:
        assert bench.types(each.request_id) == ["Task Pending", "Task Processing Started", "Task Completed"]
        assert bench.state(each.request_id).attempt == 1


def test_a_next_message_that_cannot_simply_run_is_handled_like_any_other(bench: Bench) -> None:
    first = bench.producer.submit("echo")
    bench.backend.queue("tasks").send([OutgoingMessage("no task")])
    unknown = bench.producer.submit("ehco")
    ended = bench.producer.submit("echo")
    bench.producer.cancel(ended.request_id)
    failing = bench.producer.submit("fail-with", {"type": "ValueError"})
    last = bench.producer.submit("echo")

    bench.work(**LASTING)

    states = [bench.state(each.request_id).state for each in (first, unknown, ended, failing, last)]
    assert states == ["completed", "failed", "cancelled", "failed", "completed"]
    assert bench.backend.queue("tasks-dlq").stats().visible == 2


def test_an_error_in_taking_the_next_task_does_not_hold_up_the_end_of_the_last(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_along = Attempt.take_along
    tried: list[str] = []

    def failing(attempt: Attempt, *arguments: Any) -> list[JournalEvent]:
        tried.append(attempt.task.request_id)
        if len(tried) == 1:
            bench.backend.items().put("", b"")  # refused with an error of Postroad, inside the commit
        return take_along(attempt, *arguments)

    monkeypatch.setattr(Attempt, "take_along", failing)
    handles = [bench.producer.submit("echo", {"n": n}) for n in range(3)]

    bench.work(**LASTING)

    for each in handles:
        assert bench.types(each.request_id)[-2:] == ["Task Processing Started", "Task Completed"]
        assert bench.state(each.request_id).attempt == 1


def test_a_worker_killed_while_it_takes_the_next_task_has_not_ended_the_last(bench: Bench) -> None:
    first, second = bench.producer.submit("echo", {"n": 1}), bench.producer.submit("echo", {"n": 2})

    with worker(bench.backend.url, failpoints="worker.before_next=kill9", **LASTING, **SHORT) as running:
        running.wait(120)

    assert bench.types(first.request_id) == ["Task Pending", "Task Processing Started"]
    assert bench.types(second.request_id) == ["Task Pending"]
    held = TaskRecords(bench.backend).read(TENANT, second.request_id)
    assert held is not None
    assert (held.lease.token, held.lease.attempts) == (0, 0)
    bench.work(**SHORT)
    assert (bench.state(first.request_id).attempt, bench.state(second.request_id).attempt) == (2, 1)


def test_a_worker_killed_after_it_took_the_next_task_has_ended_the_last(bench: Bench) -> None:
    first, second = bench.producer.submit("echo", {"n": 1}), bench.producer.submit("echo", {"n": 2})

    with worker(bench.backend.url, failpoints="worker.after_spawn=kill9#2", **LASTING, **SHORT) as running:
        running.wait(120)

    assert bench.types(first.request_id) == ["Task Pending", "Task Processing Started", "Task Completed"]
    assert bench.types(second.request_id) == ["Task Pending", "Task Processing Started"]
    bench.work(**SHORT)
    assert (bench.state(second.request_id).state, bench.state(second.request_id).attempt) == ("completed", 2)
    assert Reconciler(bench.backend, tenant_id=TENANT, app=APP, stale_after=0).run_once() == 0


def test_many_workers_that_keep_dying_end_every_task_once(bench: Bench, tmp_path: Path) -> None:
    handles = [bench.producer.submit("note", {"notes": str(tmp_path / "notes"), "n": n}) for n in range(24)]
    patient = {**SHORT, "child_reuse": 5, "max_attempts": 10}

    def all_completed() -> bool:
        return all(bench.state(each.request_id).state == "completed" for each in handles)

    for place in ("worker.before_result=kill9#5", "worker.before_next=kill9#3", "worker.after_spawn=kill9#4"):
        with worker(bench.backend.url, failpoints=place, **patient) as one:
            with worker(bench.backend.url, failpoints=place, **patient) as other:
                # One of them may have done so much that nothing is left for the other to die of.
                eventually(lambda: {one.poll(), other.poll()} == {-signal.SIGKILL} or all_completed(), every=0.1)

    bench.work(**patient)

    for handle in handles:
        types = bench.types(handle.request_id)
        assert bench.state(handle.request_id).state == "completed"
        assert [each for each in types if each in TERMINAL] == ["Task Completed"]
        assert types.count("Task Processing Started") == bench.state(handle.request_id).attempt
