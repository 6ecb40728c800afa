"""A task that one worker does not know waits for another that does: a rolling deploy loses nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.tasks.benches import TENANT, Bench
from tests.tasks.processes import worker
from tests.waiting import eventually

from postroad import Backend, OutgoingMessage
from postroad.errors import ConfigurationError
from postroad.queues.markers import read_dead
from postroad.tasks import TaskRegistry, TaskWorker
from postroad.tasks.leases import TaskRecords
from postroad.tasks.verdicts import pause_while_unknown


@contextmanager
def old_worker(bench: Bench, **options: Any) -> Iterator[TaskWorker]:
    """A worker of the version before, which knows other tasks."""
    registry = TaskRegistry()
    registry.command("of-the-version-before", ["/bin/true"])
    old = bench.worker(imports=(), registry=registry, **options)
    running = threading.Thread(target=old.run)
    running.start()
    try:
        yield old
    finally:
        old.stop()
        running.join()


def was_handed_back(bench: Bench) -> bool:
    [message] = bench.backend.queue("tasks").peek()
    return message.receive_count > 0 and message.state == "delayed"


@pytest.mark.slow
def test_a_task_that_one_worker_does_not_know_is_run_by_another_that_does(on_sqlite: Backend) -> None:
    bench = Bench(on_sqlite)
    handle = bench.producer.submit("echo", {"n": 1})

    with old_worker(bench):
        eventually(lambda: was_handed_back(bench))
        with worker(on_sqlite.url):
            eventually(lambda: bench.state(handle.request_id).state == "completed")

    assert bench.types(handle.request_id) == ["Task Pending", "Task Processing Started", "Task Completed"]
    assert bench.state(handle.request_id).attempt == 1


@pytest.mark.slow
def test_an_unknown_name_is_logged_once_and_costs_no_attempt(bench: Bench) -> None:
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Lines(), logging.getLogger("postroad.tasks")
    logger.addHandler(handler)
    handles = [bench.producer.submit("echo", {"n": number}) for number in range(3)]

    with old_worker(bench):
        eventually(lambda: bench.backend.queue("tasks").stats().delayed == 3)
    logger.removeHandler(handler)

    assert len([line for line in lines if "task_unknown" in line]) == 1
    for handle in handles:
        held = TaskRecords(bench.backend).read(TENANT, handle.request_id)
        assert held is not None
        assert (held.lease.attempts, held.lease.outcome) == (0, None)


@pytest.mark.slow
def test_an_unknown_task_fails_with_the_nearest_name_when_its_grace_is_over(bench: Bench) -> None:
    handle = bench.producer.submit("ehco")
    watching = bench.worker(unknown_grace=0.5)
    running = threading.Thread(target=watching.run)

    running.start()
    eventually(lambda: bench.state(handle.request_id).state == "failed")
    watching.stop()
    running.join()

    state = bench.state(handle.request_id)
    assert (state.error, state.error_category) == ("unknown task 'ehco'; did you mean 'echo'?", "validation")
    assert bench.types(handle.request_id) == ["Task Pending", "Task Failed"]
    [letter] = bench.backend.queue("tasks-dlq").peek()
    dead = read_dead(letter.attributes)
    assert dead is not None
    assert dead.reason == "unknown task 'ehco'; did you mean 'echo'?"


def test_the_grace_of_a_task_with_a_delay_begins_when_the_delay_is_over(bench: Bench) -> None:
    handle = bench.producer.options(delay=1.5).submit("echo")

    with old_worker(bench, unknown_grace=1.0):
        eventually(lambda: was_handed_back(bench))

    assert bench.types(handle.request_id) == ["Task Pending"]


@pytest.mark.slow
def test_an_unknown_task_fails_at_once_where_nobody_waits(bench: Bench) -> None:
    handle = bench.producer.submit("no-such-task")

    bench.work()

    assert bench.state(handle.request_id).error == "unknown task 'no-such-task'"


@pytest.mark.slow
def test_an_illegal_name_fails_at_once(bench: Bench) -> None:
    queue = bench.backend.queue("tasks")
    queue.send([OutgoingMessage(b'{"requestId": "r1", "name": "os:system"}', {"tenantId": TENANT})])

    with old_worker(bench):
        eventually(lambda: bench.producer.status("r1") is not None)

    assert bench.state("r1").error == "name: 'os:system' is not the name of a task"


def test_a_task_that_was_cancelled_meanwhile_is_forgotten(bench: Bench) -> None:
    handle = bench.producer.submit("no-such-task")
    bench.producer.cancel(handle.request_id)

    with old_worker(bench):
        eventually(lambda: not bench.backend.queue("tasks").peek())

    assert bench.types(handle.request_id) == ["Task Pending", "Task Cancelled"]


@pytest.mark.parametrize("grace", [600.0, 43_200.0, 1.0])
def test_the_pauses_grow_and_stay_below_the_receives_that_the_queue_allows(grace: float) -> None:
    age, pauses = 0.0, list[float]()
    while (pause := pause_while_unknown(age, grace=grace)) is not None:
        pauses.append(pause)
        age += pause

    assert age == grace
    assert pauses[:-1] == sorted(pauses[:-1])
    assert len(pauses) < 60


@pytest.mark.parametrize("grace", [-1, float("nan"), "x", True, 43_201])
def test_a_grace_that_is_none_is_refused(grace: Any, bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="unknown_grace"):
        bench.worker(unknown_grace=grace)
