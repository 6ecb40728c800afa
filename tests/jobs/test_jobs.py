"""Jobs run their graph in order, tell failures once, and can be extended, resumed and cancelled."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.jobs.floor import APP, SEED, TENANT, Floor

from postroad import Backend
from postroad.errors import Conflict, InvalidInput, InvalidJob, NotFound, PostroadError, Unavailable, UnknownTask
from postroad.jobs import Jobs
from postroad.journal import AppendResult, JournalEvent
from postroad.tasks import TaskRegistry


def chain(*task_ids: str) -> list[dict[str, Any]]:
    """Tasks of which each waits for the one before."""
    return [
        {"taskId": task_id, "name": "step", "dependsOn": list(task_ids[place - 1 : place] if place else ())}
        for place, task_id in enumerate(task_ids)
    ]


def test_the_job_of_the_seed_runs_in_the_order_of_its_graph(floor: Floor) -> None:
    created = floor.jobs.submit_job(SEED, job_id="job-456", request_id="req-789")

    assert (created.job_id, created.status, created.total_tasks) == ("job-456", "created", 5)
    assert (created.root_tasks, created.created) == (["task-A", "task-B"], True)
    assert floor.events("job-456")[0].properties == {
        "jobId": "job-456", "tasks": SEED, "totalTasks": 5, "requestId": "req-789",
    }  # fmt: skip
    assert floor.started() == ["task-A", "task-B"]
    floor.complete("job-456", "task-B")
    assert floor.started() == []
    floor.complete("job-456", "task-A")
    messages = {message["taskId"]: message for message in floor.sent()}
    assert sorted(messages) == ["task-C", "task-D"]
    assert messages["task-C"]["dependencyOutputs"] == {"task-A": "out of task-A"}
    assert messages["task-C"]["input"] == {"style": "modern"}
    assert messages["task-C"]["requestId"] == "job-456.task-C"
    floor.complete("job-456", "task-C", "task-D")
    assert floor.started() == ["task-E"]
    floor.complete("job-456", "task-E")
    completed = floor.events("job-456", "Job Completed")
    assert [event.properties for event in completed] == [
        {"jobId": "job-456", "totalTasks": 5, "taskStatuses": dict.fromkeys([t["taskId"] for t in SEED], "completed")}
    ]
    assert floor.types("job-456") == ["Job Created", "Job Completed"]
    assert floor.status("job-456")["status"] == "completed"
    assert floor.status("job-456")["progress"]["completed"] == 5


def test_the_pending_event_of_a_job_task_tells_what_it_waited_for(floor: Floor) -> None:
    floor.jobs.submit_job(SEED, job_id="j")
    floor.complete("j", "task-A")

    page = floor.backend.journal().query("GSI1", tenant=TENANT, entity=("TASK", "j.task-C"))

    (pending,) = page.events
    assert pending.properties["dependsOn"] == ["task-A"]
    assert pending.properties["dependencyOutputs"] == {"task-A": "out of task-A"}
    assert (pending.properties["jobId"], pending.properties["taskId"]) == ("j", "task-C")
    assert pending.context["origin"] == "dispatcher"


def test_the_same_job_again_is_the_same_job_and_another_is_a_conflict(floor: Floor) -> None:
    first = floor.jobs.submit_job(SEED, job_id="j")
    again = floor.jobs.submit_job(SEED, job_id="j")

    assert (again.created, again.created_at, again.root_tasks) == (False, first.created_at, first.root_tasks)
    assert floor.types("j") == ["Job Created"]
    assert floor.started() == ["task-A", "task-B"]
    with pytest.raises(Conflict, match="other tasks"):
        floor.jobs.submit_job(SEED[:2], job_id="j")


def test_a_job_submitted_by_many_at_once_is_made_once(floor: Floor) -> None:
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: floor.jobs.submit_job(SEED, job_id="j"), range(24)))

    assert sum(result.created for result in results) == 1
    assert floor.types("j") == ["Job Created"]
    assert floor.started() == ["task-A", "task-B"]


def test_a_job_without_an_id_gets_one(floor: Floor) -> None:
    assert floor.jobs.submit_job([{"taskId": "a", "name": "x"}]).job_id.startswith("job-")


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
    with pytest.raises(InvalidJob, match=text):
        floor.jobs.submit_job(tasks, job_id="j")

    assert floor.jobs.job_status("j") is None
    assert floor.types("j") == []


@pytest.mark.parametrize("job_id", ["a.b", "", "a" * 121, "a#b", 7])
def test_a_job_id_that_cannot_be_one_is_refused(floor: Floor, job_id: Any) -> None:
    with pytest.raises(InvalidJob, match="jobId"):
        floor.jobs.submit_job(SEED, job_id=job_id)


def test_with_a_registry_an_unknown_task_is_refused(backend: Backend) -> None:
    with pytest.raises(UnknownTask):
        Jobs(backend, tenant_id=TENANT, app=APP, registry=TaskRegistry()).submit_job(SEED)


def test_a_failure_is_told_once_and_other_branches_go_on(floor: Floor) -> None:
    floor.jobs.submit_job(SEED, job_id="j")

    floor.end("j", "task-B", "Task Failed")
    floor.wake()
    floor.complete("j", "task-A")
    floor.end("j", "task-C", "Task Timeout")
    floor.wake()
    floor.complete("j", "task-D")
    floor.dispatcher.reconcile()

    (detected,) = floor.events("j", "Job Failure Detected")
    assert detected.properties["failedTaskId"] == "task-B"
    assert detected.properties["taskStatuses"] == {
        "task-A": "pending", "task-B": "failed", "task-C": None, "task-D": None, "task-E": None,
    }  # fmt: skip
    assert floor.status("j")["status"] == "partial_failure"
    assert floor.states("j") == {
        "task-A": "completed", "task-B": "failed", "task-C": "failed", "task-D": "completed", "task-E": "waiting",
    }  # fmt: skip
    assert "Job Completed" not in floor.types("j")


def test_a_resumed_job_runs_its_failed_tasks_again_and_completes(floor: Floor) -> None:
    floor.jobs.submit_job(SEED, job_id="j")
    floor.end("j", "task-A", "Task Failed")
    floor.complete("j", "task-B")
    floor.sent()

    resumed = floor.jobs.resume("j")

    assert resumed.resumed_tasks == ["task-A"]
    (message,) = floor.sent()
    assert (message["taskId"], message["run"]) == ("task-A", 2)
    (event,) = floor.events("j", "Job Resumed")
    assert (event.properties["resumedTasks"], event.properties["resumeNumber"]) == (["task-A"], 1)
    assert floor.status("j")["status"] == "processing"
    floor.complete("j", "task-A", "task-C", "task-D", "task-E")
    assert floor.status("j")["status"] == "completed"


def test_a_failure_after_a_resume_is_told_again(floor: Floor) -> None:
    floor.jobs.submit_job(SEED, job_id="j")
    floor.end("j", "task-A", "Task Failed")
    floor.wake()
    floor.jobs.resume("j")
    floor.end("j", "task-A", "Task Failed")
    floor.wake()

    assert len(floor.events("j", "Job Failure Detected")) == 2


def test_there_is_nothing_to_resume_without_a_failure(floor: Floor) -> None:
    floor.jobs.submit_job(chain("a"), job_id="j")

    with pytest.raises(Conflict, match="no failed task"):
        floor.jobs.resume("j")
    floor.complete("j", "a")
    with pytest.raises(Conflict, match="completed"):
        floor.jobs.resume("j")


def test_a_cancelled_job_starts_nothing_more_and_is_cancelled_once(floor: Floor) -> None:
    floor.jobs.submit_job(SEED, job_id="j")
    floor.complete("j", "task-B")

    cancelled = floor.jobs.cancel("j")

    assert cancelled.cancelled_tasks == ["task-A", "task-C", "task-D", "task-E"]
    assert floor.status("j")["status"] == "cancelled"
    assert floor.states("j")["task-C"] == "cancelled"
    assert floor.jobs.cancel("j").cancelled_tasks == []
    floor.wake()
    floor.dispatcher.reconcile()
    assert floor.types("j") == ["Job Created", "Job Cancelled"]
    with pytest.raises(Conflict):
        floor.jobs.resume("j")
    with pytest.raises(Conflict):
        floor.jobs.add_tasks("j", chain("z"))


def test_a_completed_job_cannot_be_cancelled(floor: Floor) -> None:
    floor.jobs.submit_job(chain("a"), job_id="j")
    floor.complete("j", "a")

    with pytest.raises(Conflict, match="completed"):
        floor.jobs.cancel("j")


def test_tasks_can_be_added_to_a_job_that_is_not_over(floor: Floor) -> None:
    floor.jobs.submit_job(SEED, job_id="j")
    floor.complete("j", "task-A")
    floor.sent()

    added = floor.jobs.add_tasks(
        "j",
        [
            {"taskId": "task-F", "name": "market-analysis", "dependsOn": ["task-A"], "input": {"depth": "detailed"}},
            {"taskId": "task-G", "name": "market-analysis", "dependsOn": ["task-F", "task-E"]},
        ],
    )

    assert (added.added_tasks, added.immediately_ready, added.total_tasks_now) == (
        ["task-F", "task-G"], ["task-F"], 7,
    )  # fmt: skip
    (message,) = floor.sent()
    assert message["dependencyOutputs"] == {"task-A": "out of task-A"}
    (event,) = floor.events("j", "Job Tasks Added")
    assert (event.properties["previousTotalTasks"], event.properties["totalTasksNow"]) == (5, 7)
    floor.complete("j", "task-B", "task-C", "task-D", "task-E", "task-F")
    assert floor.status("j")["status"] == "processing"
    floor.complete("j", "task-G")
    assert floor.status("j")["status"] == "completed"
    with pytest.raises(Conflict, match="no longer be added"):
        floor.jobs.add_tasks("j", chain("late"))


def test_added_tasks_are_checked_against_those_that_are_there(floor: Floor) -> None:
    floor.jobs.submit_job(SEED, job_id="j")

    with pytest.raises(InvalidJob, match="Duplicate taskId: task-A"):
        floor.jobs.add_tasks("j", [{"taskId": "task-A", "name": "x"}])
    with pytest.raises(InvalidJob, match="which does not exist"):
        floor.jobs.add_tasks("j", [{"taskId": "n", "name": "x", "dependsOn": ["nobody"]}])
    assert floor.types("j") == ["Job Created"]


def test_adding_and_completing_at_once_loses_no_task(floor: Floor) -> None:
    for number in range(10):
        job_id = f"j{number}"
        floor.jobs.submit_job(chain("a"), job_id=job_id)
        floor.end(job_id, "a")
        with ThreadPoolExecutor(2) as threads:
            adding = threads.submit(_try, lambda job_id=job_id: floor.jobs.add_tasks(job_id, chain("b")))
            threads.submit(floor.another_dispatcher().dispatch, job_id).result()
            was_added = adding.result()
        floor.wake()

        assert floor.status(job_id)["totalTasks"] == (2 if was_added else 1)
        assert floor.status(job_id)["status"] == ("processing" if was_added else "completed")


def _try(act: Any) -> bool:
    try:
        act()
    except Conflict:
        return False
    return True


@pytest.mark.parametrize("verb", ["add", "resume", "cancel", "graph"])
def test_a_job_that_is_not_there_is_not_found(floor: Floor, verb: str) -> None:
    verbs: dict[str, Callable[[], object]] = {
        "add": lambda: floor.jobs.add_tasks("nobody", chain("a")),
        "resume": lambda: floor.jobs.resume("nobody"),
        "cancel": lambda: floor.jobs.cancel("nobody"),
        "graph": lambda: floor.jobs.graph("nobody"),
    }

    with pytest.raises(NotFound, match="nobody"):
        verbs[verb]()


def test_jobs_are_listed_newest_first_page_by_page(floor: Floor) -> None:
    for number in range(5):
        floor.jobs.submit_job(chain("a"), job_id=f"j{number}")
    floor.complete("j1", "a")
    floor.complete("j3", "a")

    pages, cursor = [], None
    while True:
        page = floor.jobs.list_jobs(2, cursor)
        pages.append([job.job_id for job in page.items])
        if (cursor := page.cursor) is None:
            break

    assert [job_id for page_ids in pages for job_id in page_ids] == ["j4", "j3", "j2", "j1", "j0"]
    assert [job.job_id for job in floor.jobs.list_jobs(status="completed").items] == ["j3", "j1"]
    with pytest.raises(InvalidInput, match="status"):
        floor.jobs.list_jobs(status="done")
    with pytest.raises(InvalidInput, match="limit"):
        floor.jobs.list_jobs(0)


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


class _Dying:
    """A journal that takes nothing for a while."""

    def __init__(self, backend: Backend, failures: int) -> None:
        self._journal = backend.journal()
        self._failures = failures

    def append(self, events: list[JournalEvent]) -> list[AppendResult]:
        if self._failures:
            self._failures -= 1
            raise Unavailable("the journal is down")
        return self._journal.append(events)


def test_a_job_whose_event_could_not_be_recorded_is_whole_at_the_next_look(backend: Backend, floor: Floor) -> None:
    broken = Jobs(backend, tenant_id=TENANT, app=APP, journal=_Dying(backend, 1))  # type: ignore[arg-type]  # it appends, which is all that is asked of it

    with pytest.raises(PostroadError):
        broken.submit_job(SEED, job_id="j")
    assert floor.types("j") == []
    floor.dispatcher.reconcile()

    assert floor.types("j") == ["Job Created"]
    assert floor.started() == ["task-A", "task-B"]
