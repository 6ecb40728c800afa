"""Submitting a run: its lease, its `Task Pending` and its message, in this order, once.

On the embedded engine all of it is one commit. Elsewhere a submitter may die in between: one that comes with the same
request later finishes what it finds, and the Reconciler sends what was recorded and not sent."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import msgspec

from postroad import failpoints
from postroad.errors import Conflict, InvalidTask, PostroadError
from postroad.events import refusal
from postroad.journal import PENDING, Journal, JournalEvent, whole
from postroad.ports import Store
from postroad.queues import Queue
from postroad.tasks.leases import Held, Lease
from postroad.tasks.messages import TaskMessage, outgoing
from postroad.tasks.queues import open_queue
from postroad.tasks.records import EventFactory, TaskId, TaskRecords

# How long somebody else's submission of the same request may take before it counts as dead.
_WAIT_SECONDS = 5.0
_LOOK_AGAIN = 0.02


class Begun(msgspec.Struct, frozen=True):
    """The run that a submission found or began."""

    run: int
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One run to be submitted: its message, and the event that says so."""

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
        """The submission of a message."""
        pending = factory.event(
            PENDING,
            TaskId(
                tenant_id=tenant,
                request_id=message.request_id,
                run=message.run,
                job_id=message.job_id,
                task_id=message.task_id,
            ),
            name=message.name,
            input=message.input,
            dependsOn=depends_on,
            dependencyOutputs=message.dependency_outputs,
            timeoutMs=message.timeout_ms,
        )
        return cls(tenant=tenant, message=message, pending=pending, app=factory.app, delay=delay)

    @property
    def request_id(self) -> str:
        """Whose run it is."""
        return self.message.request_id

    def digest(self) -> str:
        """Tells this name and input apart from others."""
        text = json.dumps([self.message.name, self.message.input], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def lease(self, queue: str) -> Lease:
        """The lease of a first run."""
        return Lease(
            run=self.message.run,
            name=self.message.name,
            digest=self.digest(),
            queue=queue,
            app=self.app,
            job_id=self.message.job_id,
            task_id=self.message.task_id,
            begun_at=self.pending.timestamp,
        )


class Submissions:
    """Submits runs to one queue."""

    def __init__(self, backend: Store, records: TaskRecords, *, queue_name: str) -> None:
        self._backend = backend
        self._records = records
        self._queue_name = queue_name

    @cached_property
    def _queue(self) -> Queue:
        # Opened when it is first needed: whoever only looks at tasks makes no queue.
        return open_queue(self._backend, self._queue_name)

    def open_queue(self) -> None:
        """Open the queue now, and make it where that is ours to do; `QueueNotFound` where it is missing."""
        _ = self._queue

    def begin(self, submission: Submission) -> Begun:
        """Begin the run, or find the one that this request has; `Conflict` when it is of another content."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            held = self._records.read(submission.tenant, submission.request_id)
            if held is None:
                if self._begin(submission, submission.lease(self._queue_name), expect=None):
                    return Begun(submission.message.run, True)
                continue
            if held.lease.digest and held.lease.digest != submission.digest():
                raise Conflict(
                    f"requestId: {submission.request_id!r} was submitted with another name or input",
                    field="requestId",
                    remedy="Use a new request id for a new task.",
                )
            if self._is_begun(submission, held):
                return Begun(held.lease.run, False)
            if time.monotonic() > deadline:
                self._begin(submission, held.lease, expect=held)
                return Begun(held.lease.run, False)
            time.sleep(_LOOK_AGAIN)

    def begin_again(self, submission: Submission, held: Held) -> bool:
        """Begin the next run of a task that ended; False when somebody else was quicker."""
        return self._begin(submission, held.lease.again(now_ms=submission.pending.timestamp), expect=held)

    def resend(self, submission: Submission, held: Held | None) -> bool:
        """Send the message of a run that is recorded and was not sent; False when somebody else is at it."""
        lease = submission.lease(self._queue_name) if held is None else held.lease
        sent = msgspec.structs.replace(lease, sent_at=submission.pending.timestamp)
        _send(self._queue, submission)
        return self._records.write(submission.tenant, submission.request_id, sent, expect=held).ok

    def _is_begun(self, submission: Submission, held: Held) -> bool:
        """Whether the run is sent, or recorded so that the Reconciler sends it."""
        if held.lease.sent_at is not None or held.lease.outcome is not None or held.lease.token > 0:
            return True
        journal = self._backend.journal()
        return last_pending(journal, submission.tenant, submission.request_id, run=held.lease.run) is not None

    def _begin(self, submission: Submission, lease: Lease, *, expect: Held | None) -> bool:
        """Store the lease, record `Task Pending`, send; False when the lease is not as expected."""
        # A queue that is missing is told before anything is stored.
        queue = self._queue
        failed: PostroadError | None = None
        with self._together():
            told = lease.with_last_of([submission.pending])
            written = self._records.put(submission.tenant, submission.request_id, told, expect=expect)
            if not written.ok:
                return False
            assert written.held is not None
            self._record(submission, written.held, first=expect is None)
            try:
                if submission.message.job_id is not None:
                    failpoints.hit("dispatcher.before_enqueue")
                _send(queue, submission)
            except PostroadError as error:
                # What is recorded stays: the Reconciler sends it.
                failed = error
            else:
                self._note_sent(submission, written.held)
        if failed is not None:
            raise failed
        return True

    def _together(self) -> contextlib.AbstractContextManager[None]:
        if not self._records.together:
            return contextlib.nullcontext()
        return self._backend.transaction()

    def _record(self, submission: Submission, held: Held, *, first: bool) -> None:
        try:
            self._records.append([submission.pending])
        except PostroadError:
            if first and not self._records.together:
                # Nothing is known of the task, so nothing of it may stand in the way of another attempt.
                with contextlib.suppress(PostroadError):
                    self._records.remove(submission.tenant, submission.request_id, expect=held)
            raise

    def _note_sent(self, submission: Submission, held: Held) -> None:
        # A worker that was quicker than we noted it itself; nothing is lost when this fails.
        sent = msgspec.structs.replace(held.lease, sent_at=submission.pending.timestamp)
        with contextlib.suppress(PostroadError):
            self._records.put(submission.tenant, submission.request_id, sent, expect=held)


def _send(queue: Queue, submission: Submission) -> None:
    message = outgoing(submission.message, submission.tenant, delay=submission.delay)
    (result,) = queue.send([message])
    if result.error is not None:
        raise result.error


def last_pending(journal: Journal, tenant: str, request_id: str, *, run: int | None = None) -> JournalEvent | None:
    """The last `Task Pending` of a task, or that of one run."""
    page = journal.query(
        "GSI5", tenant=tenant, event_type=PENDING, entity=("TASK", request_id), descending=True, limit=100
    )
    return next((event for event in page.events if run is None or event.properties.get("run", 1) == run), None)


def message_of(pending: JournalEvent) -> TaskMessage:
    """The message of a run, out of what the journal recorded.

    Raises:
        InvalidTask: No worker could read it.
        OverflowMismatch: Part of it lies in a blob that is not what was stored.
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
