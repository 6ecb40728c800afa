"""One attempt of a task: it takes the lease, keeps it alive while the child runs, and settles the outcome."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from postroad import failpoints
from postroad.errors import InvalidEvent, PostroadError
from postroad.journal import (
    ATTEMPT_FAILED,
    COMPLETED,
    FAILED,
    HEARTBEAT,
    INTERRUPTED,
    STARTED,
    TIMEOUT,
    JournalEvent,
    TaskProgress,
)
from postroad.queues import Delivery, legible
from postroad.tasks.child_output import Activity, Reported
from postroad.tasks.leases import Also, Failure, Held, Lease, Then, Written, first_lease, lease_end
from postroad.tasks.messages import TaskMessage, log_event
from postroad.tasks.processes import Order, Report, TaskEntry, resident_bytes
from postroad.tasks.registry import passed
from postroad.tasks.verdicts import Completed, Failed, Halted, TimedOut, Verdict, lines_logged, pause_before_retry
from postroad.telemetry import tracing

if TYPE_CHECKING:
    from postroad.tasks.threads import Shared

_FAILURES_BEFORE_KILL = 3
_RECORD_AGAIN_SECONDS = 1.0
_LARGE_BYTES = 180_000
# How often a progress is written; far away each write is a request that costs money.
_PROGRESS_SECONDS = 1.0
_FAR_PROGRESS_SECONDS = 5.0
QUARANTINED = "max attempts"
_LOG_EVENTS = {COMPLETED: "task_completed", FAILED: "task_failed", TIMEOUT: "task_timed_out"}


class Attempt:
    """A task whose lease this worker may take."""

    def __init__(self, shared: Shared, delivery: Delivery, tenant: str, message: TaskMessage, entry: TaskEntry) -> None:
        self._shared = shared
        self._delivery = delivery
        self._message = message
        self._entry = entry
        self.task = message.task(tenant)
        self.name = message.name
        self.max_attempts = entry.max_attempts or shared.config.max_attempts
        timeout_ms = message.timeout_ms
        self.timeout = timeout_ms / 1_000 if timeout_ms is not None else entry.timeout or shared.config.timeout
        """How long the child may take, in seconds."""
        self.is_command = entry.command is not None
        self._held: Held | None = None
        self._pid = 0
        self._beats = 0
        self._failed_extensions = 0
        self._began = 0.0
        self._activity: Activity | None = None
        self._progress: TaskProgress | None = None
        self._progress_saved = -inf
        self.progress_due = inf
        """When the progress has to be saved, on the monotonic clock."""
        self._also: Also | None = None
        self.along = False
        """Whether what `settle` was to do also was committed with the outcome."""

    def span(self) -> AbstractContextManager[object]:
        """Return a span around its run, in the trace of its submission."""
        trace = self._delivery.attributes.get(tracing.TRACE_ATTRIBUTE)
        place, request_id = self._shared.queue.name, self.task.request_id
        return tracing.handling_by(self.name, trace, queue=place, message_id=request_id)

    def take(self, before: Held | None, pid: int) -> bool:
        """Take the lease and record the start; return False if another worker was faster."""
        lease, started = self._start(before, pid)
        records, task = self._shared.records, self.task
        return self._note_taken(records.write(task.tenant_id, task.request_id, lease, [started], expect=before), pid)

    def take_along(self, before: Held | None, pid: int) -> list[JournalEvent]:
        """Take the lease in a commit that also records the returned events; return none if it is not taken."""
        lease, started = self._start(before, pid)
        if lease.owes:
            return []
        lease, records, task = lease.with_last_of([started]), self._shared.records, self.task
        taken = self._note_taken(records.put(task.tenant_id, task.request_id, lease, expect=before), pid)
        return [started] if taken else []

    def _start(self, before: Held | None, pid: int) -> tuple[Lease, JournalEvent]:
        """Return the lease as this worker holds it, and the event of the start."""
        shared, now = self._shared, self._shared.now()
        until = lease_end(now, shared.config.visibility_extension)
        queue, app, now_ms = shared.queue_name, shared.factory.app, int(now * 1_000)
        first = first_lease(self.task, self._message.name, queue, app, now_ms) if before is None else before.lease
        lease = first.taken(owner=shared.worker_id, run=self.task.run, until=until, now_ms=now_ms)
        started = shared.factory.event(
            STARTED,
            self.task,
            token=lease.token,
            effectiveUntil=until,
            workerId=shared.worker_id,
            processId=pid,
            startedAt=now_ms,
            attemptNumber=lease.attempts,
        )
        return lease, started

    def _note_taken(self, written: Written, pid: int) -> bool:
        if written.ok:
            self._held, self._pid, self._began = written.held, pid, time.monotonic()
        return written.ok

    def log_start(self) -> None:
        """Log that it starts; not before the lease is committed."""
        self._log("task_started", pid=self._pid)

    def order(self) -> Order:
        lease = self._lease
        return Order(
            name=self._message.name,
            request_id=self.task.request_id,
            tenant_id=self.task.tenant_id,
            run=self.task.run,
            attempt=lease.attempts,
            token=lease.token,
            document=self._message.document(attempt=lease.attempts, token=lease.token),
            timeout=self.timeout,
            kill_grace=self._shared.config.kill_grace,
            deadline=self._shared.now() + self.timeout,
            job_id=self.task.job_id,
            task_id=self.task.task_id,
            env=passed(self._entry.pass_env, os.environ | self._shared.address) if self._entry.pass_env else {},
        )

    def beat(self) -> bool:
        """Extend the message and the lease, and record a heartbeat; return False if the lease was lost."""
        self._beats += 1
        extended = False
        try:
            (result,) = self._shared.queue.extend([self._delivery], seconds=self._shared.config.visibility_extension)
            extended = result.ok
        except PostroadError as error:
            self._log("task_heartbeat_failed", error=error)
        self._failed_extensions = 0 if extended else self._failed_extensions + 1
        if self._failed_extensions >= _FAILURES_BEFORE_KILL or not self._refreshed():
            self._log("task_lease_lost")
            return False
        event = self._event(
            HEARTBEAT,
            effectiveUntil=self._lease.effective_until,
            heartbeatNumber=self._beats,
            elapsedMs=int((time.monotonic() - self._began) * 1_000),
            workerId=self._shared.worker_id,
            processId=self._pid,
            memoryUsage={"rss": resident_bytes(self._pid)},
            lastActivity=msgspec.to_builtins(self._activity),
            progress=None if self._progress is None else self._progress.to_dict(),
        )
        self._shared.records.record([event])
        return True

    def note(self, reported: Reported) -> None:
        """Note what the child reported last; the progress is due to be saved, but not too often."""
        self._activity, found, before = reported.activity, reported.progress, self._progress
        if found is None:
            return
        if before is None or (before.fraction, before.message) != (found.fraction, found.message):
            at = self._shared.factory.now_ms()
            self._progress = TaskProgress(fraction=found.fraction, message=found.message, at=at)
            pause = _PROGRESS_SECONDS if self._shared.queue.traits.short_waits else _FAR_PROGRESS_SECONDS
            self.progress_due = max(time.monotonic(), self._progress_saved + pause)

    def save_progress(self) -> None:
        """Write the progress to the lease, where everybody can see it; a lost lease is noticed by the next beat."""
        self._progress_saved, self.progress_due = time.monotonic(), inf
        self._change(lambda lease: lease)

    def settle(self, verdict: Verdict, report: Report | None, also: Also | None = None) -> None:
        """Write the outcome of the attempt: first to the lease, then to the journal, then to the queue.

        `also` is called in the commit that ends the run, if all this is one commit; what it returns is recorded, too.
        """
        self._also = also
        failpoints.hit("worker.before_result")
        elapsed_ms = 0 if report is None else report.elapsed_ms
        match verdict:
            case Completed():
                self._complete(verdict, elapsed_ms)
            case TimedOut():
                event = self._event(
                    TIMEOUT,
                    timeoutMs=int(self.timeout * 1_000),
                    elapsedMs=elapsed_ms,
                    signal=verdict.signal,
                    lastLines=list(verdict.last_lines) or None,
                )
                error = f"ended by {verdict.signal} after {self.timeout:g} s"
                self._end(event, error=error, **lines_logged(None, verdict.last_lines))
            case Failed(retryable=True):
                self._fail_attempt(verdict)
            case Failed():
                self._log_traceback(verdict)
                logged = lines_logged(verdict.traceback, verdict.last_lines)
                self._end(self._failed(verdict), error=verdict.located or verdict.error, **logged)
            case Halted():
                self.interrupt()

    def interrupt(self) -> None:
        """Release the task because the worker stops; that costs no attempt."""
        event = self._event(INTERRUPTED, reason="the worker stopped")
        self._write(
            lambda lease: lease.freed(attempts=lease.attempts - 1),
            [event],
            lambda recorded: self._shared.release(self._delivery),
        )
        self._log("task_interrupted")

    @property
    def _lease(self) -> Lease:
        assert self._held is not None
        return self._held.lease

    def _end(self, event: JournalEvent, **fields: Any) -> None:
        """End the run with this event. A journal that is down gets it when the message comes back."""

        def then(recorded: bool) -> None:
            if recorded:
                self._shared.queue.ack([self._delivery])
            else:
                self._shared.release(self._delivery, after=_RECORD_AGAIN_SECONDS)

        if self._write(lambda lease: lease.settled(event), [event], then, self._also):
            attempt = {"attempt": self._lease.attempts} if fields else {}
            self._log(_LOG_EVENTS[event.event_type], **attempt, **fields)

    def _complete(self, verdict: Completed, elapsed_ms: int) -> None:
        """Record the result. A result that the journal cannot hold fails the task: a retry would return it again."""
        try:
            if not self._shared.keeps_large and len(msgspec.json.encode(verdict.output)) > _LARGE_BYTES:
                raise InvalidEvent("the result is too large for a journal without blobs")
            event = self._event(
                COMPLETED,
                output=verdict.output,
                durationMs=elapsed_ms,
                exitCode=verdict.exit_code,
                usage=verdict.usage,
            )
        except InvalidEvent as error:
            failed = Failed(legible(f"the result cannot be recorded: {error}"), "validation", False)
            self._end(self._failed(failed), error=failed.error)
        else:
            self._end(event)

    def _failed(self, verdict: Failed) -> JournalEvent:
        return self._event(FAILED, retryCount=self._lease.attempts, source="worker", **verdict.properties)

    def _fail_attempt(self, verdict: Failed) -> None:
        attempts = self._lease.attempts
        failure = msgspec.convert(verdict.properties, Failure)
        last = attempts >= self.max_attempts
        pause = self._pause(attempts) if verdict.after is None else verdict.after
        retry_at = None if last else round((self._shared.now() + pause) * 1_000)
        event = self._event(ATTEMPT_FAILED, attemptNumber=attempts, retryAt=retry_at, **verdict.properties)
        self._log_traceback(verdict)

        def then(recorded: bool) -> None:
            if last:
                self._shared.reject(self._delivery, reason=QUARANTINED, error=verdict.error)
            else:
                self._shared.release(self._delivery, after=pause, error=verdict.error)

        if self._write(lambda lease: lease.freed(failure=failure), [event], then):
            retry = {} if last else {"retry_in_seconds": round(pause, 3)}
            self._log(
                "task_quarantined" if last else "task_retried",
                category=verdict.category,
                error=verdict.located or verdict.error,
                attempt=attempts,
                **retry,
                **lines_logged(verdict.traceback, verdict.last_lines),
            )

    def _pause(self, attempts: int) -> float:
        config, entry = self._shared.config, self._entry
        base = config.retry_base if entry.retry_base is None else entry.retry_base
        cap = config.retry_cap if entry.retry_cap is None else entry.retry_cap
        return pause_before_retry(attempts, base=base, cap=cap, chance=self._shared.chance())

    def _write(
        self,
        change: Callable[[Lease], Lease],
        events: Sequence[JournalEvent],
        then: Then,
        also: Also | None = None,
    ) -> bool:
        """Change the lease, retrying until the store answers; return False if it is no longer ours."""
        shared, held = self._shared, self._held
        assert held is not None
        deadline, pause = time.monotonic() + shared.config.visibility, 0.05
        while True:
            try:
                lease = self._with_progress(change(held.lease))
                written = shared.records.write(
                    self.task.tenant_id, self.task.request_id, lease, events, expect=held, then=then, also=also
                )
            except PostroadError as error:
                self._log("task_settle_failed", error=error)
                if time.monotonic() > deadline:
                    return False
                time.sleep(pause)
                pause = min(2 * pause, 2.0)
                continue
            if written.ok:
                self.along = written.along
                return True
            if written.held is None or not written.held.lease.is_held_by(shared.worker_id, self._lease.token):
                outcome = None if written.held is None else written.held.lease.outcome
                if outcome is not None and outcome.event_id == str(events[-1].event_id):
                    # An earlier write of ours succeeded, and its answer was lost.
                    then(shared.records.record(events))
                    return True
                self._log("task_lease_lost")
                return False
            held = written.held

    def _refreshed(self) -> bool:
        """Refresh the lease; return False only if it is known to be lost."""
        until = lease_end(self._shared.now(), self._shared.config.visibility_extension)
        now_ms = self._shared.factory.now_ms()
        return self._change(
            lambda lease: msgspec.structs.replace(
                lease, effective_until=until, last_event_type=HEARTBEAT, last_event_at=now_ms
            )
        )

    def _with_progress(self, lease: Lease) -> Lease:
        return lease if self._progress is None else msgspec.structs.replace(lease, progress=self._progress)

    def _change(self, change: Callable[[Lease], Lease]) -> bool:
        """Change the lease of a running child; return False only if it is known to be lost."""
        shared, held = self._shared, self._held
        assert held is not None
        try:
            while True:
                lease = self._with_progress(change(held.lease))
                written = shared.records.put(self.task.tenant_id, self.task.request_id, lease, expect=held)
                if written.ok:
                    self._held = written.held
                    return True
                if written.held is None or not written.held.lease.is_held_by(shared.worker_id, lease.token):
                    return False
                held = written.held
        except PostroadError as error:
            self._log("task_heartbeat_failed", error=error)
            return True

    def _event(self, event_type: str, **properties: Any) -> JournalEvent:
        return self._shared.factory.event(event_type, self.task, token=self._lease.token, **properties)

    def _log_traceback(self, verdict: Failed) -> None:
        if verdict.traceback:
            self._log("task_traceback", attempt=self._lease.attempts, traceback="\n".join(verdict.traceback))

    def _log(self, event: str, **fields: Any) -> None:
        about = {"request_id": self.task.request_id, "task": self._message.name, "run": self.task.run}
        if self._began and event != "task_started":
            fields["duration_ms"] = int((time.monotonic() - self._began) * 1_000)
        log_event(event, **about, queue=self._shared.queue_name, **fields)
