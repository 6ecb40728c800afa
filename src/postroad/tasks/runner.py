"""A runner of a worker: it has one slot for a child, and handles one message at a time."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import msgspec

from postroad import failpoints
from postroad.errors import InvalidMessage
from postroad.journal import ATTEMPT_FAILED, FAILED
from postroad.queues import Delivery
from postroad.settings import nearest
from postroad.tasks.attempts import QUARANTINED, Attempt
from postroad.tasks.children import kernel
from postroad.tasks.children.pool import ChildSlot, SlotLost
from postroad.tasks.children.wire import Active, Ready, Report
from postroad.tasks.leases import Drop, Failure, HandBack, Held, Lease, Quarantine, Take, decide, pause_while_unknown
from postroad.tasks.log import tell
from postroad.tasks.messages import TaskMessage, is_name, named_by, read, tenant_of
from postroad.tasks.records import TaskId
from postroad.tasks.verdicts import Halted, Verdict, crash_of_monitor, lost, verdict_of

if TYPE_CHECKING:
    from postroad.tasks.worker_threads import Shared


_HAND_BACK_SECONDS = 1.0
_NO_CHILD_SECONDS = 30.0
_STOPPING_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
# How long after its children the worker may hear of its own stop.
_STOP_SECONDS = 0.5
_MOST_UNKNOWN = 1_000
MONITOR_SECONDS = 15.0
"""How long a monitor may take to end a child and tell of it."""


class TaskRunner:
    """Runs the tasks it is given. Another thread may halt what it runs."""

    def __init__(self, shared: Shared, *, unknown_grace: float = 0.0) -> None:
        self._shared = shared
        self._unknown_grace = unknown_grace
        self._lock = threading.Lock()
        self._slot: ChildSlot | None = None
        self._pid: int | None = None
        self._monitor = 0
        self._due = inf
        """Until when the monitor must have told how the child ended."""
        self._running = False
        self._halted = False

    def open(self) -> None:
        """Take a slot, so that a child is ready before the first task."""
        self._slot = self._shared.pool.slot()

    def halt(self, grace: float) -> None:
        """End the running child and start no other: the worker stops."""
        with self._lock:
            self._halted = True
            if self._running and self._slot is not None:
                self._halt_child(self._slot, grace)

    def _halt_child(self, slot: ChildSlot, grace: float) -> None:
        self._due = min(self._due, time.monotonic() + grace + MONITOR_SECONDS)
        slot.halt(grace)

    def close(self) -> None:
        """Give the slot back."""
        if self._slot is not None:
            self._slot.close()

    def handle(self, delivery: Delivery) -> None:
        """Do what the message asks for; whatever fails on the way, the message is settled or comes back."""
        try:
            tenant, message = tenant_of(delivery, self._shared.tenant), read(delivery)
        except InvalidMessage as error:
            self._refuse(delivery, str(error))
            return
        entry = self._shared.pool.tasks.get(message.name)
        if entry is None:
            self._meet_unknown(delivery, tenant, message)
            return
        attempt = Attempt(self._shared, delivery, tenant, message, entry)
        self._admit(attempt, delivery, message)

    def _admit(self, attempt: Attempt, delivery: Delivery, message: TaskMessage) -> None:
        shared, task = self._shared, attempt.task
        while True:
            held = shared.records.read(task.tenant_id, task.request_id)
            lease = None if held is None else held.lease
            match decide(lease, run=message.run, now=shared.now(), max_attempts=attempt.max_attempts):
                case Take():
                    pid = self._child()
                    if pid is None:
                        # A machine that cannot start processes now must not use up the receives of its messages.
                        shared.release(delivery, after=0.0 if shared.stopping.is_set() else _NO_CHILD_SECONDS)
                        return
                    if attempt.take(held, pid):
                        self._run(attempt)
                        return
                case Quarantine(is_lost):
                    assert held is not None
                    if self._quarantine(task, delivery, held, is_lost=is_lost):
                        return
                case Drop(why):
                    self._drop(delivery, held if why == "known" else None)
                    return
                case HandBack(seconds):
                    shared.release(delivery, after=seconds)
                    return

    def _child(self) -> int | None:
        """The child that waits for an order; None when the worker stops and there is none."""
        for _ in range(3):
            try:
                if self._slot is None:
                    self._slot = self._shared.pool.slot()
                while self._pid is None:
                    heard = self._slot.hear()
                    if isinstance(heard, Ready):
                        self._pid, self._monitor = heard.pid, heard.monitor
            except SlotLost:
                self._lose_slot()
            else:
                return self._pid
        return None

    def _lose_slot(self) -> None:
        with self._lock:
            if self._slot is not None:
                self._slot.close()
            self._slot = self._pid = None

    def _run(self, attempt: Attempt) -> None:
        """Let the child work, keep its lease alive, and settle what comes of it."""
        with self._lock:
            self._running = not self._halted
        if not self._running:
            attempt.interrupt()
            return
        report: Report | None = None
        verdict: Verdict | None
        try:
            report = self._watch(attempt)
            verdict = None if report is None else verdict_of(report, is_command=attempt.is_command)
        except SlotLost:
            self._lose_slot()
            verdict = crash_of_monitor()
        except BaseException:
            # Nobody watches the child any more, so it must not go on.
            self._lose_slot()
            raise
        finally:
            with self._lock:
                self._running, self._pid = False, None
        if verdict is not None and report is not None and self._was_stopped_from_outside(report):
            verdict = Halted()
        if verdict is not None:
            attempt.settle(verdict, report)

    def _was_stopped_from_outside(self, report: Report) -> bool:
        """Whether a signal that stops this worker reached its children, too, as when a whole service is stopped."""
        if report.killed_with is not None or report.signal not in _STOPPING_SIGNALS:
            return False
        return self._shared.stopping.wait(_STOP_SECONDS)

    def _watch(self, attempt: Attempt) -> Report | None:
        """How the child ended; None when it was killed because the task is no longer ours."""
        slot, interval = self._slot, self._shared.config.extension_interval
        assert slot is not None
        self._due = time.monotonic() + attempt.timeout + self._shared.config.kill_grace + MONITOR_SECONDS
        slot.order(attempt.order())
        failpoints.hit("worker.after_spawn")
        next_beat = time.monotonic() + interval
        while True:
            wake_at = min(next_beat, self._due)
            heard = slot.hear(None if wake_at == inf else wake_at - time.monotonic())
            if isinstance(heard, Report):
                return None if next_beat == inf else heard
            if isinstance(heard, Active):
                attempt.activity = heard.activity
            # A child that never stops talking does not keep its lease from being refreshed.
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + interval
                if not attempt.beat():
                    next_beat = inf
                    self._halt_child(slot, self._shared.config.kill_grace)
            if time.monotonic() >= self._due:
                # Whoever should have ended the child hangs or was stopped. It dies, and all that it kept with it.
                self._due = inf
                kernel.kill(self._monitor, signal.SIGKILL)

    def _drop(self, delivery: Delivery, held: Held | None) -> None:
        """Ack a message that asks for nothing any more; what its run still owes the journal is recorded first."""
        if held is None or self._shared.records.record_owed(held):
            self._shared.ack(delivery)
        else:
            self._shared.release(delivery, after=_HAND_BACK_SECONDS)

    def _quarantine(self, task: TaskId, delivery: Delivery, held: Held, *, is_lost: bool) -> bool:
        """Move a task that was tried often enough to the dead letters; False when its lease changed meanwhile."""
        shared, lease = self._shared, held.lease
        failure, events = lease.failure, []
        if is_lost:
            found = lost(attempts=lease.attempts)
            failure = msgspec.convert(found.told, Failure)
            events = [
                shared.factory.event(
                    ATTEMPT_FAILED, task, token=lease.token, attemptNumber=lease.attempts, **found.told
                )
            ]
        error = None if failure is None else failure.error
        written = shared.records.write(
            task.tenant_id,
            task.request_id,
            lease.freed(failure=failure),
            events,
            expect=held,
            then=lambda recorded: shared.reject(delivery, reason=QUARANTINED, error=error),
        )
        if written.ok:
            tell("task_quarantined", request_id=task.request_id, run=task.run, error=error, attempt=lease.attempts)
        return written.ok

    def _meet_unknown(self, delivery: Delivery, tenant: str, message: TaskMessage) -> None:
        """Leave a name that is not known here to workers that may know it; fail it when its grace is over."""
        shared, name = self._shared, message.name
        if not is_name(name):
            self._refuse(delivery, f"name: {name[:100]!r} is not the name of a task")
            return
        held = shared.records.read(tenant, message.request_id)
        lease = None if held is None else held.lease
        now = shared.now()
        receipt = decide(lease, run=message.run, now=now, max_attempts=1 << 30)
        pause = pause_while_unknown(now - _pending_since(lease, delivery, message.run), grace=self._unknown_grace)
        if isinstance(receipt, Take) and pause is not None:
            self._log_unknown(message)
            shared.release(delivery, after=pause, error=f"unknown task {name!r}")
            return
        close = nearest(name, shared.pool.tasks)
        self._refuse(delivery, f"unknown task {name!r}" + (f"; did you mean {close!r}?" if close else ""))

    def _log_unknown(self, message: TaskMessage) -> None:
        """Log a name that is not known here, once."""
        known = self._shared.unknown
        if message.name not in known:
            if len(known) >= _MOST_UNKNOWN:
                known.clear()
            known.add(message.name)
            tell("task_unknown", task=message.name, request_id=message.request_id, grace=self._unknown_grace)

    def _refuse(self, delivery: Delivery, error: str) -> None:
        """Move what cannot be run to the dead letters; where it names a task, that task failed."""
        tell("task_refused", message_id=delivery.message_id, error=error)
        task = self._named(delivery)
        if task is None:
            self._shared.reject(delivery, reason="not a task", error=error)
            return
        while not self._fail_unrun(task, delivery, error):
            continue

    def _named(self, delivery: Delivery) -> TaskId | None:
        """The run that a message names, even if nothing else of it can be read."""
        found = named_by(delivery)
        try:
            tenant = tenant_of(delivery, self._shared.tenant)
        except InvalidMessage:
            return None
        return None if found is None else TaskId(tenant_id=tenant, request_id=found[0], run=found[1])

    def _fail_unrun(self, task: TaskId, delivery: Delivery, error: str) -> bool:
        shared = self._shared
        held = shared.records.read(task.tenant_id, task.request_id)
        match decide(None if held is None else held.lease, run=task.run, now=shared.now(), max_attempts=1 << 30):
            case Drop(why):
                self._drop(delivery, held if why == "known" else None)
                return True
            case HandBack(seconds):
                shared.release(delivery, after=seconds)
                return True
        lease = Lease(run=task.run, queue=shared.queue_name) if held is None else held.lease
        # The body may not be readable, and a dispatcher must still hear which job it was of.
        task = replace(task, job_id=lease.job_id, task_id=lease.task_id)
        event = shared.factory.event(
            FAILED, task, error=error[:500], errorCategory="validation", retryCount=lease.attempts, source="worker"
        )
        return shared.records.write(
            task.tenant_id,
            task.request_id,
            lease.settled(event),
            [event],
            expect=held,
            then=lambda recorded: shared.reject(delivery, reason=error, error=error),
        ).ok


def _pending_since(lease: Lease | None, delivery: Delivery, run: int) -> float:
    """When the run became pending, in seconds since 1970."""
    if lease is not None and lease.run == run and lease.begun_at:
        return lease.begun_at / 1_000
    return delivery.sent_at.timestamp()


def handle_safely(runner: TaskRunner, delivery: Delivery) -> None:
    """Handle a message; what fails is told of, and the message comes back by itself when its lease ends."""
    try:
        runner.handle(delivery)
    except Exception as error:
        # Whatever it was, the runner goes on: other tasks are not to blame.
        tell("task_handling_failed", message_id=delivery.message_id, error=error)
