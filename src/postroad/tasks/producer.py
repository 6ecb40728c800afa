"""The producer of tasks: submits them once, retries and cancels them, and tells how they stand."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from postroad.arguments import check
from postroad.errors import ConfigurationError, Conflict, InvalidTask, NotFound
from postroad.events import uuid7
from postroad.journal import (
    CANCELLED,
    Appends,
    Journal,
    JournalEvent,
    TaskState,
    task_history,
    task_state,
    tasks_of_job,
)
from postroad.ports import Store
from postroad.queues import MAX_DELAY
from postroad.tasks.leases import Held, Lease
from postroad.tasks.messages import AnyRequestId, RequestId, TaskMessage, TaskName, check_input
from postroad.tasks.queues import tenant_and_app
from postroad.tasks.records import EventFactory, TaskId, TaskRecords
from postroad.tasks.registry import TaskRegistry, Timeout
from postroad.tasks.submissions import Submission, Submissions, last_pending, message_of

_Delay = Annotated[float, Meta(ge=0, le=MAX_DELAY, description=f"is not from 0 to {MAX_DELAY:.0f} seconds")]


class TaskHandle(msgspec.Struct, frozen=True):
    """A submitted task. `created` tells whether this call began the run."""

    request_id: str
    run: int
    created: bool


class TaskProducer:
    """Submits tasks to one queue."""

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
        who = tenant_and_app(tenant_id, app)
        self._tenant = who.tenant_id
        self._registry = registry
        self._queue_name = queue
        self._factory = EventFactory(app=who.app, environment=backend.stage, origin="producer", clock=backend.clock)
        self._records = TaskRecords(backend, journal)
        self._submissions = Submissions(backend, self._records, queue_name=queue)
        self._submissions.open_queue()
        self._journal: Journal = journal if isinstance(journal, Journal) else backend.journal()

    def submit(
        self,
        name: str,
        input: dict[str, Any] | None = None,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
        delay: float = 0.0,
    ) -> TaskHandle:
        """Have the task run once; the same request id with the same name and input is the same run."""
        request_id = str(uuid7()) if request_id is None else request_id
        check(name, TaskName, "name", InvalidTask)
        check(request_id, RequestId, "requestId", InvalidTask)
        check(timeout, Timeout | None, "timeout", ConfigurationError)
        check(delay, _Delay, "delay", InvalidTask)
        if self._registry is not None:
            self._registry.get(name)
        message = TaskMessage(
            request_id=request_id,
            name=name,
            input=check_input(input),
            timeout_ms=None if timeout is None else max(1, round(timeout * 1_000)),
        )
        submission = Submission.of(message, self._tenant, self._factory, delay=delay)
        begun = self._submissions.begin(submission)
        return TaskHandle(message.request_id, begun.run, begun.created)

    def retry(self, request_id: str) -> TaskHandle:
        """Run a failed or cancelled task again, as its next run."""
        held = self._known(request_id)
        lease = held.lease
        if lease.outcome is None or lease.outcome.state == "completed":
            state = "not finished" if lease.outcome is None else "completed"
            raise Conflict(f"task {request_id!r} is {state}; only failed and cancelled tasks are retried")
        pending = self._last_pending(request_id, lease)
        message = msgspec.structs.replace(message_of(pending), run=lease.run + 1)
        submission = Submission.of(message, self._tenant, self._factory, depends_on=pending.properties.get("dependsOn"))
        if lease.job_id is not None:
            self._records.open_job(self._tenant, lease.job_id)
        if not self._submissions.begin_again(submission, held):
            raise Conflict(f"task {request_id!r} was retried by somebody else just now")
        self._records.wake_job(self._tenant, lease)
        return TaskHandle(request_id, message.run, True)

    def cancel(self, request_id: str) -> bool:
        """Let the task not run, or be killed where it runs; False when it had ended already.

        A task of a job that waits for others never begins, and holds back what depends on it.
        """
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        while True:
            held = self._records.read(self._tenant, request_id)
            lease = self._waiting(request_id) if held is None else held.lease
            if lease.outcome is not None:
                return False
            task = TaskId(
                tenant_id=self._tenant, request_id=request_id, run=lease.run, job_id=lease.job_id, task_id=lease.task_id
            )
            event = self._factory.event(CANCELLED, task, reason="cancelled on request")
            if self._records.write(self._tenant, request_id, lease.settled(event), [event], expect=held).ok:
                return True

    def status(self, request_id: str, at: int | None = None) -> TaskState | None:
        """How the task stands, or stood at a moment in milliseconds; None before its first event."""
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        return task_state(self._journal, self._tenant, request_id, at)

    def history(self, request_id: str) -> list[JournalEvent]:
        """Every event of the task, in order."""
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        return task_history(self._journal, self._tenant, request_id)

    def _known(self, request_id: str) -> Held:
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        held = self._records.read(self._tenant, request_id)
        if held is None:
            raise NotFound(f"there is no task {request_id!r}")
        return held

    def _waiting(self, request_id: str) -> Lease:
        """The first lease of a job's task that was not begun yet."""
        name = name_in_job(self._journal, self._tenant, request_id)
        if name is None:
            raise NotFound(f"there is no task {request_id!r}")
        job_id, _, task_id = request_id.partition(".")
        return Lease(
            name=name,
            queue=self._queue_name,
            app=self._factory.app,
            job_id=job_id,
            task_id=task_id,
            begun_at=self._factory.now_ms(),
        )

    def _last_pending(self, request_id: str, lease: Lease) -> JournalEvent:
        found = last_pending(self._journal, self._tenant, request_id)
        if found is None and lease.job_id is not None:
            raise Conflict(
                f"task {request_id!r} was cancelled before it began",
                remedy=f"Resume its job: postroad job resume {lease.job_id}",
            )
        if found is None:
            raise NotFound(f"the journal holds no input of task {request_id!r}")
        return found


def name_in_job(journal: Journal, tenant: str, request_id: str) -> str | None:
    """The name of a job's task, begun or not; None when there is no such job or task."""
    job_id, dot, task_id = request_id.partition(".")
    found = tasks_of_job(journal, tenant, job_id) if dot else []
    return next((task["name"] for task in found if task["taskId"] == task_id), None)
