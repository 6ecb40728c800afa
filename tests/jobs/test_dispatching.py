"""Dispatchers in any number, woken often, late or never, begin each task once per run and finish each job once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.floor import APP, SEED, TENANT, Floor
from tests.jobs.store_tasks import PAGE
from tests.jobs.whole import run_the_example

import postroad
from postroad import Backend
from postroad.errors import OverflowMismatch
from postroad.journal.port import every_event
from postroad.operations import why
from postroad.tasks import TaskWorker
from postroad.tasks.health import HealthCheck

pytestmark = pytest.mark.slow


@pytest.fixture
def on_file(tmp_path: Path) -> Iterator[Floor]:
    with postroad.connect(f"sqlite:///{tmp_path / 'jobs.db'}") as backend:
        yield Floor(backend)


def _pendings(floor: Floor) -> Counter[tuple[str, int]]:
    found = every_event(floor.backend.journal(), "GSI4", tenant=TENANT, event_type="Task Pending")
    return Counter((event.entity_id, event.properties["run"]) for event in found)


def _layers(count: int, width: int) -> list[list[dict[str, Any]]]:
    """Layers of tasks, each task waiting for two of the layer before."""
    layers = []
    for layer in range(count):
        tasks = []
        for place in range(width):
            before = [f"l{layer - 1}-{(place + step) % width}" for step in range(2)] if layer else []
            tasks.append({"taskId": f"l{layer}-{place}", "name": "x", "dependsOn": before})
        layers.append(tasks)
    return layers


def _run(floor: Floor, layers: list[list[dict[str, Any]]], *, dispatchers: int) -> None:
    """Add the layers, then end every task that is begun, with its event doubled and shuffled among dispatchers."""
    chance = random.Random(3)
    first, *rest = layers
    floor.jobs.submit_job(first, job_id="j")
    for layer in rest:
        floor.jobs.add_tasks("j", layer)
    crews = [floor.another_dispatcher() for _ in range(dispatchers)]
    with ThreadPoolExecutor(dispatchers) as threads:
        while started := floor.started():
            floor.sleep_through()
            events = [floor.end("j", task_id) for task_id in started] * 2
            chance.shuffle(events)
            list(threads.map(lambda each: crews[each[0] % dispatchers].handle(each[1]), enumerate(events)))


def test_doubled_and_shuffled_events_begin_each_task_once(on_file: Floor) -> None:
    _run(on_file, _layers(4, 10), dispatchers=4)

    assert set(_pendings(on_file).values()) == {1}
    assert len(_pendings(on_file)) == 40
    assert len(on_file.events("j", "Job Completed")) == 1


def test_a_job_of_a_thousand_tasks_is_run_once_by_several_dispatchers(on_file: Floor) -> None:
    _run(on_file, _layers(20, 50), dispatchers=4)

    assert set(_pendings(on_file).values()) == {1}
    assert len(_pendings(on_file)) == 1_000
    assert len(on_file.events("j", "Job Completed")) == 1


def test_a_blob_that_is_gone_hides_no_state(on_file: Floor, tmp_path: Path) -> None:
    on_file.jobs.submit_job(SEED, job_id="j")
    on_file.end("j", "task-A", output=PAGE)
    blobs = [path for path in tmp_path.rglob("*-payload.json*") if path.is_file()]

    for path in blobs:
        path.unlink()

    assert len(blobs) == 1
    assert on_file.states("j")["task-A"] == "completed"
    assert HealthCheck(on_file.backend, tenant_id=TENANT, app=APP).check().summary["totalProcessing"] == 0
    assert why(on_file.backend, "j.task-A", tenant=TENANT, app=APP).verdict == "completed"
    *others, ended = on_file.of_task("j", "task-A")
    assert [event.overflow_error for event in others] == [None] * len(others)
    assert "there is no blob" in (ended.overflow_error or "")
    with pytest.raises(OverflowMismatch):
        on_file.producer.status("j.task-A")
    # What depends on the output is not begun with none; another job goes on.
    on_file.jobs.submit_job(SEED, job_id="k")
    on_file.end("k", "task-A", output=1)
    on_file.sleep_through()
    on_file.dispatcher.reconcile()
    assert on_file.states("j")["task-C"] == "waiting"
    assert on_file.states("k")["task-C"] == "pending"


def test_the_example_job_is_run_by_workers_and_dispatchers(backend: Backend) -> None:
    run_the_example(backend, wait=0.05)


def test_a_task_that_no_worker_knows_fails_as_a_task_of_its_job(floor: Floor) -> None:
    floor.jobs.submit_job([{"taskId": "a", "name": "nobody-knows-it"}], job_id="j")

    TaskWorker(floor.backend, imports=("tests.jobs.store_tasks",), tenant_id=TENANT, app=APP).run(until_idle=True)

    failed = floor.of_task("j", "a")[-1]
    assert (failed.event_type, failed.properties["errorCategory"]) == ("Task Failed", "validation")
    assert (failed.properties["jobId"], failed.properties["taskId"], failed.properties["run"]) == ("j", "a", 1)
    assert floor.dispatcher.handle(failed).failed_task == "a"
