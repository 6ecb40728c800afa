"""A runner of a worker: it has a slot for one child, and handles one message at a time."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import msgspec

from postroad import failpoints
from postroad.errors import InvalidMessage
from postroad.journal import ATTEMPT_FAILED, JournalEvent
from postroad.queues import Delivery
from postroad.settings import nearest
from postroad.tasks.attempts import QUARANTINED, Attempt
from postroad.tasks.leases import Failure, Held, Lease
from postroad.tasks.messages import TaskId, TaskMessage, log_event, named_by, read, tenant_of
from postroad.tasks.pool import ChildSlot
from postroad.tasks.processes import Active, PeerGone, Ready, Report, kill
from postroad.tasks.registry import NAME
from postroad.tasks.verdicts import (
    Drop,
    Failed,
    Halted,
    HandBack,
    Quarantine,
    Receipt,
    Take,
    TimedOut,
    Verdict,
    crashed,
    decide,
    pause_while_unknown,
    verdict_of,
)
from postroad.telemetry import tracing

if TYPE_CHECKING:
    from postroad.tasks.threads import Shared

_HAND_BACK_SECONDS = 1.0
_NO_CHILD_SECONDS = 30.0
_STOPPING_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
# How long after its children the worker may receive the same signal.
_STOP_SECONDS = 0.5
_MOST_UNKNOWN = 1_000
MONITOR_SECONDS = 15.0
"""How long a monitor may take to end a child and report it."""


class TaskRunner:
    """Runs the tasks of the messages it gets. Another thread may halt the running child.

    With `takes_next` the commit that ends a task also receives the next message and takes its lease, if the store can
    do that and a child waits.
    """

    def __init__(self, shared: Shared, *, unknown_grace: float = 0.0, takes_next: bool = False) -> None:
        self._shared = shared
        self._unknown_grace = unknown_grace
        self._takes_next = takes_next and shared.records.together
        self._next: tuple[Delivery, Attempt | None] | None = None
        """The message that was received with the end of a task, and its attempt if the lease was taken."""
        self._lock = threading.Lock()
        self._slot: ChildSlot | None = None
        self._pid: int | None = None
        self._monitor = 0
        self._due = inf
        """When the monitor must have reported the end of the child."""
        self._running = False
        self._halted = False

    def open(self) -> None:
        """Open a slot, so that a child is ready before the first task."""
        self._slot = self._shared.pool.slot()

    def halt(self, grace: float) -> None:
        """End the running child and start no other, because the worker stops."""
        with self._lock:
            self._halted = True
            if self._running and self._slot is not None:
                self._halt_child(self._slot, grace)

    def _halt_child(self, slot: ChildSlot, grace: float) -> None:
        self._due = min(self._due, time.monotonic() + grace + MONITOR_SECONDS)
        slot.halt(grace)

    def close(self) -> None:
        if self._slot is not None:
            self._slot.close()

    def handle(self, shared: Shared, delivery: Delivery) -> None:
        """Run the task of the message, or settle the message otherwise; after an error the message comes back.

        `shared` is that of the queue from which the message was received.
        """
        self._shared = shared
        self._next = delivery, None
        while self._next is not None:
            (delivery, attempt), self._next = self._next, None
            if attempt is None:
                self._handle(delivery)
            else:
                self._run(attempt)

    def _handle(self, delivery: Delivery) -> None:
        shared = self._shared
        try:
            attempt = self._attempt(delivery)
        except InvalidMessage as error:
            self._refuse(delivery, str(error))
            return
        if attempt is None:
            self._handle_unknown(delivery, tenant_of(delivery, shared.tenant), read(delivery))
            return
        while True:
            held, receipt = self._receipt(attempt)
            match receipt:
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
                    if self._quarantine(attempt.task, delivery, held, is_lost=is_lost):
                        return
                case Drop(why):
                    self._drop(delivery, held if why == "known" else None)
                    return
                case HandBack(seconds):
                    shared.release(delivery, after=seconds)
                    return

    def _attempt(self, delivery: Delivery) -> Attempt | None:
        """Return the attempt that a message asks for, None if nobody here knows the task; or raise `InvalidMessage`."""
        shared = self._shared
        tenant, message = tenant_of(delivery, shared.tenant), read(delivery)
        entry = shared.pool.tasks.get(message.name)
        return None if entry is None else Attempt(shared, delivery, tenant, message, entry)

    def _receipt(self, attempt: Attempt) -> tuple[Held | None, Receipt]:
        shared, task = self._shared, attempt.task
        held = shared.records.read(task.tenant_id, task.request_id)
        lease = None if held is None else held.lease
        return held, decide(lease, run=task.run, now=shared.now(), max_attempts=attempt.max_attempts)

    def _take(self) -> list[JournalEvent]:
        """Receive the next message and take its lease, in the commit that ends the task before; it may run again."""
        self._next, events = None, list[JournalEvent]()
        shared, pid = self._shared, self._pid
        deliveries = shared.queue.receive(max_messages=1, visibility=shared.config.visibility)
        if not deliveries or pid is None:
            return events
        (delivery,) = deliveries
        with tracing.receiving(shared.queue.name, deliveries):
            self._next = delivery, None
        # Whatever is not simply run is handled after the commit.
        with suppress(InvalidMessage):
            attempt = self._attempt(delivery)
            if attempt is not None:
                held, receipt = self._receipt(attempt)
                if isinstance(receipt, Take) and (events := attempt.take_along(held, pid)):
                    self._next = delivery, attempt
        failpoints.hit("worker.before_next")
        return events

    def _child(self) -> int | None:
        """Return the child that waits for an order; None if none can be started."""
        if self._slot is not None and self._slot.is_stale():
            self._lose_slot()
        for _ in range(3):
            try:
                if self._slot is None:
                    self._slot = self._shared.pool.slot()
                self._read_slot(self._slot, None if self._pid is None else 0.0)
            except PeerGone:
                self._lose_slot()
            else:
                return self._pid
        return None

    def _read_slot(self, slot: ChildSlot, timeout: float | None) -> None:
        """Note the child that waits. Read to the end: its monitor may have replaced it, or died itself."""
        while (received := slot.receive(timeout)) is not None:
            if isinstance(received, Ready):
                self._pid, self._monitor, timeout = received.pid, received.monitor, 0.0

    def _can_take(self) -> bool:
        """Return whether the next message can be received with the end of a task: its child waits for another."""
        slot = self._slot
        if not self._takes_next or self._halted or self._shared.stopping.is_set() or slot is None or slot.is_stale():
            return False
        try:
            self._read_slot(slot, 0.0)
        except PeerGone:
            self._lose_slot()
        return self._pid is not None

    def _lose_slot(self) -> None:
        with self._lock:
            if self._slot is not None:
                self._slot.close()
            self._slot = self._pid = None

    def _run(self, attempt: Attempt) -> None:
        """Run the child, keep its lease alive, and settle the outcome."""
        with self._lock:
            self._running = not self._halted
        if not self._running:
            attempt.interrupt()
            return
        attempt.log_start()
        report: Report | None = None
        verdict: Verdict | None
        try:
            name, now = attempt.name, self._shared.clock.now()
            with attempt.span(), self._shared.running.noted(attempt.task.request_id, name, now, self._pid or 0):
                report = self._watch(attempt)
                verdict = None if report is None else verdict_of(report, is_command=attempt.is_command)
                if isinstance(verdict, Failed | TimedOut):
                    tracing.note_failure(verdict.error if isinstance(verdict, Failed) else "it took too long")
        except PeerGone:
            self._lose_slot()
            verdict = crashed("the process that watched the child died", "no-result")
        except BaseException:
            # The child is no longer watched, so it must not go on.
            self._lose_slot()
            raise
        finally:
            with self._lock:
                self._running, self._pid = False, None
        stopped = report is not None and report.killed_with is None and report.signal in _STOPPING_SIGNALS
        # A signal may have reached this worker and its children, as when a whole service is stopped.
        if verdict is not None and stopped and self._shared.stopping.wait(_STOP_SECONDS):
            verdict = Halted()
        if verdict is not None:
            attempt.settle(verdict, report, self._take if self._can_take() else None)
            if not attempt.along:
                # Nothing was taken, or it is not known whether it was: then the message comes back.
                self._next = None

    def _watch(self, attempt: Attempt) -> Report | None:
        """Return the report of the child; None if it was killed because the lease was lost."""
        slot, interval = self._slot, self._shared.config.extension_interval
        assert slot is not None
        self._due = time.monotonic() + attempt.timeout + self._shared.config.kill_grace + MONITOR_SECONDS
        slot.order(attempt.order())
        failpoints.hit("worker.after_spawn")
        next_beat = time.monotonic() + interval
        while True:
            wake_at = min(next_beat, self._due, attempt.progress_due)
            received = slot.receive(None if wake_at == inf else wake_at - time.monotonic())
            if isinstance(received, Report):
                attempt.note(received.reported)
                return None if next_beat == inf else received
            if isinstance(received, Active):
                attempt.note(received)
            if time.monotonic() >= attempt.progress_due:
                attempt.save_progress()
            # The lease is refreshed even if the child never stops reporting activities.
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + interval
                if not attempt.beat():
                    next_beat = inf
                    self._halt_child(slot, self._shared.config.kill_grace)
            if time.monotonic() >= self._due:
                # The monitor should have ended the child, but hangs or was stopped. Killing it ends the child, too.
                self._due = inf
                kill(self._monitor, signal.SIGKILL)

    def _drop(self, delivery: Delivery, held: Held | None) -> None:
        """Ack a message whose run has ended, after the events that the run owes are recorded."""
        if held is None or self._shared.records.record_owed(held):
            self._shared.queue.ack([delivery])
        else:
            self._shared.release(delivery, after=_HAND_BACK_SECONDS)

    def _quarantine(self, task: TaskId, delivery: Delivery, held: Held, *, is_lost: bool) -> bool:
        """Move a task without attempts left to the dead letters; return False if its lease changed meanwhile."""
        shared, lease = self._shared, held.lease
        failure, events = lease.failure, []
        if is_lost:
            found = crashed(f"the worker of attempt {lease.attempts} was lost", "worker-lost")
            failure = msgspec.convert(found.properties, Failure)
            events = [
                shared.factory.event(
                    ATTEMPT_FAILED, task, token=lease.token, attemptNumber=lease.attempts, **found.properties
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
            log_event("task_quarantined", request_id=task.request_id, run=task.run, error=error, attempt=lease.attempts)
        return written.ok

    def _handle_unknown(self, delivery: Delivery, tenant: str, message: TaskMessage) -> None:
        """Leave an unknown name to workers that may know it; fail the task when its grace is over."""
        shared, name = self._shared, message.name
        if NAME.fullmatch(name) is None:
            self._refuse(delivery, f"name: {name[:100]!r} is not the name of a task")
            return
        held = shared.records.read(tenant, message.request_id)
        lease = None if held is None else held.lease
        now, since = shared.now(), delivery.sent_at.timestamp()
        if lease is not None and lease.run == message.run and lease.begun_at:
            since = lease.begun_at / 1_000
        receipt = decide(lease, run=message.run, now=now, max_attempts=1 << 30)
        pause = pause_while_unknown(now - since, grace=self._unknown_grace)
        if isinstance(receipt, Take) and pause is not None:
            if name not in shared.unknown:
                if len(shared.unknown) >= _MOST_UNKNOWN:
                    shared.unknown.clear()
                shared.unknown.add(name)
                log_event("task_unknown", task=name, request_id=message.request_id, grace=self._unknown_grace)
            shared.release(delivery, after=pause, error=f"unknown task {name!r}")
            return
        close = nearest(name, shared.pool.tasks)
        self._refuse(delivery, f"unknown task {name!r}" + (f"; did you mean {close!r}?" if close else ""))

    def _refuse(self, delivery: Delivery, error: str) -> None:
        """Move a message that cannot be run to the dead letters; if it names a task, that task fails."""
        log_event("task_refused", message_id=delivery.message_id, error=error)
        task: TaskId | None = None
        if (found := named_by(delivery)) is not None:
            with suppress(InvalidMessage):
                tenant = tenant_of(delivery, self._shared.tenant)
                task = TaskId(tenant_id=tenant, request_id=found[0], run=found[1])
        if task is None:
            self._shared.reject(delivery, reason="not a task", error=error)
            return
        while not self._fail_unrun(task, delivery, error):
            continue

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
        # The body may not be readable, but dispatchers need the job of the task.
        task = replace(task, job_id=lease.job_id, task_id=lease.task_id)
        return shared.records.refuse(
            task,
            shared.factory,
            error,
            lease=lease,
            expect=held,
            then=lambda recorded: shared.reject(delivery, reason=error, error=error),
        )
