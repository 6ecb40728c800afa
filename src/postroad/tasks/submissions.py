"""Submissions: a run is submitted once, by its lease, its `Task Pending` and its message.

A submission writes the lease, records `Task Pending` and sends the message, in this order. On the embedded engine this
is one commit. Elsewhere a process may die in between. Until `Task Pending` is recorded the lease owes it, so a later
submission with the same request id, or the next look at its job, completes what it finds; the Reconciler sends what was
recorded and not sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

import msgspec

from postroad import failpoints
from postroad.blobs import BlobRef
from postroad.errors import Conflict, InvalidTask, PostroadError
from postroad.events import refusal
from postroad.journal import PENDING, Journal, JournalEvent, whole
from postroad.ports import Store
from postroad.queues import MAX_DELAY, OutgoingMessage, Queue
from postroad.tasks.leases import Held, Lease, TaskRecords, Written, first_lease
from postroad.tasks.messages import EventFactory, TaskMessage, open_queue, outgoing
from postroad.telemetry import tracing

MAX_PUT_OFF: Final = 31_536_000.0
"""The longest delay of a task, in seconds: a year."""
DELAYS: Final = "delays/"
_INLINE_BYTES = 200_000
# How long another submission of the same request may take before it counts as dead.
_PATIENCE_MS = 5_000
# Made once: `json.dumps` makes an encoder for each call with such options.
_encode_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class PutOff(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A task that waits in an item for its time; a large one has its message in a blob."""

    queue: str
    message: TaskMessage | None = None
    blob: BlobRef | None = None


def put_off(backend: Store, tenant: str, message: TaskMessage, *, queue: str, due_at: int) -> None:
    """Store a run for the role `scheduler`, which sends it when it is due; `due_at` is in milliseconds.

    It is stored before the lease that names the same time. A run whose lease does not is not sent.
    """
    body = msgspec.json.encode(message)
    waits = PutOff(queue=queue, message=message)
    if len(body) > _INLINE_BYTES:
        blobs = backend.blobs()
        if blobs is None:
            raise InvalidTask(
                f"input: {len(body)} bytes cannot be put off for so long without blobs",
                field="input",
                remedy="Configure blobs, pass a reference instead of the data, or use a delay of at most 900 seconds.",
            )
        waits = PutOff(queue=queue, blob=blobs.put(f"{DELAYS}{due_at}/{uuid.uuid4().hex}.json", body))
    backend.items().put(f"{put_off_key(tenant)}{due_at:013d}#{message.request_id}", msgspec.json.encode(waits))


def put_off_key(tenant: str) -> str:
    """Return what the keys of the tenant's tasks that are put off begin with; the time when they are due follows."""
    return f"{tenant}/DELAYED#"


class Begun(NamedTuple):
    """A run that is submitted. `created` says whether this submission began it."""

    request_id: str
    run: int
    created: bool


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

    @property
    def due_at(self) -> int | None:
        """When it is to be sent, in milliseconds, if that is later than a queue can hold it back; else None."""
        return None if self.delay <= MAX_DELAY else self.pending.timestamp + round(self.delay * 1_000)

    def outgoing(self, traceparent: str | None = None) -> OutgoingMessage:
        """Return the message as the queue accepts it."""
        return outgoing(self.message, self.tenant, delay=self.delay, traceparent=traceparent)

    def digest(self) -> str:
        """Return a hash of name and input."""
        text = _encode_sorted([self.message.name, self.message.input])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def lease(self, queue: str) -> Lease:
        """Return the lease of a first run."""
        task, begun_at = self.message.task(self.tenant), self.pending.timestamp + round(self.delay * 1_000)
        return first_lease(task, self.message.name, queue, self.app, begun_at, self.digest())


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

    def begin(self, submission: Submission) -> Begun:
        """Begin the run, or find the run of this request; raise `Conflict` if its name or input differs."""
        tenant, request_id = submission.tenant, submission.message.request_id
        first = _Start(submission, submission.lease(self._queue_name))
        # Most requests are new: where nothing is stored unless all is, nothing has to be read before.
        if self._records.together and self._begin([first])[0]:
            return Begun(request_id, submission.message.run, True)
        while True:
            held = self._records.read(tenant, request_id)
            if held is None:
                if self._begin([first])[0]:
                    return Begun(request_id, submission.message.run, True)
                continue
            lease = held.lease
            if lease.digest and lease.digest != submission.digest():
                raise Conflict(
                    f"requestId: {request_id!r} was submitted with another name or input",
                    field="requestId",
                    remedy="Use a new request id for a new task.",
                )
            if lease.is_unsent:
                self._complete(submission, held)
            return Begun(request_id, lease.run, False)

    def _complete(self, submission: Submission, held: Held) -> None:
        """Complete a submission that is under way or died: record what it owes, and send it if it is old."""
        is_old = submission.pending.timestamp - held.lease.begun_at > _PATIENCE_MS
        if is_old and submission.message.run == held.lease.run:
            self.resend(submission, held)
        else:
            # Its own process sends it; if that has died, the Reconciler does.
            self._records.append(self._records.owed(held))

    def begin_many(self, submissions: Sequence[Submission]) -> list[Begun]:
        """Begin all of the runs with few commits and calls; find those that exist, as `begin` does.

        On the embedded engine it is one commit, and a `Conflict` begins none of them.
        """
        with self._backend.transaction() if self._records.together else contextlib.nullcontext():
            fresh = self._begin([_Start(each, each.lease(self._queue_name)) for each in submissions])
            return [
                Begun(each.message.request_id, each.message.run, True) if is_new else self.begin(each)
                for each, is_new in zip(submissions, fresh, strict=True)
            ]

    def begin_again(self, submission: Submission, held: Held) -> bool:
        """Begin the next run of a task that ended; return False if another process was faster."""
        return self._begin([_Start(submission, held.lease.again(now_ms=submission.pending.timestamp), held)])[0]

    def resend(self, submission: Submission, held: Held | None) -> bool:
        """Send the message of a run that is recorded and was not sent; return False if another process does it."""
        lease = submission.lease(self._queue_name) if held is None else held.lease
        (result,) = self._queue.send([submission.outgoing()])
        if result.error is not None:
            raise result.error
        sent = _sent(submission, lease)
        return self._records.write(submission.tenant, submission.message.request_id, sent, expect=held).ok

    def _begin(self, starts: Sequence[_Start]) -> list[bool]:
        """Begin the runs in a span, in whose trace they will be handled."""
        with tracing.publishing(self._queue_name):
            if len(starts) == 1:
                tracing.name_message(starts[0].submission.message.request_id)
            # Another thread may do the work, in a commit that both share.
            return self._begin_traced(starts, tracing.traceparent())

    def _begin_traced(self, starts: Sequence[_Start], traceparent: str | None) -> list[bool]:
        """Store the leases, record `Task Pending`, send; return for each whether its lease was as expected."""
        # A missing queue must raise before anything is stored.
        _, records = self._queue, self._records

        def unit() -> tuple[list[Written], Exception | None]:
            failed: Exception | None = None
            written = []
            for submission, lease, expect in starts:
                first = lease.with_last_of([submission.pending])
                if (due_at := submission.due_at) is not None:
                    first = msgspec.structs.replace(first, due_at=due_at)
                    if not records.together:
                        # Before the lease: a run that has a lease and is not put off would never be sent.
                        self._put_off(submission, due_at)
                elif records.together:
                    # What is written in one commit with the message can say so at once.
                    first = _sent(submission, first)
                request_id, owes = submission.message.request_id, [submission.pending]
                result = records.put(submission.tenant, request_id, first, expect=expect, owes=owes)
                if due_at is not None and result.ok and records.together:
                    self._put_off(submission, due_at)
                written.append(result)
            begun = [
                _Start(start.submission, result.held.lease, result.held)
                for start, result in zip(starts, written, strict=True)
                if result.ok and result.held is not None
            ]
            if begun:
                self._record(begun, is_new=starts[0].expect is None)
                failed = self._send(
                    [start.paid(records) for start in begun if start.submission.due_at is None], traceparent
                )
            return written, failed

        written, failed = self._backend.together(unit) if records.together else unit()
        if failed is not None:
            raise failed
        return [result.ok for result in written]

    def _put_off(self, submission: Submission, due_at: int) -> None:
        put_off(self._backend, submission.tenant, submission.message, queue=self._queue_name, due_at=due_at)

    def _record(self, begun: Sequence[_Start], *, is_new: bool) -> None:
        records = self._records
        if any(start.submission.message.job_id is not None for start in begun):
            failpoints.hit("dispatcher.after_lease")
        try:
            records.append([start.submission.pending for start in begun])
        except PostroadError:
            for submission, _, held in begun if is_new and not records.together else ():
                # A task that is not recorded must not block another submission with its lease. One that was recorded
                # after all is sent by the Reconciler.
                assert held is not None
                with contextlib.suppress(PostroadError):
                    records.remove(submission.tenant, submission.message.request_id, expect=held)
            raise

    def _send(self, begun: Sequence[_Start], traceparent: str | None) -> Exception | None:
        """Send the messages and note it; return the first error. What is recorded stays: the Reconciler sends it."""
        if not begun:
            return None
        if any(start.submission.message.job_id is not None for start in begun):
            failpoints.hit("dispatcher.before_enqueue")
        errors: list[Exception | None]
        try:
            messages = [start.submission.outgoing(traceparent) for start in begun]
            errors = [each.error for each in self._queue.send(messages)]
        except PostroadError as refused:
            errors = [refused] * len(begun)
        for (submission, lease, held), error in zip(begun, errors, strict=True):
            now = _sent(submission, lease) if error is None else msgspec.structs.replace(lease, sent_at=None)
            if now.sent_at != lease.sent_at:
                # A worker that was faster noted it itself; nothing is lost if this fails.
                with contextlib.suppress(PostroadError):
                    self._records.put(submission.tenant, submission.message.request_id, now, expect=held)
        return next((error for error in errors if error is not None), None)


class _Start(NamedTuple):
    """A run with its lease and what the lease replaces; None if there is none yet."""

    submission: Submission
    lease: Lease
    expect: Held | None = None

    def paid(self, records: TaskRecords) -> _Start:
        assert self.expect is not None
        held = records.paid(self.expect)
        return _Start(self.submission, held.lease, held)


def _sent(submission: Submission, lease: Lease) -> Lease:
    return msgspec.structs.replace(lease, sent_at=submission.pending.timestamp)


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
