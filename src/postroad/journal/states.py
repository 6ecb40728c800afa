"""The states of tasks: folded out of their events, at any time, for one task or for all tasks of a tenant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from postroad.journal.event import JournalEvent
from postroad.journal.overflow import whole
from postroad.journal.port import Journal
from postroad.journal.records import MAX_LIMIT

PENDING: Final = "Task Pending"
STARTED: Final = "Task Processing Started"
ATTEMPT_FAILED: Final = "Task Processing Failed"
COMPLETED: Final = "Task Completed"
FAILED: Final = "Task Failed"
TIMEOUT: Final = "Task Timeout"
HEARTBEAT: Final = "Task Heartbeat"
INTERRUPTED: Final = "Task Interrupted"
CANCELLED: Final = "Task Cancelled"
EVENT_TO_STATE: Final = {
    PENDING: "pending",
    STARTED: "processing",
    ATTEMPT_FAILED: "processing",
    COMPLETED: "completed",
    FAILED: "failed",
    TIMEOUT: "failed",
    HEARTBEAT: "processing",
    INTERRUPTED: "pending",
    CANCELLED: "cancelled",
}
TERMINAL: Final = frozenset({COMPLETED, FAILED, TIMEOUT, CANCELLED})
STATES: Final = ("pending", "processing", "completed", "failed", "cancelled")


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """A task as its highest run stands."""

    request_id: str
    state: str
    run: int
    attempt: int = 0
    """The number of the last attempt that was started; 0 before the first."""
    last_event_type: str
    last_event_at: int
    """Milliseconds. Of a finished task it is the event that finished it, whatever came later."""
    effective_until: int | None = None
    """When the last known lease ends, in seconds since 1970."""
    output: Any = None
    error: str | None = None
    error_category: str | None = None
    job_id: str | None = None
    task_id: str | None = None
    stale: list[UUID] = []
    """Terminal events of the run that came when it was already decided."""


class Progress(msgspec.Struct, frozen=True, gc=False):
    """How far a task is, for one who reads its events in journal order and keeps nothing else."""

    pendings: int = 0
    run: int = 0
    state: str = ""
    begun: bool = False
    """Something other than pending was seen in this run, so that a heartbeat no longer tells anything."""
    decided: bool = False

    def after(self, event_type: str, properties: Mapping[str, Any]) -> Progress:
        """The progress with the next event; a type that is not of a task's life changes nothing."""
        state = EVENT_TO_STATE.get(event_type)
        if state is None:
            return self
        pendings = self.pendings + (event_type == PENDING)
        run = _run(properties, pendings)
        begun = self.begun and run == self.run
        if run < self.run or (run == self.run and self.decided) or (begun and event_type == HEARTBEAT):
            return self if pendings == self.pendings else msgspec.structs.replace(self, pendings=pendings)
        return Progress(pendings, run, state, begun or event_type != PENDING, event_type in TERMINAL)


def fold(events: Iterable[JournalEvent], at: int | None = None) -> TaskState | None:
    """The state of one task, as it was at a moment in milliseconds or as it is; None before its first event.

    Raises:
        OverflowMismatch: The output lies in a blob that is not what was stored. Events read with `raw` have no output.
    """
    ordered = _in_order(events, at)
    if not ordered:
        return None
    progress, runs = Progress(), []
    for event in ordered:
        progress = progress.after(event.event_type, event.properties)
        runs.append(_run(event.properties, progress.pendings))
    mine = [event for event, run in zip(ordered, runs, strict=True) if run == progress.run]
    decider = next((index for index, event in enumerate(mine) if event.event_type in TERMINAL), len(mine))
    counted = mine[: decider + 1]
    return TaskState(
        request_id=ordered[0].entity_id,
        state=progress.state,
        run=progress.run,
        attempt=_attempt(counted),
        last_event_type=counted[-1].event_type,
        last_event_at=counted[-1].timestamp,
        effective_until=_last(counted, "effectiveUntil"),
        job_id=_last(ordered, "jobId"),
        task_id=_last(ordered, "taskId"),
        stale=[event.event_id for event in mine[decider + 1 :] if event.event_type in TERMINAL],
        **_outcome(counted),
    )


def _in_order(events: Iterable[JournalEvent], at: int | None) -> list[JournalEvent]:
    """The events of a task's life up to a moment, each once, in journal order."""
    each = {
        (event.timestamp, event.event_id): event
        for event in events
        if event.event_type in EVENT_TO_STATE and (at is None or event.timestamp <= at)
    }
    return [each[place] for place in sorted(each)]


def _run(properties: Mapping[str, Any], pendings: int) -> int:
    run = properties.get("run")
    return run if type(run) is int and run > 0 else max(pendings, 1)


def _attempt(counted: Sequence[JournalEvent]) -> int:
    """The last attempt's number, as its events name it, else counted."""
    tries = [event for event in counted if event.event_type in (STARTED, ATTEMPT_FAILED)]
    named = _last(tries, "attemptNumber")
    return sum(event.event_type == STARTED for event in tries) if named is None else int(named)


def _outcome(counted: Sequence[JournalEvent]) -> dict[str, Any]:
    """What the last event says of result or error; of an open task the error of its last attempt."""
    last = counted[-1].properties
    match counted[-1].event_type:
        case "Task Completed":
            return {"output": whole(counted[-1]).properties.get("output")}
        case "Task Failed":
            return {"error": last.get("error"), "error_category": last.get("errorCategory")}
        case "Task Timeout":
            return {"error": f"timed out after {last.get('elapsedMs')} ms", "error_category": "timeout"}
        case "Task Cancelled":
            return {}
    return {"error": _last(counted, "error"), "error_category": _last(counted, "errorCategory")}


def _last(events: Sequence[JournalEvent], name: str) -> Any:
    """The property in the last event that has it."""
    found = (event.properties[name] for event in reversed(events) if event.properties.get(name) is not None)
    return next(found, None)


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
