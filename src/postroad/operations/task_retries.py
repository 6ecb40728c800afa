"""Retries of tasks for operators: one task, or all that match, with an audit record."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from typing import Literal

import msgspec

from postroad.arguments import check, whole_number
from postroad.errors import Conflict, InvalidInput, NotFound
from postroad.ports import Store
from postroad.tasks import ListedTask, TaskFilter, TaskHandle, TaskList, TaskProducer, TaskRecords
from postroad.telemetry import get_logger, recorded

RETRYABLE = ("failed", "cancelled")
_REPORT_SECONDS = 0.5
Status = Literal["running", "done", "limit", "stopped", "dry_run"]


class RetryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a retry of many tasks did.

    Attributes:
        run_id: The id of this retry, in the log and in the audit record.
        status: `stopped`: it was stopped and can be continued; `limit`: more tasks match.
        matched: How many tasks matched.
        retried: How many run again.
    """

    run_id: str
    status: Status
    matched: int
    retried: int = 0
    skipped: dict[str, int] = {}
    """How many tasks were left out, by reason; `refused`: they cannot be retried, or somebody else was faster."""


Progress = Callable[[RetryReport], None]


class TaskRetries:
    """Retries tasks of one tenant, each in the queue that it came from.

    Args:
        backend: The store, as `connect()` returns it.
        tenant: The tenant of the tasks.
        app: The app of the recorded events.

    Example:
        TaskRetries(backend, tenant="default", app="shop").retry_all(TaskFilter(state="failed", name="resize"))
    """

    def __init__(self, backend: Store, *, tenant: str, app: str) -> None:
        self._backend = backend
        self._tenant = tenant
        self._records = TaskRecords(backend)
        self._list = TaskList(backend, tenant=tenant)
        self._producer = cache(lambda queue: TaskProducer(backend, queue=queue, tenant_id=tenant, app=app))

    def retry(self, request_id: str) -> TaskHandle[object]:
        """Run the failed or cancelled task `request_id` again; raise `NotFound` or `Conflict` if it cannot be."""
        held = self._records.read(self._tenant, request_id)
        return self._producer("tasks" if held is None else held.lease.queue or "tasks").retry(request_id)

    def retry_all(
        self,
        match: TaskFilter,
        *,
        limit: int | None = None,
        rate: float | None = None,
        reason: str = "",
        actor: str | None = None,
        dry_run: bool = False,
        run_id: str | None = None,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
    ) -> RetryReport:
        """Retry all tasks that match, newest first, with an audit record.

        Tasks that fail after it has begun are left alone, so a task that fails at once is not retried for ever, and a
        run that was interrupted can be repeated with the same `match.until`.

        Args:
            match: Which tasks; the state must be `failed` or `cancelled`.
            limit: The most tasks to retry; by default any number.
            rate: The most tasks a second; by default any number.
            reason: Why, for the audit record.
            actor: Who, for the audit record; by default `$POSTROAD_ACTOR` or the user.
            dry_run: Only count the tasks.
            run_id: The id of the run, by default a new one.
            progress: A function that is called with the report so far, about twice a second.
            stop: Ends the run before the next task when it is set.

        Raises:
            InvalidInput: The state cannot be retried, or the limit or the rate is not valid.
            ConfigurationError: The audit record cannot be written, so nothing was changed.
        """
        _check(match, limit, rate)
        now_ms = int(self._backend.clock.now().timestamp() * 1_000)
        match = match if match.until is not None else replace(match, until=now_ms)
        pause = 0.0 if rate is None else 1 / rate
        run = _Run(run_id or uuid.uuid4().hex, limit, pause, progress, stop or threading.Event())
        if dry_run:
            run.matched = sum(1 for _ in islice(self._list.every(match), limit))
            return run.report("dry_run")
        detail = {"run_id": run.id, "reason": reason, "limit": limit, "rate": rate, **asdict(match)}
        given = {name: value for name, value in detail.items() if value is not None and name != "name"}
        with recorded(self._backend.audit_log(), "task.retry", match.name or "*", given, actor=actor) as done:
            try:
                report = run.over(self._list.every(match), self._retry_listed)
            finally:
                done |= {"run_id": run.id, "matched": run.matched, "retried": run.retried}
            done["status"] = report.status
        get_logger("tasks").info("tasks_retried", **msgspec.structs.asdict(report), reason=reason)
        return report

    def _retry_listed(self, listed: ListedTask) -> bool:
        try:
            self._producer(listed.queue).retry(listed.state.request_id)
        except (Conflict, NotFound):
            # Somebody retried it meanwhile, its input is gone, or it was cancelled before it began.
            return False
        return True


@dataclass(slots=True)
class _Run:
    """One retry of many tasks: its limits, and its counts so far."""

    id: str
    limit: int | None
    pause: float
    progress: Progress | None
    stop: threading.Event
    matched: int = 0
    retried: int = 0

    def over(self, tasks: Iterator[ListedTask], retry: Callable[[ListedTask], bool]) -> RetryReport:
        """Retry the tasks one after the other until all are done, the limit is reached, or it is stopped."""
        due, report_at = time.monotonic(), time.monotonic() + _REPORT_SECONDS
        for listed in tasks:
            if self.retried == self.limit:
                return self.report("limit")
            if self.stop.wait(max(0.0, due - time.monotonic())):
                return self.report("stopped")
            due = max(due, time.monotonic() - self.pause) + self.pause
            self.matched += 1
            self.retried += retry(listed)
            if self.progress is not None and time.monotonic() >= report_at:
                report_at = time.monotonic() + _REPORT_SECONDS
                self.progress(self.report("running"))
        return self.report("done")

    def report(self, status: Status) -> RetryReport:
        refused = 0 if status == "dry_run" else self.matched - self.retried
        skipped = {"refused": refused} if refused else {}
        return RetryReport(run_id=self.id, status=status, matched=self.matched, retried=self.retried, skipped=skipped)


def _check(match: TaskFilter, limit: int | None, rate: float | None) -> None:
    if match.state not in RETRYABLE:
        raise InvalidInput(
            f"state: {match.state!r} cannot be retried; failed and cancelled tasks can",
            field="state",
            remedy="Give failed or cancelled.",
        )
    if limit is not None:
        check(limit, whole_number(1), "limit")
    if rate is not None and not 0 < rate < float("inf"):
        raise InvalidInput(f"rate: {rate!r} is not a number above 0", field="rate", remedy="Give tasks per second.")
