"""Dispatchers in any number, woken often, late or never, begin each task once per run and finish each job once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.floor import TENANT, Floor
from tests.jobs.whole import run_the_example

import postroad
from postroad import Backend
from postroad.journal.states import every_event


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


@pytest.mark.slow
def test_a_job_of_hundreds_of_tasks_is_run_once_by_several_dispatchers(on_file: Floor) -> None:
    _run(on_file, _layers(4, 50), dispatchers=4)

    assert set(_pendings(on_file).values()) == {1}
    assert len(_pendings(on_file)) == 200
    assert len(on_file.events("j", "Job Completed")) == 1


def test_the_example_job_is_run_by_workers_and_dispatchers(backend: Backend) -> None:
    run_the_example(backend, wait=0.05)
