"""`postroad up` runs the tasks of the modules it loads."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
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
def backend(tmp_path: Path) -> Iterator[postroad.Backend]:
    with postroad.connect(f"sqlite:///{tmp_path}/data.db") as opened:
        yield opened


@pytest.fixture
def producer(backend: postroad.Backend, tmp_path: Path) -> TaskProducer:
    (tmp_path / "shop.py").write_text(TASKS)
    return TaskProducer(backend, tenant_id="default", app="postroad")


def state(producer: TaskProducer, request_id: str) -> str:
    found = producer.status(request_id)
    assert found is not None
    return found.state


def test_tasks_run_fail_and_are_given_back_at_a_stop(start_up: StartUp, producer: TaskProducer) -> None:
    done, bad, long = (producer.submit(name, {"n": 4}).request_id for name in ("double", "reset", "sleep"))
    up = start_up("--load", "shop")

    eventually(lambda: (state(producer, done), state(producer, bad)) == ("completed", "failed"))
    eventually(lambda: state(producer, long) == "processing")
    code, _ = up.stop()

    assert code == 0
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


def test_an_operation_goes_on_after_its_server_was_killed(start_up: StartUp, producer: TaskProducer) -> None:
    for number in range(6):
        producer.submit("sleep", request_id=f"r{number}")
        producer.cancel(f"r{number}")
    up = start_up()
    headers = {"Authorization": f"Bearer {up.ready['token']}"}
    body = {"state": "cancelled", "rate": 2}
    answer = httpx.post(up.ready["url"] + "/tasks/retry", json=body, headers=headers, timeout=20)
    operation = f"/operations/{answer.json()['operation_id']}"
    eventually(lambda: up.get(operation).json()["moved"] >= 1)

    os.kill(up.parts()["server"]["pid"], signal.SIGKILL)
    eventually(lambda: up.get(operation).json()["state"] == "done")

    assert answer.status_code == 202
    states = [producer.status(f"r{number}") for number in range(6)]
    assert [None if each is None else (each.state, each.run) for each in states] == [("pending", 2)] * 6


def test_the_settings_of_tasks_apply(
    start_up: StartUp, backend: postroad.Backend, producer: TaskProducer, tmp_path: Path
) -> None:
    (tmp_path / "postroad.toml").write_text('[tasks]\nqueues = ["tasks", "slow"]\nchild_reuse = 5\n')
    slow = TaskProducer(backend, queue="slow", tenant_id="default", app="postroad")
    ids = [each.submit("double", {"n": 4}).request_id for each in (producer, slow)]
    start_up("--load", "shop")

    eventually(lambda: [state(producer, each) for each in ids] == ["completed", "completed"])
