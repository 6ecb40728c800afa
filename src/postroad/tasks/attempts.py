"""One attempt of a task: the lease is taken, the child runs and is kept alive, and its outcome is settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from postroad import failpoints
from postroad.errors import InvalidEvent, PostroadError
from postroad.journal import ATTEMPT_FAILED, COMPLETED, FAILED, HEARTBEAT, INTERRUPTED, STARTED, TIMEOUT, JournalEvent
from postroad.queues import Delivery, legible
from postroad.tasks.children.kernel import resident_bytes
from postroad.tasks.children.wire import Order, Report, TaskEntry
from postroad.tasks.config import named
from postroad.tasks.leases import Failure, Held, Lease, lease_end, pause_before_retry
from postroad.tasks.log import tell
from postroad.tasks.messages import TaskMessage
from postroad.tasks.records import TaskId, Then
from postroad.tasks.verdicts import Completed, Failed, Halted, TimedOut, Verdict

if TYPE_CHECKING:
    from postroad.tasks.worker_threads import Shared

Change = Callable[[Lease], Lease]
_FAILURES_BEFORE_KILL = 3
_RECORD_AGAIN_SECONDS = 1.0
_LARGE_BYTES = 180_000


class Attempt:
    """A task whose lease this worker may take."""

    def __init__(self, shared: Shared, delivery: Delivery, tenant: str, message: TaskMessage, entry: TaskEntry) -> None:
        self._shared = shared
        self._delivery = delivery
        self._message = message
        self._entry = entry
        self.task = TaskId(
            tenant_id=tenant,
            request_id=message.request_id,
            run=message.run,
            job_id=message.job_id,
            task_id=message.task_id,
        )
        self._held: Held | None = None
        self._pid = 0
        self._beats = 0
        self._failed_extensions = 0
        self._began = 0.0
        self.activity: bytes | None = None

    @property
    def max_attempts(self) -> int:
        """How often it is tried."""
        return self._entry.max_attempts or self._shared.config.max_attempts

    @property
    def timeout(self) -> float:
        """How long the child may take, in seconds."""
        if self._message.timeout_ms is not None:
            return self._message.timeout_ms / 1_000
        return self._entry.timeout or self._shared.config.timeout

    @property
    def is_command(self) -> bool:
        """Whether the child is a program of its own."""
        return self._entry.command is not None

    def take(self, before: Held | None, pid: int) -> bool:
        """Take the lease and record the start; False when somebody else was quicker."""
        shared, now = self._shared, self._shared.now()
        until = lease_end(now, shared.config.visibility_extension)
        first = self._first_lease() if before is None else before.lease
        lease = first.taken(owner=shared.worker_id, run=self.task.run, until=until, now_ms=int(now * 1_000))
        started = self._event(
            STARTED,
            lease,
            effectiveUntil=until,
            workerId=shared.worker_id,
            processId=pid,
            startedAt=int(now * 1_000),
            attemptNumber=lease.attempts,
        )
        written = shared.records.write(self.task.tenant_id, self.task.request_id, lease, [started], expect=before)
        if written.ok:
            self._held, self._pid, self._began = written.held, pid, time.monotonic()
            self._tell("task_started", pid=pid)
        return written.ok

    def order(self) -> Order:
        """What the child is told."""
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
            env=named(self._entry.pass_env),
        )

    def beat(self) -> bool:
        """Keep message and lease for another while; False when the task is no longer ours."""
        self._beats += 1
        self._failed_extensions = 0 if self._extended() else self._failed_extensions + 1
        if self._failed_extensions >= _FAILURES_BEFORE_KILL or not self._refreshed():
            self._tell("task_lease_lost")
            return False
        self._record_heartbeat()
        return True

    def settle(self, verdict: Verdict, report: Report | None) -> None:
        """Write down what became of the attempt: in the lease first, then in the journal, then in the queue."""
        failpoints.hit("worker.before_result")
        match verdict:
            case Completed():
                self._complete(verdict, report)
            case TimedOut():
                self._end(self._timed_out(verdict, report), error=f"ended by {verdict.signal} after {self.timeout:g} s")
            case Failed(retryable=True):
                self._fail_attempt(verdict)
            case Failed():
                self._tell_traceback(verdict)
                self._end(self._failed(verdict), error=verdict.located or verdict.error)
            case Halted():
                self.interrupt()

    def interrupt(self) -> None:
        """Give everything back: the worker stops, and that costs no attempt."""
        event = self._event(INTERRUPTED, self._lease, reason="the worker stopped")
        self._write(
            lambda lease: lease.freed(attempts=lease.attempts - 1),
            [event],
            lambda recorded: self._shared.release(self._delivery),
        )
        self._tell("task_interrupted")

    @property
    def _lease(self) -> Lease:
        assert self._held is not None
        return self._held.lease

    def _first_lease(self) -> Lease:
        return Lease(
            run=self.task.run,
            name=self._message.name,
            queue=self._shared.queue_name,
            app=self._shared.factory.app,
            job_id=self.task.job_id,
            task_id=self.task.task_id,
            begun_at=self._shared.factory.now_ms(),
        )

    def _end(self, event: JournalEvent, **told: Any) -> None:
        """The run ended with this event. A journal that is down gets it when the message comes back."""

        def then(recorded: bool) -> None:
            if recorded:
                self._shared.ack(self._delivery)
            else:
                self._shared.release(self._delivery, after=_RECORD_AGAIN_SECONDS)

        if self._write(lambda lease: lease.settled(event), [event], then):
            attempt = {"attempt": self._lease.attempts} if told else {}
            self._tell(_LINES[event.event_type], **attempt, **told)

    def _complete(self, verdict: Completed, report: Report | None) -> None:
        """Record the result; one that the journal cannot hold fails the task, which would only return it again."""
        try:
            if not self._shared.keeps_large and len(msgspec.json.encode(verdict.output)) > _LARGE_BYTES:
                raise InvalidEvent("the result is too large for a journal without blobs")
            event = self._completed(verdict, report)
        except InvalidEvent as error:
            failed = Failed(legible(f"the result cannot be recorded: {error}"), "validation", False)
            self._end(self._failed(failed), error=failed.error)
        else:
            self._end(event)

    def _completed(self, verdict: Completed, report: Report | None) -> JournalEvent:
        return self._event(
            COMPLETED,
            self._lease,
            output=verdict.output,
            durationMs=_elapsed(report),
            exitCode=verdict.exit_code,
            usage=verdict.usage,
        )

    def _timed_out(self, verdict: TimedOut, report: Report | None) -> JournalEvent:
        return self._event(
            TIMEOUT,
            self._lease,
            timeoutMs=int(self.timeout * 1_000),
            elapsedMs=_elapsed(report),
            signal=verdict.signal,
            lastLines=list(verdict.last_lines) or None,
        )

    def _failed(self, verdict: Failed) -> JournalEvent:
        return self._event(FAILED, self._lease, retryCount=self._lease.attempts, source="worker", **verdict.told)

    def _fail_attempt(self, verdict: Failed) -> None:
        attempts = self._lease.attempts
        failure = msgspec.convert(verdict.told, Failure)
        event = self._event(ATTEMPT_FAILED, self._lease, attemptNumber=attempts, **verdict.told)
        self._tell_traceback(verdict)
        last = attempts >= self.max_attempts
        config = self._shared.config
        pause = pause_before_retry(attempts, base=config.retry_base, cap=config.retry_cap, chance=self._shared.chance())

        def then(recorded: bool) -> None:
            if last:
                self._shared.reject(self._delivery, reason=QUARANTINED, error=verdict.error)
            else:
                self._shared.release(self._delivery, after=pause, error=verdict.error)

        if self._write(lambda lease: lease.freed(failure=failure), [event], then):
            told = {} if last else {"retry_in_seconds": round(pause, 3)}
            self._tell(
                "task_quarantined" if last else "task_retried",
                category=verdict.category,
                error=verdict.located or verdict.error,
                attempt=attempts,
                **told,
            )

    def _write(self, change: Change, events: Sequence[JournalEvent], then: Then) -> bool:
        """Change the lease if it is still ours, however often the store has to be asked; False when it is not."""
        shared, held = self._shared, self._held
        assert held is not None
        deadline, pause = time.monotonic() + shared.config.visibility, 0.05
        while True:
            try:
                written = shared.records.write(
                    self.task.tenant_id, self.task.request_id, change(held.lease), events, expect=held, then=then
                )
            except PostroadError as error:
                self._tell("task_settle_failed", error=error)
                if time.monotonic() > deadline:
                    return False
                time.sleep(pause)
                pause = min(2 * pause, 2.0)
                continue
            if written.ok:
                return True
            if written.held is None or not written.held.lease.is_held_by(shared.worker_id, self._lease.token):
                return self._was_written(written.held, events, then)
            held = written.held

    def _was_written(self, held: Held | None, events: Sequence[JournalEvent], then: Then) -> bool:
        """Whether the lease is as it is because of an earlier write of ours whose answer was lost."""
        outcome = None if held is None else held.lease.outcome
        if outcome is not None and outcome.event_id == str(events[-1].event_id):
            then(self._shared.records.record(events))
            return True
        self._tell("task_lease_lost")
        return False

    def _extended(self) -> bool:
        queue, config = self._shared.queue, self._shared.config
        try:
            (result,) = queue.extend([self._delivery], seconds=config.visibility_extension)
        except PostroadError as error:
            self._tell("task_heartbeat_failed", error=error)
            return False
        return result.ok

    def _refreshed(self) -> bool:
        """Whether the lease is still ours; a store that cannot be asked is not an answer."""
        shared, held = self._shared, self._held
        assert held is not None
        until = lease_end(shared.now(), shared.config.visibility_extension)
        try:
            while True:
                lease = msgspec.structs.replace(
                    held.lease,
                    effective_until=until,
                    last_event_type=HEARTBEAT,
                    last_event_at=shared.factory.now_ms(),
                )
                written = shared.records.put(self.task.tenant_id, self.task.request_id, lease, expect=held)
                if written.ok:
                    self._held = written.held
                    return True
                if written.held is None or not written.held.lease.is_held_by(shared.worker_id, lease.token):
                    return False
                held = written.held
        except PostroadError as error:
            self._tell("task_heartbeat_failed", error=error)
            return True

    def _record_heartbeat(self) -> None:
        activity = None if self.activity is None else msgspec.json.decode(self.activity)
        event = self._event(
            HEARTBEAT,
            self._lease,
            effectiveUntil=self._lease.effective_until,
            heartbeatNumber=self._beats,
            elapsedMs=int((time.monotonic() - self._began) * 1_000),
            workerId=self._shared.worker_id,
            processId=self._pid,
            memoryUsage={"rss": resident_bytes(self._pid)},
            lastActivity=activity,
        )
        self._shared.records.record([event])

    def _event(self, event_type: str, lease: Lease, **properties: Any) -> JournalEvent:
        return self._shared.factory.event(event_type, self.task, token=lease.token, **properties)

    def _tell_traceback(self, verdict: Failed) -> None:
        if verdict.traceback:
            self._tell("task_traceback", attempt=self._lease.attempts, traceback="\n".join(verdict.traceback))

    def _tell(self, line: str, **fields: Any) -> None:
        tell(line, request_id=self.task.request_id, task=self._message.name, run=self.task.run, **fields)


QUARANTINED = "max attempts"
_LINES = {COMPLETED: "task_completed", FAILED: "task_failed", TIMEOUT: "task_timed_out"}


def _elapsed(report: Report | None) -> int:
    return 0 if report is None else report.elapsed_ms
