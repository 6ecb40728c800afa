"""The producer of tasks: it submits them once, retries and cancels them, and reports their states.

A submission writes the lease, records `Task Pending` and sends the message, in this order. On the embedded engine this
is one commit. Elsewhere a process may die in between: a later submission with the same request id completes what it
finds, and the Reconciler sends what was recorded and not sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from postroad import failpoints
from postroad.arguments import check
from postroad.errors import ConfigurationError, Conflict, InvalidTask, NotFound, PostroadError
from postroad.events import refusal, uuid7
from postroad.journal import (
    CANCELLED,
    PENDING,
    Appends,
    Journal,
    JournalEvent,
    TaskState,
    task_history,
    tasks_of_job,
    whole,
)
from postroad.ports import Store
from postroad.queues import MAX_DELAY, Queue
from postroad.tasks.leases import Held, Lease, TaskRecords, current_state, first_lease
from postroad.tasks.messages import (
    AnyRequestId,
    EventFactory,
    RequestId,
    TaskId,
    TaskMessage,
    TaskName,
    check_input,
    open_queue,
    outgoing,
    tenant_and_app,
)
from postroad.tasks.registry import TaskRegistry, Timeout

_Delay = Annotated[float, Meta(ge=0, le=MAX_DELAY, description=f"is not from 0 to {MAX_DELAY:.0f} seconds")]
# How long another submission of the same request may take before it counts as dead.
_WAIT_SECONDS = 5.0
_LOOK_AGAIN = 0.02


class TaskHandle(msgspec.Struct, frozen=True):
    """A submitted task. `created` says whether this call began the run."""

    request_id: str
    run: int
    created: bool


class TaskProducer:
    """Submits tasks to one queue.

    Args:
        backend: The store, as `connect()` returns it.
        queue: The name of the queue; on AWS without the stage.
        tenant_id: The tenant of the tasks; by default that of the settings.
        app: The app of the recorded events; by default that of the settings.
        registry: If given, only tasks of this registry can be submitted; pass it where all tasks are known.
        journal: Where events go instead of the backend's journal, such as an `EventBridgeSender`.

    Raises:
        QueueNotFound: The queue does not exist on AWS; create it with `postroad task init`.

    Example:
        TaskProducer(backend).submit("resize", {"width": 200}, request_id="image-17")
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
        self._tenant, app = tenant_and_app(tenant_id, app)
        self._registry = registry
        self._queue_name = queue
        self._factory = EventFactory(app=app, environment=backend.stage, origin="producer", clock=backend.clock)
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
        """Submit a task to be run once.

        Args:
            name: The name of the task.
            input: A JSON object; empty by default.
            request_id: The id of the task; a new one by default. The same id with the same name and input is the same
                run, so a submission can be repeated.
            timeout: Seconds that an attempt may take; by default what the task or the worker says.
            delay: Seconds before a worker may receive it; none by default.

        Raises:
            InvalidTask: The name, the input, the request id or the delay is not valid.
            UnknownTask: The producer has a registry, and the task is not in it.
            Conflict: The request id was submitted with another name or input.
        """
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
        return self._submissions.begin(Submission.of(message, self._tenant, self._factory, delay=delay))

    def retry(self, request_id: str) -> TaskHandle:
        """Run a failed or cancelled task again, as its next run."""
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        held = self._records.read(self._tenant, request_id)
        if held is None:
            raise NotFound(f"there is no task {request_id!r}")
        lease = held.lease
        if lease.outcome is None or lease.outcome.state == "completed":
            state = "not finished" if lease.outcome is None else "completed"
            raise Conflict(f"task {request_id!r} is {state}; only failed and cancelled tasks are retried")
        pending = last_pending(self._journal, self._tenant, request_id)
        if pending is None and lease.job_id is not None:
            raise Conflict(
                f"task {request_id!r} was cancelled before it began",
                remedy=f"Resume its job: postroad job resume {lease.job_id}",
            )
        if pending is None:
            raise NotFound(f"the journal does not hold the input of task {request_id!r}")
        message = msgspec.structs.replace(message_of(pending), run=lease.run + 1)
        submission = Submission.of(message, self._tenant, self._factory, depends_on=pending.properties.get("dependsOn"))
        if lease.job_id is not None:
            self._records.open_job(self._tenant, lease.job_id)
        if not self._submissions.begin_again(submission, held):
            raise Conflict(f"task {request_id!r} was just retried by another process")
        self._records.wake_job(self._tenant, lease, state="pending")
        return TaskHandle(request_id, message.run, True)

    def cancel(self, request_id: str) -> bool:
        """Cancel a task, killing it where it runs; return False if it had ended already.

        A task of a job that waits for others never begins, and the tasks that depend on it do not begin either.
        """
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        while True:
            held = self._records.read(self._tenant, request_id)
            lease = self._waiting(request_id) if held is None else held.lease
            if lease.outcome is not None:
                return False
            task = lease.task(self._tenant, request_id)
            event = self._factory.event(CANCELLED, task, reason="cancelled on request")
            if self._records.write(self._tenant, request_id, lease.settled(event), [event], expect=held).ok:
                return True

    def status(self, request_id: str, at: int | None = None) -> TaskState | None:
        """Return the state of the task, now or at a moment in milliseconds; None before its first event."""
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        return current_state(self._journal, self._records, self._tenant, request_id, at)

    def history(self, request_id: str) -> list[JournalEvent]:
        """Return every event of the task, in order."""
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        return task_history(self._journal, self._tenant, request_id)

    def _waiting(self, request_id: str) -> Lease:
        """Return the first lease of a job's task that has not begun yet."""
        name = name_in_job(self._journal, self._tenant, request_id)
        if name is None:
            raise NotFound(f"there is no task {request_id!r}")
        job_id, _, task_id = request_id.partition(".")
        task = TaskId(tenant_id=self._tenant, request_id=request_id, run=1, job_id=job_id, task_id=task_id)
        return first_lease(task, name, self._queue_name, self._factory.app, self._factory.now_ms())


def name_in_job(journal: Journal, tenant: str, request_id: str) -> str | None:
    """Return the name of a job's task, begun or not; None if there is no such job or task."""
    job_id, dot, task_id = request_id.partition(".")
    found = tasks_of_job(journal, tenant, job_id) if dot else []
    return next((task["name"] for task in found if task["taskId"] == task_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One run to be submitted: its message and its `Task Pending`."""

    tenant: str
    message: TaskMessage
    pending: JournalEvent
    app: str
    delay: float = 0.0

    @classmethod
    def of(
        cls,
        message: TaskMessage,
        tenant: str,
        factory: EventFactory,
        *,
        depends_on: list[str] | None = None,
        delay: float = 0.0,
    ) -> Self:
        """Return the submission of a message."""
        pending = factory.event(
            PENDING,
            message.task(tenant),
            name=message.name,
            input=message.input,
            dependsOn=depends_on,
            dependencyOutputs=message.dependency_outputs,
            timeoutMs=message.timeout_ms,
        )
        return cls(tenant=tenant, message=message, pending=pending, app=factory.app, delay=delay)

    def digest(self) -> str:
        """Return a hash of name and input."""
        text = json.dumps([self.message.name, self.message.input], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def lease(self, queue: str) -> Lease:
        """Return the lease of a first run."""
        task = self.message.task(self.tenant)
        return first_lease(task, self.message.name, queue, self.app, self.pending.timestamp, self.digest())


class Submissions:
    """Submits runs to one queue."""

    def __init__(self, backend: Store, records: TaskRecords, *, queue_name: str) -> None:
        self._backend = backend
        self._records = records
        self._queue_name = queue_name

    @cached_property
    def _queue(self) -> Queue:
        # Opened at its first use: a process that only reads tasks creates no queue.
        return open_queue(self._backend, self._queue_name)

    def open_queue(self) -> None:
        """Open the queue now, or raise `QueueNotFound`."""
        _ = self._queue

    def begin(self, submission: Submission) -> TaskHandle:
        """Begin the run, or find the run of this request; raise `Conflict` if its name or input differs."""
        tenant, request_id = submission.tenant, submission.message.request_id
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            held = self._records.read(tenant, request_id)
            if held is None:
                if self._begin(submission, submission.lease(self._queue_name), expect=None):
                    return TaskHandle(request_id, submission.message.run, True)
                continue
            lease = held.lease
            if lease.digest and lease.digest != submission.digest():
                raise Conflict(
                    f"requestId: {request_id!r} was submitted with another name or input",
                    field="requestId",
                    remedy="Use a new request id for a new task.",
                )
            # It is sent, or it is recorded and the Reconciler sends it.
            begun = lease.sent_at is not None or lease.outcome is not None or lease.token > 0
            if begun or last_pending(self._backend.journal(), tenant, request_id, run=lease.run) is not None:
                return TaskHandle(request_id, lease.run, False)
            if time.monotonic() > deadline:
                self._begin(submission, lease, expect=held)
                return TaskHandle(request_id, lease.run, False)
            time.sleep(_LOOK_AGAIN)

    def begin_again(self, submission: Submission, held: Held) -> bool:
        """Begin the next run of a task that ended; return False if another process was faster."""
        return self._begin(submission, held.lease.again(now_ms=submission.pending.timestamp), expect=held)

    def resend(self, submission: Submission, held: Held | None) -> bool:
        """Send the message of a run that is recorded and was not sent; return False if another process does it."""
        lease = submission.lease(self._queue_name) if held is None else held.lease
        sent = msgspec.structs.replace(lease, sent_at=submission.pending.timestamp)
        _send(self._queue, submission)
        return self._records.write(submission.tenant, submission.message.request_id, sent, expect=held).ok

    def _begin(self, submission: Submission, lease: Lease, *, expect: Held | None) -> bool:
        """Store the lease, record `Task Pending`, send; return False if the lease is not as expected."""
        # A missing queue must raise before anything is stored.
        queue, records = self._queue, self._records
        tenant, request_id, pending = submission.tenant, submission.message.request_id, submission.pending
        failed: PostroadError | None = None
        with self._backend.transaction() if records.together else contextlib.nullcontext():
            written = records.put(tenant, request_id, lease.with_last_of([pending]), expect=expect)
            if not written.ok:
                return False
            assert written.held is not None
            try:
                records.append([pending])
            except PostroadError:
                if expect is None and not records.together:
                    # The task is not recorded, so its lease must not block another submission.
                    with contextlib.suppress(PostroadError):
                        records.remove(tenant, request_id, expect=written.held)
                raise
            try:
                if submission.message.job_id is not None:
                    failpoints.hit("dispatcher.before_enqueue")
                _send(queue, submission)
            except PostroadError as error:
                # What is recorded stays: the Reconciler sends it.
                failed = error
            else:
                # A worker that was faster noted it itself; nothing is lost if this fails.
                sent = msgspec.structs.replace(written.held.lease, sent_at=pending.timestamp)
                with contextlib.suppress(PostroadError):
                    records.put(tenant, request_id, sent, expect=written.held)
        if failed is not None:
            raise failed
        return True


def _send(queue: Queue, submission: Submission) -> None:
    (result,) = queue.send([outgoing(submission.message, submission.tenant, delay=submission.delay)])
    if result.error is not None:
        raise result.error


def last_pending(journal: Journal, tenant: str, request_id: str, *, run: int | None = None) -> JournalEvent | None:
    """Return the last `Task Pending` of a task, or that of one run."""
    page = journal.query(
        "GSI5", tenant=tenant, event_type=PENDING, entity=("TASK", request_id), descending=True, limit=100
    )
    return next((event for event in page.events if run is None or event.properties.get("run", 1) == run), None)


def message_of(pending: JournalEvent) -> TaskMessage:
    """Return the message of a run, made from its `Task Pending`.

    Raises:
        InvalidTask: No worker could read it.
        OverflowMismatch: Part of it is in a blob that is not what was stored.
    """
    known: dict[str, Any] = {
        name: whole(pending).properties[name]
        for name in ("requestId", "name", "input", "run", "timeoutMs", "taskId", "jobId", "dependencyOutputs")
        if name in pending.properties
    }
    try:
        message = msgspec.convert(known, TaskMessage)
    except msgspec.ValidationError as error:
        found = refusal(error)
        raise InvalidTask(found.message, field=found.field) from error
    if message.request_id != pending.entity_id:
        raise InvalidTask(
            f"requestId: {message.request_id!r} is not the entity {pending.entity_id!r} of the event", field="requestId"
        )
    return message
