"""The rules of jobs on every store: graphs run in order, and can be extended, resumed and cancelled."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from tests.jobs.floor import APP, SEED, Floor

from postroad import Backend
from postroad.errors import Conflict, InvalidInput, InvalidJob, NotFound, PostroadError, Unavailable
from postroad.items import ItemResult
from postroad.jobs import Jobs
from postroad.jobs.coordinator import JobCoordinator
from postroad.jobs.graph import JobRecords
from postroad.journal import AppendResult, JournalEvent


def chain(*task_ids: str) -> list[dict[str, Any]]:
    """Tasks of which each waits for the one before."""
    return [
        {"taskId": task_id, "name": "step", "dependsOn": list(task_ids[place - 1 : place] if place else ())}
        for place, task_id in enumerate(task_ids)
    ]


class JobRules:
    """What holds of jobs wherever they run."""

    races = 10
    """How often two things happen at once."""
    crowd = 24
    """How many do the same at once."""

    def test_the_job_of_the_seed_runs_in_the_order_of_its_graph(self, floor: Floor) -> None:
        created = floor.jobs.submit_job(SEED, job_id="job-456", request_id="req-789")

        assert (created.job_id, created.status, created.total_tasks) == ("job-456", "created", 5)
        assert (created.root_tasks, created.created) == (["task-A", "task-B"], True)
        assert floor.events("job-456")[0].properties == {
            "jobId": "job-456",
            "tasks": SEED,
            "totalTasks": 5,
            "requestId": "req-789",
        }
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
            {
                "jobId": "job-456",
                "totalTasks": 5,
                "taskStatuses": dict.fromkeys([t["taskId"] for t in SEED], "completed"),
            }
        ]
        assert floor.types("job-456") == ["Job Created", "Job Completed"]
        assert [event.context["origin"] for event in floor.events("job-456")] == ["producer", "dispatcher"]
        assert floor.status("job-456")["status"] == "completed"
        assert floor.status("job-456")["progress"]["completed"] == 5

    def test_the_pending_event_of_a_job_task_tells_what_it_waited_for(self, floor: Floor) -> None:
        floor.jobs.submit_job(SEED, job_id="j")
        floor.complete("j", "task-A")

        page = floor.backend.journal().query("GSI1", tenant=floor.tenant, entity=("TASK", "j.task-C"))

        (pending,) = page.events
        assert pending.properties["dependsOn"] == ["task-A"]
        assert pending.properties["dependencyOutputs"] == {"task-A": "out of task-A"}
        assert (pending.properties["jobId"], pending.properties["taskId"]) == ("j", "task-C")
        assert pending.context["origin"] == "dispatcher"

    def test_the_same_job_again_is_the_same_job_and_another_is_a_conflict(self, floor: Floor) -> None:
        first = floor.jobs.submit_job(SEED, job_id="j")
        again = floor.jobs.submit_job(SEED, job_id="j")

        assert (again.created, again.created_at, again.root_tasks) == (False, first.created_at, first.root_tasks)
        assert floor.types("j") == ["Job Created"]
        assert floor.started() == ["task-A", "task-B"]
        with pytest.raises(Conflict, match="other tasks"):
            floor.jobs.submit_job(SEED[:2], job_id="j")

    def test_a_job_submitted_by_many_at_once_is_made_once(self, floor: Floor) -> None:
        with ThreadPoolExecutor(8) as threads:
            results = list(threads.map(lambda _: floor.jobs.submit_job(SEED, job_id="j"), range(self.crowd)))

        assert sum(result.created for result in results) == 1
        assert floor.types("j") == ["Job Created"]
        assert floor.started() == ["task-A", "task-B"]

    def test_a_job_without_an_id_gets_one(self, floor: Floor) -> None:
        assert floor.jobs.submit_job([{"taskId": "a", "name": "x"}]).job_id.startswith("job-")

    def test_a_failure_is_told_once_and_other_branches_go_on(self, floor: Floor) -> None:
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
            "task-A": "pending",
            "task-B": "failed",
            "task-C": None,
            "task-D": None,
            "task-E": None,
        }
        assert floor.status("j")["status"] == "partial_failure"
        assert floor.states("j") == {
            "task-A": "completed",
            "task-B": "failed",
            "task-C": "failed",
            "task-D": "completed",
            "task-E": "waiting",
        }
        assert "Job Completed" not in floor.types("j")

    def test_a_resumed_job_runs_its_failed_tasks_again_and_completes(self, floor: Floor) -> None:
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

    def test_a_failure_after_a_resume_is_told_again(self, floor: Floor) -> None:
        floor.jobs.submit_job(SEED, job_id="j")
        floor.end("j", "task-A", "Task Failed")
        floor.wake()
        floor.jobs.resume("j")
        floor.end("j", "task-A", "Task Failed")
        floor.wake()

        assert len(floor.events("j", "Job Failure Detected")) == 2

    @pytest.mark.parametrize("woken", [True, False], ids=["woken", "not-woken"])
    def test_a_job_whose_failed_task_is_retried_is_no_longer_failed(self, floor: Floor, woken: bool) -> None:
        floor.jobs.submit_job(chain("a", "b"), job_id="j")
        floor.end("j", "a", "Task Failed")
        floor.wake()
        floor.dispatcher.reconcile()
        assert floor.status("j")["status"] == "partial_failure"

        floor.producer.retry("j.a")

        assert floor.status("j")["status"] == "processing"
        if woken:
            floor.wake()
        else:
            floor.sleep_through()
            floor.dispatcher.reconcile()
        assert [job.status for job in floor.jobs.list_jobs().items] == ["processing"]
        floor.end("j", "a", output=1)
        floor.sleep_through()
        floor.dispatcher.reconcile()
        floor.end("j", "b", output=2)
        floor.sleep_through()
        floor.dispatcher.reconcile()
        assert floor.status("j")["status"] == "completed"
        assert len(floor.events("j", "Job Failure Detected")) == 1

    @pytest.mark.parametrize("look", [1, 2])
    @pytest.mark.parametrize("verb", ["retry", "resume", "add tasks"])
    def test_a_job_that_is_opened_while_a_dispatcher_looks_at_it_stays_open(
        self, floor: Floor, monkeypatch: pytest.MonkeyPatch, verb: str, look: int
    ) -> None:
        _fail(floor)
        states, looks = JobCoordinator.states, count(1)

        def opened_afterwards(coordinator: JobCoordinator, *arguments: Any) -> dict[str, str | None]:
            found = states(coordinator, *arguments)
            if next(looks) == look:
                _open(floor, verb)
            return found

        monkeypatch.setattr(JobCoordinator, "states", opened_afterwards)
        floor.dispatcher.dispatch("j")

        assert list(JobRecords(floor.backend, floor.tenant).open_jobs()) == ["j"]

    @pytest.mark.parametrize("verb", ["retry", "resume", "add tasks"])
    def test_a_job_that_a_dispatcher_closes_while_it_is_being_opened_is_open_afterwards(
        self, floor: Floor, monkeypatch: pytest.MonkeyPatch, verb: str
    ) -> None:
        _fail(floor)
        items, looks = type(floor.backend.items()), count()
        put = items.put

        def closed_afterwards(store: Any, key: str, *arguments: Any, **options: Any) -> ItemResult:
            result: ItemResult = put(store, key, *arguments, **options)
            if "/OPENJOB#" in key and next(looks) == 0:
                floor.dispatcher.reconcile()
            return result

        monkeypatch.setattr(items, "put", closed_afterwards)
        _open(floor, verb)

        assert list(JobRecords(floor.backend, floor.tenant).open_jobs()) == ["j"]

    def test_a_failure_after_a_retry_is_told_again(self, floor: Floor) -> None:
        floor.jobs.submit_job(chain("a"), job_id="j")
        floor.end("j", "a", "Task Failed")
        floor.wake()
        floor.producer.retry("j.a")
        floor.wake()
        floor.end("j", "a", "Task Failed")
        floor.wake()

        assert floor.status("j")["status"] == "partial_failure"
        assert len(floor.events("j", "Job Failure Detected")) == 2

    def test_a_waiting_task_that_is_cancelled_never_begins_and_holds_back_what_depends_on_it(
        self, floor: Floor
    ) -> None:
        floor.jobs.submit_job(chain("a", "b", "c"), job_id="j")

        assert floor.producer.cancel("j.b") is True
        assert floor.producer.cancel("j.b") is False

        floor.wake()
        floor.complete("j", "a")
        floor.dispatcher.reconcile()
        assert floor.started() == ["a"]
        assert floor.states("j") == {"a": "completed", "b": "cancelled", "c": "waiting"}
        assert floor.status("j")["status"] == "partial_failure"
        (detected,) = floor.events("j", "Job Failure Detected")
        assert detected.properties["failedTaskId"] == "b"
        with pytest.raises(Conflict, match="before it began"):
            floor.producer.retry("j.b")
        with pytest.raises(NotFound):
            floor.producer.cancel("j.x")
        with pytest.raises(NotFound):
            floor.producer.cancel("nobody.a")

    def test_a_resume_lets_a_task_that_was_cancelled_while_it_waited_wait_again(self, floor: Floor) -> None:
        # The one that waits is named first, so that it would stand in the way of the other.
        tasks = [
            {"taskId": "b", "name": "step", "dependsOn": ["a"]},
            {"taskId": "a", "name": "step"},
        ]
        floor.jobs.submit_job(tasks, job_id="j")
        floor.producer.cancel("j.b")
        floor.end("j", "a", "Task Failed")
        floor.wake()
        floor.sent()

        assert floor.jobs.resume("j").resumed_tasks == ["b", "a"]

        assert floor.started() == ["a"]
        floor.dispatcher.reconcile()
        assert floor.status("j")["status"] == "processing"
        assert len(floor.events("j", "Job Failure Detected")) == 1
        floor.complete("j", "a")
        assert [(message["taskId"], message["run"]) for message in floor.sent()] == [("b", 2)]
        floor.complete("j", "b")
        assert floor.status("j")["status"] == "completed"

    def test_there_is_nothing_to_resume_without_a_failure(self, floor: Floor) -> None:
        floor.jobs.submit_job(chain("a"), job_id="j")

        with pytest.raises(Conflict, match="no failed task"):
            floor.jobs.resume("j")
        floor.complete("j", "a")
        with pytest.raises(Conflict, match="completed"):
            floor.jobs.resume("j")

    def test_a_cancelled_job_starts_nothing_more_and_is_cancelled_once(self, floor: Floor) -> None:
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

    def test_a_completed_job_cannot_be_cancelled(self, floor: Floor) -> None:
        floor.jobs.submit_job(chain("a"), job_id="j")
        floor.complete("j", "a")

        with pytest.raises(Conflict, match="completed"):
            floor.jobs.cancel("j")

    def test_tasks_can_be_added_to_a_job_that_is_not_over(self, floor: Floor) -> None:
        floor.jobs.submit_job(SEED, job_id="j")
        floor.complete("j", "task-A")
        floor.sent()

        added = floor.jobs.add_tasks(
            "j",
            [
                {
                    "taskId": "task-F",
                    "name": "market-analysis",
                    "dependsOn": ["task-A"],
                    "input": {"depth": "detailed"},
                },
                {"taskId": "task-G", "name": "market-analysis", "dependsOn": ["task-F", "task-E"]},
            ],
        )

        assert (added.added_tasks, added.immediately_ready, added.total_tasks_now) == (
            ["task-F", "task-G"],
            ["task-F"],
            7,
        )
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

    def test_added_tasks_are_checked_against_those_that_are_there(self, floor: Floor) -> None:
        floor.jobs.submit_job(SEED, job_id="j")

        with pytest.raises(InvalidJob, match="Duplicate taskId: task-A"):
            floor.jobs.add_tasks("j", [{"taskId": "task-A", "name": "x"}])
        with pytest.raises(InvalidJob, match="which does not exist"):
            floor.jobs.add_tasks("j", [{"taskId": "n", "name": "x", "dependsOn": ["nobody"]}])
        assert floor.types("j") == ["Job Created"]

    def test_adding_and_completing_at_once_loses_no_task(self, floor: Floor) -> None:
        for number in range(self.races):
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

    @pytest.mark.parametrize("verb", ["add", "resume", "cancel", "graph"])
    def test_a_job_that_is_not_there_is_not_found(self, floor: Floor, verb: str) -> None:
        verbs: dict[str, Callable[[], object]] = {
            "add": lambda: floor.jobs.add_tasks("nobody", chain("a")),
            "resume": lambda: floor.jobs.resume("nobody"),
            "cancel": lambda: floor.jobs.cancel("nobody"),
            "graph": lambda: floor.jobs.graph("nobody"),
        }

        with pytest.raises(NotFound, match="nobody"):
            verbs[verb]()

    def test_jobs_are_listed_newest_first_page_by_page(self, floor: Floor) -> None:
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

    def test_a_job_whose_event_could_not_be_recorded_is_whole_at_the_next_look(
        self, backend: Backend, floor: Floor
    ) -> None:
        broken = Jobs(backend, tenant_id=floor.tenant, app=APP, journal=_Dying(backend, 1))  # type: ignore[arg-type]  # it appends, which is all that is asked of it

        with pytest.raises(PostroadError):
            broken.submit_job(SEED, job_id="j")
        assert floor.types("j") == []
        floor.dispatcher.reconcile()

        assert floor.types("j") == ["Job Created"]
        assert floor.started() == ["task-A", "task-B"]


def _fail(floor: Floor) -> None:
    """Leave a job with nothing to do until it is opened again."""
    floor.jobs.submit_job(chain("a"), job_id="j")
    floor.end("j", "a", "Task Failed")
    floor.wake()


def _open(floor: Floor, verb: str) -> None:
    # With a journal of their own, jobs write marks and items one after the other on every store.
    jobs = Jobs(floor.backend, tenant_id=floor.tenant, app=APP, journal=floor.backend.journal())
    opens: dict[str, Callable[[], object]] = {
        "retry": lambda: floor.producer.retry("j.a"),
        "resume": lambda: jobs.resume("j"),
        "add tasks": lambda: jobs.add_tasks("j", chain("b", "c")),
    }
    opens[verb]()


def _try(act: Any) -> bool:
    try:
        act()
    except Conflict:
        return False
    return True


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
