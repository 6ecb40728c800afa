"""States read from a journal: of one task, at any time, and of all tasks of a tenant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

from postroad.journal.asking import MAX_LIMIT
from postroad.journal.event import JournalEvent
from postroad.journal.folding import STATES, Progress, TaskState, fold
from postroad.journal.overflow import whole
from postroad.journal.port import Journal

TASK = "TASK"
JOB = "JOB"
JOB_CREATED = "Job Created"
JOB_TASKS_ADDED = "Job Tasks Added"


@runtime_checkable
class KeepsStates(Protocol):
    """A journal that may keep each task's state beside its events, written in the same commit."""

    def states(self, tenant: str, *, app: str | None, since: int | None) -> Iterable[tuple[str, str]] | None:
        """Request id and state of each task with an event in the app and at or after `since`; None: it keeps none."""
        ...


def every_event(journal: Journal, index: str, **asked: Any) -> Iterator[JournalEvent]:
    """All pages of a query, joined."""
    cursor = None
    while True:
        page = journal.query(index, **asked, limit=MAX_LIMIT, cursor=cursor)
        yield from page.events
        if (cursor := page.cursor) is None:
            return


def task_history(journal: Journal, tenant: str, request_id: str, *, raw: bool = False) -> list[JournalEvent]:
    """All events of a task, in order; `raw` leaves blobs where they are."""
    return list(every_event(journal, "GSI1", tenant=tenant, entity=(TASK, request_id), raw=raw))


def task_state(
    journal: Journal, tenant: str, request_id: str, at: int | None = None, *, raw: bool = False
) -> TaskState | None:
    """The state of a task, as it was at a moment in milliseconds or as it is; None before its first event.

    `raw` leaves blobs where they are: whoever asks only how a task stands needs no output. Without it,
    `OverflowMismatch` is raised when the output lies in a blob that is not what was stored.
    """
    return fold(every_event(journal, "GSI1", tenant=tenant, entity=(TASK, request_id), end=at, raw=raw))


def tasks_of_job(journal: Journal, tenant: str, job_id: str) -> list[dict[str, Any]]:
    """The tasks that a job was made with, then those that were added to it, as their events name them."""
    asked: dict[str, Any] = {"tenant": tenant, "entity": (JOB, job_id)}
    created = every_event(journal, "GSI5", **asked, event_type=JOB_CREATED)
    added = every_event(journal, "GSI5", **asked, event_type=JOB_TASKS_ADDED)
    tasks = [task for event in created for task in whole(event).properties["tasks"]]
    return [*tasks, *(task for event in added for task in whole(event).properties["newTasks"])]


def tasks_by_state(
    journal: Journal, tenant: str, *, app: str | None = None, since: int | None = None
) -> dict[str, list[str]]:
    """The request ids of all tasks under their state, sorted; `since`: of those with an event at or after it."""
    by_state: dict[str, list[str]] = {state: [] for state in STATES}
    kept = journal.states(tenant, app=app, since=since) if isinstance(journal, KeepsStates) else None
    for request_id, state in _folded(journal, tenant, app, since) if kept is None else kept:
        by_state[state].append(request_id)
    return {state: sorted(ids) for state, ids in by_state.items()}


def progress_of_tasks(events: Iterable[JournalEvent]) -> dict[str, Progress]:
    """How far each task is after these events, which come in journal order."""
    tasks: dict[str, Progress] = {}
    for event in events:
        if event.entity_type == TASK:
            before = tasks.get(event.entity_id) or Progress()
            tasks[event.entity_id] = before.after(event.event_type, event.properties)
    return tasks


def _folded(journal: Journal, tenant: str, app: str | None, since: int | None) -> Iterator[tuple[str, str]]:
    """Every task once, folded out of all its events."""
    asked: dict[str, Any] = {"index": "PK"} if app is None else {"index": "GSI2", "app": app}
    tasks = progress_of_tasks(every_event(journal, **asked, tenant=tenant, start=since, raw=True))
    whole = app is None and since is None
    for request_id, progress in tasks.items():
        state = progress.state if whole else _state(journal, tenant, request_id)
        if state:
            yield request_id, state


def _state(journal: Journal, tenant: str, request_id: str) -> str:
    state = task_state(journal, tenant, request_id, raw=True)
    return "" if state is None else state.state
