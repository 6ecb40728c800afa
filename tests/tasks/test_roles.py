"""Roles that fail run again; a thread that ends all the same ends the worker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest
from tests.tasks.benches import APP, TENANT, Bench
from tests.waiting import eventually

from postroad import OutgoingMessage
from postroad.errors import PostroadError, Unavailable
from postroad.jobs.dispatcher import worker_roles
from postroad.journal import JournalEvent, task_state
from postroad.queues import Delivery
from postroad.tasks.runner import TaskRunner
from postroad.tasks.threads import Poller, Role, RoleThreads, Shared

pytestmark = pytest.mark.slow


class Failing:
    """A duty that fails a number of times, and notes when it was done."""

    def __init__(self, failures: int, error: BaseException) -> None:
        self.failures = failures
        self.error = error
        self.done_at: list[float] = []

    def __call__(self) -> int:
        self.done_at.append(time.monotonic())
        if len(self.done_at) <= self.failures:
            raise self.error
        return 0


class Logged(logging.Handler):
    """Keeps the lines that tasks log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def of(self, *names: str) -> list[str]:
        """Which of these events were logged, in order."""
        return [name for line in self.lines for name in names if name in line]


@pytest.fixture
def logged() -> Iterator[Logged]:
    handler, logger = Logged(), logging.getLogger("postroad.tasks")
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.mark.parametrize("error", [Unavailable("the store does not answer"), KeyError("x")])
def test_a_role_that_raises_runs_again_after_a_pause_and_logs_each_change_once(
    error: Exception, logged: Logged
) -> None:
    failing, other = Failing(2, error), Failing(0, error)

    with RoleThreads([Role("failing", 0.0, failing), Role("other", 0.01, other)]):
        eventually(lambda: len(failing.done_at) > 5)

    assert failing.done_at[1] - failing.done_at[0] >= 0.5
    assert len(other.done_at) > 5
    changes = logged.of("worker_role_failed", "worker_role_recovered")
    assert changes == ["worker_role_failed", "worker_role_recovered"]


def test_a_role_that_takes_long_keeps_no_other_one_waiting() -> None:
    over, other = threading.Event(), Failing(0, KeyError())

    def slow() -> int:
        over.wait()
        return 0

    with RoleThreads([Role("slow", 0.0, slow), Role("other", 0.01, other)]):
        eventually(lambda: len(other.done_at) > 5)
        over.set()


def test_a_thread_of_roles_that_ends_is_told_of_and_raised() -> None:
    ended = threading.Event()

    with (
        pytest.raises(PostroadError, match="SystemExit"),
        RoleThreads([Role("exits", 0.0, Failing(9, SystemExit(0)))], ended=ended.set),
    ):
        assert ended.wait(120)


def test_a_role_that_fails_is_raised_when_nothing_else_was_done() -> None:
    failing, done = Role("failing", 0.0, Failing(9, Unavailable("no"))), Role("done", 0.0, lambda: 1)

    assert RoleThreads([failing, done]).once() == 1
    with pytest.raises(Unavailable):
        RoleThreads([failing]).once()


def test_an_odd_row_ends_no_role(bench: Bench, logged: Logged) -> None:
    now = int(time.time() * 1_000)
    for request_id in ("order:42", "r1"):
        event = JournalEvent.create(
            "Task Pending",
            tenant_id=TENANT,
            entity_id=request_id,
            app=APP,
            timestamp=now - 120_000,
            properties={"requestId": request_id, "name": "echo", "input": {}},
        )
        bench.backend.journal().append([event])

    def state(request_id: str) -> str | None:
        found = task_state(bench.backend.journal(), TENANT, request_id)
        return None if found is None else found.state

    with RoleThreads(worker_roles(bench.backend, tenant_id=TENANT, app=APP)):
        eventually(lambda: state("order:42") == "failed" and bench.backend.queue("tasks").stats().visible == 1)
        # The dispatcher still hears wake-ups.
        wake_ups = bench.backend.queue("tasks-dispatch")
        wake_ups.send([OutgoingMessage(b"no wake-up")])
        eventually(lambda: wake_ups.stats().visible + wake_ups.stats().in_flight == 0)

    bench.work()
    assert state("r1") == "completed"
    assert logged.of("worker_role_failed") == []


def test_a_receiver_that_fails_goes_on_and_logs_each_change_once(
    bench: Bench, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = bench.producer.submit("echo")
    failures = iter([KeyError("x"), Unavailable("no")])
    wait = Poller._wait

    def sometimes(receiver: Poller) -> float:
        if (error := next(failures, None)) is not None:
            raise error
        return wait(receiver)

    monkeypatch.setattr(Poller, "_wait", sometimes)
    bench.work()

    assert bench.state(handle.request_id).state == "completed"
    changes = logged.of("task_receive_failed", "task_receive_recovered")
    assert changes == ["task_receive_failed", "task_receive_recovered"]


def test_a_worker_whose_lane_ends_stops_with_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(runner: TaskRunner, shared: Shared, delivery: Delivery) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(TaskRunner, "handle", leave)
    bench.producer.submit("echo")

    with pytest.raises(PostroadError, match="SystemExit"):
        bench.worker().run()
