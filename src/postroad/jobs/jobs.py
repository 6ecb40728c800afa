"""Jobs: graphs of tasks that are submitted once, extended, resumed, cancelled and queried."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from postroad.arguments import check, whole_number
from postroad.errors import Conflict, InvalidJob
from postroad.jobs.coordinator import FAILED, JobCoordinator, quietly
from postroad.jobs.graph import Graph, GraphTask, HeldJob, Job, JobId, Status, read_tasks
from postroad.jobs.status import JobPage, JobStatus, JobSummary, draw, not_found, status_of
from postroad.journal import JOB_CREATED, JOB_TASKS_ADDED, Appends, Id, JournalEvent
from postroad.ports import Store
from postroad.tasks import TaskRegistry, tenant_and_app

JOB_CANCELLED = "Job Cancelled"
JOB_RESUMED = "Job Resumed"
_MOST_EXAMINED: Final = 200


class JobCreatedResult(msgspec.Struct, frozen=True, rename="camel"):
    """A submitted job. `created` says whether this call created it."""

    job_id: str
    """The job."""
    status: str
    """Its status."""
    total_tasks: int
    """How many tasks it has."""
    root_tasks: list[str]
    """The tasks that depend on nothing."""
    created_at: int
    """When it was created, in milliseconds since 1970."""
    created: bool


class TasksAdded(msgspec.Struct, frozen=True, rename="camel"):
    """Tasks that were added to a job."""

    job_id: str
    """The job."""
    added_tasks: list[str]
    """The ids of the new tasks."""
    immediately_ready: list[str]
    """Those of them that began at once."""
    total_tasks_now: int
    """How many tasks the job has now."""


class Resumed(msgspec.Struct, frozen=True, rename="camel"):
    """The tasks of a job that run again."""

    job_id: str
    """The job."""
    resumed_tasks: list[str]
    """The ids of its tasks."""


class Cancelled(msgspec.Struct, frozen=True, rename="camel"):
    """The tasks that were cancelled."""

    job_id: str
    """The job."""
    cancelled_tasks: list[str]
    """The ids of its tasks."""


class Jobs:
    """Submits, changes and shows the jobs of one tenant. The tasks go to one queue, opened at the first submission.

    Args:
        backend: The store, as `connect()` returns it.
        queue: The queue of the tasks; on AWS without the stage.
        tenant_id: The tenant of the jobs; by default that of the settings.
        app: The app of the recorded events; by default that of the settings.
        registry: If given, only tasks of this registry can be submitted; pass it where all tasks are known.
        journal: Where events go instead of the backend's journal, such as an `EventBridgeSender`.

    Example:
        jobs = Jobs(backend)
        jobs.submit_job([{"taskId": "a", "name": "load"}, {"taskId": "b", "name": "report", "dependsOn": ["a"]}])
    """

    def __init__(
        self,
        backend: Store,
        *,
        queue: str = "tasks",
        tenant_id: str | None = None,
        app: str | None = None,
        registry: TaskRegistry | None = None,
        journal: Appends | None = None,
    ) -> None:
        tenant, app = tenant_and_app(tenant_id, app)
        self._registry = registry
        self._queue_name = queue
        self._coordinator = JobCoordinator(backend, queue=queue, tenant=tenant, app=app, journal=journal)

    def submit_job(
        self, tasks: Sequence[Any], *, job_id: str | None = None, request_id: str | None = None
    ) -> JobCreatedResult:
        """Submit a graph of tasks.

        Args:
            tasks: Up to 50 tasks, each with `taskId`, `name`, and optionally `dependsOn` and `input`.
            job_id: The id of the job; a new one by default. The same id with the same tasks is the same job, so a
                submission can be repeated.
            request_id: The id of the request that caused the job, for its events.

        Raises:
            InvalidJob: A task or an id is not valid, or the graph has a cycle.
            Conflict: The job id was submitted with other tasks.
            QueueNotFound: The queue does not exist on AWS; create it with `postroad task init`.
        """
        self._coordinator.submissions.open_queue()
        job_id = f"job-{uuid.uuid4()}" if job_id is None else job_id
        check(job_id, JobId, "jobId", InvalidJob)
        check(request_id, Id | None, "requestId", InvalidJob)
        graph = Graph(self._read(tasks))
        if not graph.roots:
            raise InvalidJob("tasks: no task can start; at least one must depend on nothing", field="tasks")
        recorded = msgspec.to_builtins(list(graph.tasks.values()))
        encoded = msgspec.json.encode(recorded, order="deterministic")
        event = self._event(JOB_CREATED, job_id, tasks=recorded, totalTasks=len(graph), requestId=request_id)
        job = Job(
            total=len(graph),
            digest=hashlib.sha256(encoded).hexdigest()[:32],
            queue=self._queue_name,
            created_at=event.timestamp,
            request_id=request_id,
        )
        held = self._coordinator.jobs.write(job_id, job, [event], expect=None, is_open=True)
        if held is not None:
            self._coordinator.graphs.keep(job_id, graph)
        known = held or self._same(job_id, job.digest)
        quietly(lambda: self._coordinator.dispatch(job_id), job_id)
        return JobCreatedResult(
            job_id, "created", known.job.total, graph.roots, known.job.created_at, created=held is not None
        )

    def add_tasks(self, job_id: str, tasks: Sequence[Any]) -> TasksAdded:
        """Add tasks to a job that is not over; they may depend on any task of the job.

        Args:
            job_id: The job.
            tasks: The new tasks, as in `submit_job`.

        Raises:
            Conflict: The job is over.
            InvalidJob: A task is not valid.
        """
        self._coordinator.submissions.open_queue()
        while True:
            held = self._known(job_id)
            if held.job.is_over:
                raise Conflict(f"job {job_id!r} is {held.job.status}; tasks can no longer be added")
            graph = self._graph(job_id, held)
            new = self._read(tasks, graph)
            total = held.job.total + len(new)
            recorded = msgspec.to_builtins(new)
            event = self._event(
                JOB_TASKS_ADDED, job_id, newTasks=recorded, previousTotalTasks=held.job.total, totalTasksNow=total
            )
            job = msgspec.structs.replace(held.job, total=total)
            if self._coordinator.jobs.write(job_id, job, [event], expect=held, is_open=True) is not None:
                break
        self._coordinator.graphs.keep(job_id, Graph([*graph.tasks.values(), *new]))
        added = [task.task_id for task in new]
        begun = quietly(lambda: self._coordinator.begin(job_id, added), job_id).dispatched
        return TasksAdded(job_id, added, begun, total)

    def resume(self, job_id: str) -> Resumed:
        """Run the failed tasks of `job_id` again; completed ones stay as they are."""
        self._coordinator.submissions.open_queue()
        while True:
            held = self._known(job_id)
            if held.job.is_over:
                raise Conflict(f"job {job_id!r} is {held.job.status}; there is nothing to resume")
            runs = self._failed_runs(job_id, self._graph(job_id, held))
            if not runs:
                raise Conflict(f"job {job_id!r} has no failed task; there is nothing to resume")
            number = held.job.resumes + 1
            event = self._event(JOB_RESUMED, job_id, resumedTasks=list(runs), resumeNumber=number)
            job = msgspec.structs.replace(
                held.job, status="processing", resumes=number, failure_recorded=False, resuming=runs
            )
            if self._coordinator.jobs.write(job_id, job, [event], expect=held, is_open=True) is not None:
                break
        quietly(lambda: self._coordinator.dispatch(job_id), job_id)
        return Resumed(job_id, list(runs))

    def cancel(self, job_id: str) -> Cancelled:
        """Cancel `job_id`: waiting tasks never start, running tasks are killed, and late results are dropped."""
        while True:
            held = self._known(job_id)
            if held.job.status == "completed":
                raise Conflict(f"job {job_id!r} is completed; there is nothing to cancel")
            graph = self._graph(job_id, held)
            if held.job.status == "cancelled":
                return Cancelled(job_id, self._coordinator.cancel_tasks(job_id, graph))
            event = self._event(
                JOB_CANCELLED, job_id, totalTasks=held.job.total, taskStatuses=self._coordinator.states(job_id, graph)
            )
            job = msgspec.structs.replace(held.job, status="cancelled", completed_at=event.timestamp, resuming={})
            if (written := self._coordinator.jobs.write(job_id, job, [event], expect=held, is_open=True)) is not None:
                break
        mark = self._coordinator.jobs.claim_mark(job_id)
        cancelled = self._coordinator.cancel_tasks(job_id, graph)
        if mark is not None:
            self._coordinator.jobs.close(job_id, written, mark=mark)
        return Cancelled(job_id, cancelled)

    def job_status(self, job_id: str) -> JobStatus | None:
        """Return the status of `job_id` and of each of its tasks; None if there is no such job."""
        check(job_id, JobId, "jobId", InvalidJob)
        held = self._coordinator.jobs.read(job_id)
        return None if held is None else status_of(self._coordinator, job_id, held.job)

    def list_jobs(self, limit: int = 20, cursor: str | None = None, status: str | None = None) -> JobPage:
        """Return up to `limit` jobs behind `cursor`, newest first.

        With `status` only those of the next 200 that have this status, which may be none.
        """
        check(limit, whole_number(1, 100), "limit")
        if status is not None:
            check(status, Status, "status", remedy="Use one of them.")
        found: list[JobSummary] = []
        left = _MOST_EXAMINED
        while left and len(found) < limit:
            page = self._coordinator.journal.query(
                "GSI4",
                tenant=self._coordinator.tenant,
                event_type=JOB_CREATED,
                descending=True,
                limit=min(left, limit - len(found)),
                cursor=cursor,
                raw=True,
            )
            for event in page.events:
                held = self._coordinator.jobs.read(event.entity_id)
                if held is not None and status in (None, held.job.status):
                    job = held.job
                    found.append(JobSummary(event.entity_id, job.status, job.total, job.created_at))
            cursor, left = page.cursor, left - len(page.events)
            if cursor is None:
                break
        return JobPage(found, cursor)

    def open_jobs(self, most: int) -> list[str]:
        """Return the ids of up to `most` jobs that are not done; one page of marks is read."""
        return list(islice(self._coordinator.jobs.open_jobs(), most))

    def graph(self, job_id: str, format: Literal["text", "mermaid", "dot"] = "text") -> str:
        """Return the graph of `job_id` with the state of each task; `format` is "text", "mermaid" or "dot"."""
        found = self.job_status(job_id)
        if found is None:
            raise not_found(job_id)
        return draw(found, format)

    def _event(self, event_type: str, job_id: str, **properties: Any) -> JournalEvent:
        return self._coordinator.event(event_type, job_id, origin="producer", **properties)

    def _read(self, tasks: object, known: Graph | None = None) -> list[GraphTask]:
        found = read_tasks(tasks, known)
        if self._registry is not None:
            for task in found:
                self._registry.get(task.name)
        return found

    def _known(self, job_id: str) -> HeldJob:
        check(job_id, JobId, "jobId", InvalidJob)
        held = self._coordinator.jobs.read(job_id)
        if held is None:
            raise not_found(job_id)
        return held

    def _same(self, job_id: str, digest: str) -> HeldJob:
        held = self._known(job_id)
        if held.job.digest != digest:
            raise Conflict(
                f"jobId: {job_id!r} was submitted with other tasks",
                field="jobId",
                remedy="Use a new job id for a new job.",
            )
        return held

    def _graph(self, job_id: str, held: HeldJob) -> Graph:
        progress = self._coordinator.graphs.get(job_id, held.job)
        if progress is None:
            raise Conflict(
                f"job {job_id!r}: the journal does not show all of its tasks yet", remedy="Try again in a moment."
            )
        return progress.graph

    def _failed_runs(self, job_id: str, graph: Graph) -> dict[str, int]:
        leases = ((task_id, self._coordinator.lease(job_id, task_id)) for task_id in graph.tasks)
        return {
            task_id: held.lease.run + 1
            for task_id, held in leases
            if held is not None and self._coordinator.state(job_id, task_id) in FAILED
        }
