"""Jobs on the stores of one process, and what is refused before any store is asked."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.jobs.dispatcher_rules import DispatcherRules
from tests.jobs.floor import APP, SEED, TENANT, Floor
from tests.jobs.rules import JobRules

from postroad import Backend
from postroad.errors import InvalidInput, InvalidJob, UnknownTask
from postroad.jobs import Jobs
from postroad.jobs.dispatcher import worker_roles
from postroad.jobs.graph import Graph, GraphTask, read_tasks
from postroad.tasks import TaskRegistry


class TestJobs(JobRules):
    pass


class TestDispatchers(DispatcherRules):
    pass


def _tasks(count: int) -> list[dict[str, Any]]:
    return [{"taskId": f"t{number}", "name": "x"} for number in range(count)]


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        ([], "at least one task"),
        (None, "not a list"),
        ("ab", "not a list"),
        (_tasks(51), r"Too many tasks: 51 \(max 50\)"),
        ([{"taskId": "a", "name": "x"}, {"taskId": "a", "name": "x"}], "Duplicate taskId: a"),
        ([{"taskId": "a", "name": "x", "dependsOn": ["b"]}], 'Task a depends on "b" which does not exist'),
        ([{"taskId": "a", "name": "x", "dependsOn": ["a"]}], "Cycle detected involving: a$"),
        (
            [
                {"taskId": "b", "name": "x", "dependsOn": ["a"]},
                {"taskId": "a", "name": "x", "dependsOn": ["b"]},
                {"taskId": "c", "name": "x", "dependsOn": ["a"]},
                {"taskId": "r", "name": "x"},
            ],
            "Cycle detected involving: a, b$",
        ),
        ([{"taskId": "a", "name": "x", "dependsOn": "b"}], "not a list of task ids"),
        ([{"taskId": "a.b", "name": "x"}], "taskId"),
        ([{"taskId": "a" * 129, "name": "x"}], "taskId"),
        ([{"taskId": "a", "name": "os:system"}], r"tasks\[0\].name"),
        ([{"taskId": "a", "name": "x", "input": [1]}], r"tasks\[0\].input"),
        ([{"taskId": "a", "name": "x", "evil": 1}], r"tasks\[0\].evil"),
        ([1], "not an object"),
    ],
)
def test_a_graph_that_cannot_run_is_refused_and_nothing_is_written(floor: Floor, tasks: Any, text: str) -> None:
    with pytest.raises(InvalidJob, match=f"(?m){text}"):
        floor.jobs.submit_job(tasks, job_id="j")

    assert floor.jobs.job_status("j") is None
    assert floor.types("j") == []


def test_a_job_holds_ten_thousand_tasks_and_not_one_more() -> None:
    known = Graph(GraphTask(f"k{number}", "x") for number in range(9_999))

    assert len(read_tasks(_tasks(1), known)) == 1
    with pytest.raises(InvalidJob, match=r"Too many tasks: 10001 in one job \(max 10000\)"):
        read_tasks(_tasks(2), known)


@pytest.mark.parametrize("job_id", ["a.b", "", "a" * 121, "a#b", 7])
def test_a_job_id_that_cannot_be_one_is_refused(floor: Floor, job_id: Any) -> None:
    with pytest.raises(InvalidJob, match="jobId"):
        floor.jobs.submit_job(SEED, job_id=job_id)


@pytest.mark.parametrize("request_id", ["a b", "", "a" * 257, 7])
def test_a_request_that_cannot_be_one_is_refused(floor: Floor, request_id: Any) -> None:
    with pytest.raises(InvalidJob, match="requestId"):
        floor.jobs.submit_job(SEED, job_id="j", request_id=request_id)

    assert floor.jobs.job_status("j") is None


def test_with_a_registry_an_unknown_task_is_refused(backend: Backend) -> None:
    with pytest.raises(UnknownTask):
        Jobs(backend, tenant_id=TENANT, app=APP, registry=TaskRegistry()).submit_job(SEED)


def test_a_graph_can_be_read_and_drawn(floor: Floor) -> None:
    floor.jobs.submit_job(SEED, job_id="j")
    floor.complete("j", "task-A")

    text = floor.jobs.graph("j")
    assert "● task-A  scrape-store  completed" in text
    assert "· task-E  compile-result  waiting  after task-C, task-D" in text
    assert "t0 --> t2" in floor.jobs.graph("j", "mermaid")
    assert '"task-A" -> "task-C";' in floor.jobs.graph("j", "dot")
    with pytest.raises(InvalidInput, match="format"):
        floor.jobs.graph("j", "svg")  # type: ignore[arg-type]  # a wrong format is the point


def test_open_jobs_are_looked_at_every_half_minute_without_any_wake_up(backend: Backend) -> None:
    roles = {role.name: role.every for role in worker_roles(backend, tenant_id=TENANT, app=APP)}

    assert roles == {"dlq": 5.0, "scheduler": 0.1, "reconciler": 30.0, "jobs": 30.0, "dispatcher": 0.0, "health": 60.0}


def test_a_worker_of_several_queues_has_one_scheduler(backend: Backend) -> None:
    roles = Counter(role.name for role in worker_roles(backend, queue=["a", "b"], tenant_id=TENANT, app=APP))

    assert roles == {"scheduler": 1, "health": 1, "dlq": 2, "reconciler": 2, "jobs": 2, "dispatcher": 2}
