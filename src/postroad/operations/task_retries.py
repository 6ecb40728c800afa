"""Retries of tasks for operators: one task, or all that match, with an audit record."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

import msgspec

from postroad.arguments import check, whole_number
from postroad.errors import Conflict, InvalidInput, NotFound
from postroad.ports import Store
from postroad.tasks import ListedTask, TaskFilter, TaskHandle, TaskList, TaskProducer, TaskRecords
from postroad.telemetry import get_logger, recorded

RETRYABLE = ("failed", "cancelled")
_REPORT_SECONDS = 0.5


class RetryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a retry of many tasks did. `stopped`: it was stopped and can be continued; `limit`: more tasks match."""

    run_id: str
    status: Literal["running", "done", "limit", "stopped", "dry_run"]
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
        self._app = app
        self._records = TaskRecords(backend)
        self._list = TaskList(backend, tenant=tenant)
        self._producers: dict[str, TaskProducer] = {}

    def retry(self, request_id: str) -> TaskHandle:
        """Run a failed or cancelled task again; raise `NotFound` or `Conflict` if that is not possible."""
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
        until = int(self._backend.clock.now().timestamp() * 1_000) if match.until is None else match.until
        match = replace(match, until=until)
        run_id = run_id or uuid.uuid4().hex
        if dry_run:
            matched = sum(1 for _ in islice(self._list.every(match), limit))
            return RetryReport(run_id=run_id, status="dry_run", matched=matched)
        detail: dict[str, Any] = {"run_id": run_id, "state": match.state, "since": match.since, "until": until}
        detail |= {"limit": limit, "rate": rate, "reason": reason}
        given = {name: value for name, value in detail.items() if value is not None}
        log = self._backend.audit_log()
        with recorded(log, "task.retry", match.name or "*", given, actor=actor) as done:
            counts: Counter[str] = Counter()
            try:
                status = self._retry_each(match, limit, rate, counts, run_id, progress, stop or threading.Event())
            finally:
                done |= {"run_id": run_id, "matched": counts["matched"], "retried": counts["retried"]}
            done["status"] = status
        report = _report(run_id, counts, status)
        get_logger("tasks").info(
            "tasks_retried", run_id=run_id, status=status, matched=report.matched, retried=report.retried, reason=reason
        )
        return report

    def _retry_each(
        self,
        match: TaskFilter,
        limit: int | None,
        rate: float | None,
        counts: Counter[str],
        run_id: str,
        progress: Progress | None,
        stop: threading.Event,
    ) -> Literal["done", "limit", "stopped"]:
        report_at = time.monotonic() + _REPORT_SECONDS
        for listed in _paced(self._list.every(match), rate, stop):
            if stop.is_set():
                return "stopped"
            if counts["retried"] == limit:
                return "limit"
            counts["matched"] += 1
            try:
                self._producer(listed.queue).retry(listed.state.request_id)
                counts["retried"] += 1
            except (Conflict, NotFound):
                # Somebody retried it meanwhile, its input is gone, or it was cancelled before it began.
                counts["refused"] += 1
            if progress is not None and time.monotonic() >= report_at:
                report_at = time.monotonic() + _REPORT_SECONDS
                progress(_report(run_id, counts, "running"))
        return "stopped" if stop.is_set() else "done"

    def _producer(self, queue: str) -> TaskProducer:
        if queue not in self._producers:
            self._producers[queue] = TaskProducer(self._backend, queue=queue, tenant_id=self._tenant, app=self._app)
        return self._producers[queue]


def _paced(tasks: Iterator[ListedTask], rate: float | None, stop: threading.Event) -> Iterator[ListedTask]:
    """Yield the tasks, at most so many a second, until `stop` is set."""
    due = time.monotonic()
    for task in tasks:
        if rate is not None:
            stop.wait(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - 1 / rate) + 1 / rate
        yield task


def _report(run_id: str, counts: Counter[str], status: Any) -> RetryReport:
    skipped = {"refused": counts["refused"]} if counts["refused"] else {}
    return RetryReport(
        run_id=run_id, status=status, matched=counts["matched"], retried=counts["retried"], skipped=skipped
    )


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
