"""Bugs of the outbox, the inbox, tasks and jobs: effects made twice or not at all, events lost or after the end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from postroad.testing.mutants.mutant import mutant, rewrite, slow_handlers, wrap

_WINDOW_SECONDS = 0.05
_SLOW, _SLOW_SECONDS = 0.03, 4.0
_LATE, _LATE_SECONDS = 0.05, 4.0


@mutant("retry-per-row", "a row that failed does not hold back the later rows of its key", "I9", scenario="outbox")
def retry_per_row() -> None:
    from postroad.outbox.dispatching import sqlite

    for statement in ("_HELD_BEFORE", "_ANY_BEFORE", "_ANY_LEASED"):
        rewrite(sqlite, statement, "WHERE {open}", "WHERE 0 AND {open}")


@mutant(
    "cursor-by-created-at", "a dispatcher never looks behind the newest time that it has seen", "I17", scenario="outbox"
)
def cursor_by_created_at() -> None:
    from postroad.outbox.dispatching.sqlite import SQLiteDispatchStore

    reached = ""

    def claim(original: Callable[..., Any], store: SQLiteDispatchStore, *args: Any, **given: Any) -> Any:
        nonlocal reached
        kept, last = [], reached
        for row in original(store, *args, **given):
            with store._file.reading() as session:
                created = session.rows(store._sql("SELECT createdat FROM {outbox} WHERE id = ?"), (row.id,))[0][0]
            if created > reached:
                kept.append(row)
                last = max(last, created)
        reached = last
        return kept

    wrap(SQLiteDispatchStore, "claim", claim)


@mutant("mark-before-publish", "a row counts as sent before it is published", "I1", scenario="outbox")
def mark_before_publish() -> None:
    from postroad.outbox.dispatching.sqlite import SQLiteDispatchStore

    def claim(original: Callable[..., Any], store: SQLiteDispatchStore, *args: Any, **given: Any) -> Any:
        rows = original(store, *args, **given)
        with store._file.transaction() as session:
            for row in rows:
                session.change(store._sql("UPDATE {outbox} SET state = 'SENT' WHERE id = ?"), (row.id,))
        time.sleep(_WINDOW_SECONDS if rows else 0)
        return rows

    wrap(SQLiteDispatchStore, "claim", claim)


@mutant("two-dispatchers-one-key", "two dispatchers publish rows of one key at the same time", "I9", scenario="outbox")
def two_dispatchers_one_key() -> None:
    from postroad.outbox.dispatching import sqlite

    retry_per_row.apply()
    unleased = "coalesce(lease_until, '') <= {now}"
    for statement in ("_NEXT_LANE", "_NEXT_TENANT", "_ROWS"):
        rewrite(sqlite, statement, "WHERE {open}", f"WHERE {unleased} AND {{open}}")


@mutant("inbox-after-effect", "the inbox row is written after the effect is committed", "I5")
def inbox_after_effect() -> None:
    from postroad.inbox import Inbox

    slow_handlers(_WINDOW_SECONDS, chance=1.0)

    def first_time(
        original: Callable[..., bool], inbox: Inbox, connection: Any, consumer: str, event: Any, **_: Any
    ) -> bool:
        if inbox.processed(consumer, [event]):
            return False
        threading.Timer(10 * _WINDOW_SECONDS, _insert, (original, inbox, consumer, event)).start()
        return True

    wrap(Inbox, "first_time", first_time)


def _insert(first_time: Callable[..., bool], inbox: Any, consumer: str, event: Any) -> None:
    with inbox.transaction() as connection:
        first_time(inbox, connection, consumer, event)


@mutant("inbox-select-then-insert", "the inbox looks first, and writes its row in another transaction", "I5", kills=2)
def inbox_select_then_insert() -> None:
    from postroad.inbox import Inbox

    selected = threading.local()

    @contextmanager
    def transaction(original: Callable[..., Any], inbox: Inbox) -> Iterator[Any]:
        selected.ids = {str(event) for event in inbox.event_ids("verify.fifo", limit=1_000)}
        if random.random() < _SLOW:
            time.sleep(_SLOW_SECONDS)
        with original(inbox) as connection:
            yield connection

    def first_time(
        original: Callable[..., bool], inbox: Inbox, connection: Any, consumer: str, event: Any, **given: Any
    ) -> bool:
        original(inbox, connection, consumer, event, **given)
        return str(event) not in selected.ids

    wrap(Inbox, "transaction", transaction)
    wrap(Inbox, "first_time", first_time)


@mutant("inbox-without-consumer", "two consumers share the rows of one inbox", "I5", scenario="bus", kills=2)
def inbox_without_consumer() -> None:
    from postroad.inbox import Inbox

    def first_time(
        original: Callable[..., bool], inbox: Inbox, connection: Any, _: str, event: Any, **given: Any
    ) -> bool:
        return original(inbox, connection, "everybody", event, **given)

    wrap(Inbox, "first_time", first_time)


@mutant(
    "heartbeat-overwrites-completed",
    "a heartbeat is recorded after the end of a task",
    "I22",
    scenario="tasks",
    messages=100,
    kills=6,
)
def heartbeat_overwrites_completed() -> None:
    from postroad.tasks.attempts import Attempt

    def end(original: Callable[..., None], attempt: Attempt, *args: Any, **given: Any) -> None:
        original(attempt, *args, **given)
        if attempt._held is not None:
            until, worker = attempt._lease.effective_until, attempt._shared.worker_id
            late: dict[str, Any] = {"effectiveUntil": until, "heartbeatNumber": 1, "elapsedMs": 1, "workerId": worker}
            late |= {"processId": attempt._pid, "memoryUsage": {"rss": 0}, "lastActivity": None, "progress": None}
            attempt._shared.records.record([attempt._event("Task Heartbeat", **late)])

    wrap(Attempt, "_end", end)


@mutant(
    "no-fencing",
    "a worker that lost its lease still commits its result",
    "I23",
    scenario="tasks",
    messages=200,
    kills=6,
)
def no_fencing() -> None:
    from postroad.tasks.attempts import Attempt
    from postroad.tasks.leases import Lease

    wrap(Lease, "is_held_by", lambda original, lease, owner, token: True)
    # The worker sleeps through its lease now and then, as if the machine had stopped it.
    wrap(Attempt, "settle", _late)


def _late(original: Callable[..., None], attempt: Any, *args: Any, **given: Any) -> None:
    if random.random() < _LATE:
        time.sleep(_LATE_SECONDS)
    original(attempt, *args, **given)


@mutant(
    "fan-in-double-start",
    "a task with several dependencies starts before they have completed",
    "I25",
    scenario="jobs",
    messages=60,
    kills=4,
)
def fan_in_double_start() -> None:
    from postroad.jobs.coordinator import JobCoordinator
    from postroad.jobs.graph import GraphProgress

    def begin(original: Callable[..., Any], coordinator: JobCoordinator, job_id: str, task_ids: Iterable[str]) -> Any:
        _, progress = coordinator._open(job_id)
        tasks = {} if progress is None else progress.graph.tasks
        return original(coordinator, job_id, [*task_ids, *(each for each in tasks if len(tasks[each].depends_on) > 1)])

    def is_ready(original: Callable[..., bool], progress: GraphProgress, task_id: str, is_completed: Any) -> bool:
        return len(progress.graph.tasks[task_id].depends_on) > 1 or original(progress, task_id, is_completed)

    def outputs(original: Callable[..., Any], coordinator: JobCoordinator, *args: Any) -> Any:
        return original(coordinator, *args) or {}

    wrap(JobCoordinator, "begin", begin)
    wrap(GraphProgress, "is_ready", is_ready)
    wrap(JobCoordinator, "_outputs", outputs)
