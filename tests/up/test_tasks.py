"""`postroad up` runs the tasks of the modules it loads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.up.conftest import StartUp
from tests.waiting import eventually

import postroad
from postroad.tasks import Schedules, TaskProducer

pytestmark = pytest.mark.slow

TASKS = """
import time
from postroad.tasks import task

@task("double")
def double(input, ctx):
    return 2 * input["n"]

@task("reset", max_attempts=1)
def reset(input, ctx):
    raise ConnectionResetError("gone")

@task("sleep")
def sleep(input, ctx):
    time.sleep(60)

@task("beat", every="1s")
def beat(input, ctx):
    return "beaten"
"""


@pytest.fixture
def producer(tmp_path: Path) -> Iterator[TaskProducer]:
    (tmp_path / "shop.py").write_text(TASKS)
    with postroad.connect(f"sqlite:///{tmp_path}/data.db") as backend:
        yield TaskProducer(backend, tenant_id="default", app="postroad")


def state(producer: TaskProducer, request_id: str) -> str:
    found = producer.status(request_id)
    assert found is not None
    return found.state


def test_tasks_run_fail_and_are_given_back_at_a_stop(start_up: StartUp, producer: TaskProducer) -> None:
    done, bad, long = (producer.submit(name, {"n": 4}).request_id for name in ("double", "reset", "sleep"))
    up = start_up("--load", "shop")

    eventually(lambda: (state(producer, done), state(producer, bad)) == ("completed", "failed"))
    eventually(lambda: state(producer, long) == "processing")
    started = time.monotonic()
    code, _ = up.stop()

    assert code == 0
    assert time.monotonic() - started < 10
    assert producer.history(long)[-1].event_type == "Task Interrupted"
    found = producer.status(done)
    assert found is not None
    assert found.output == 8


def test_tasks_run_by_schedule(start_up: StartUp, producer: TaskProducer, tmp_path: Path) -> None:
    up = start_up("--load", "shop")

    with postroad.connect(f"sqlite:///{tmp_path}/data.db") as backend:
        schedules = Schedules(backend, tenant_id="default", app="postroad")

        def completed() -> bool:
            last = [each.last_request_id for each in schedules.list_all()]
            return bool(last and last[0] and state(producer, last[0]) == "completed")

        eventually(completed)
    up.stop()


def test_without_tasks_nothing_is_taken_from_the_queue(start_up: StartUp, producer: TaskProducer) -> None:
    waiting = producer.submit("double", {"n": 4}).request_id
    up = start_up()

    assert up.parts()["worker"]["state"] == "running"
    up.stop()

    assert state(producer, waiting) == "pending"
