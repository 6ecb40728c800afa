"""The states of tasks, folded from their events, and the stories that events tell about tasks and jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from postroad.journal.event import JournalEvent, whole
from postroad.journal.port import Journal, every_event
from postroad.journal.store import StoredJournal

TASK: Final = "TASK"
JOB: Final = "JOB"
JOB_CREATED: Final = "Job Created"
JOB_TASKS_ADDED: Final = "Job Tasks Added"

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


class TaskProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How much of an attempt is done, as `ctx.progress` reported it."""

    fraction: float
    """From 0 to 1."""
    message: str | None = None
    at: int
    """When it was reported, in milliseconds."""

    def __str__(self) -> str:
        return f"{self.fraction:.0%}" + (f" {self.message}" if self.message else "")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of it; without a message there is none."""
        found = msgspec.structs.asdict(self)
        return {name: value for name, value in found.items() if value is not None}


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a task in its latest run.

    Attributes:
        request_id: The task.
        state: Its state.
        run: Which run it is, from 1.
        last_event_type: The newest event about it.
        output: Its result.
        error: Its error.
        error_category: The category of the error.
        job_id: The job that it belongs to.
        task_id: Its id in the job.
    """

    request_id: str
    state: str
    run: int
    attempt: int = 0
    """The number of the last attempt that started; 0 before the first."""
    last_event_type: str
    last_event_at: int
    """Milliseconds. For a finished task, the event that finished it, whatever came later."""
    effective_until: int | None = None
    """When the last known lease ends, in seconds since 1970."""
    output: Any = None
    error: str | None = None
    error_category: str | None = None
    traceback: list[str] = []
    """The last lines of the traceback of the error."""
    last_lines: list[str] = []
    """What the failed attempt printed last."""
    progress: TaskProgress | None = None
    """What the last attempt reported last; None once the task is completed."""
    job_id: str | None = None
    task_id: str | None = None
    stale: list[UUID] = []
    """Terminal events of the run that came after it had ended."""


class Progress(msgspec.Struct, frozen=True, gc=False):
    """The progress of a task, updated event by event in journal order."""

    pendings: int = 0
    run: int = 0
    state: str = ""
    begun: bool = False
    """This run has an event other than pending, so a heartbeat adds nothing."""
    decided: bool = False

    def after(self, event_type: str, properties: Mapping[str, Any]) -> Progress:
        """Return the progress after the next event; an event type that is not about states changes nothing."""
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
    """Return the state of one task, now or at a moment in milliseconds; None before its first event.

    Args:
        events: Events of the task, in any order.
        at: The moment; by default now.

    Raises:
        OverflowMismatch: The output is in a blob that is not what was stored. Events read with `raw` have no output.
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
        progress=_progress(counted),
        job_id=_last(ordered, "jobId"),
        task_id=_last(ordered, "taskId"),
        stale=[event.event_id for event in mine[decider + 1 :] if event.event_type in TERMINAL],
        **_outcome(counted),
    )


def _in_order(events: Iterable[JournalEvent], at: int | None) -> list[JournalEvent]:
    """Return the events that change states up to a moment, each once, in journal order."""
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
    """Return the number of the last attempt as its events name it, else count the starts."""
    tries = [event for event in counted if event.event_type in (STARTED, ATTEMPT_FAILED)]
    named = _last(tries, "attemptNumber")
    return sum(event.event_type == STARTED for event in tries) if named is None else int(named)


def _outcome(counted: Sequence[JournalEvent]) -> dict[str, Any]:
    """Return the result or error of the last event; for an open task, the error of its last failed attempt."""
    last = counted[-1]
    match last.event_type:
        case "Task Completed":
            return {"output": whole(last).properties.get("output")}
        case "Task Timeout":
            error = f"timed out after {last.properties.get('elapsedMs')} ms"
            return {"error": error, "error_category": "timeout", "last_lines": _lines(last, "lastLines")}
        case "Task Cancelled":
            return {}
    failed = next((event for event in reversed(counted) if event.event_type in (ATTEMPT_FAILED, FAILED)), None)
    if failed is None:
        return {}
    return {
        "error": failed.properties.get("error"),
        "error_category": failed.properties.get("errorCategory"),
        "traceback": _lines(failed, "traceback"),
        "last_lines": _lines(failed, "lastLines"),
    }


def _lines(event: JournalEvent, name: str) -> list[str]:
    # What another program stored under this name may be anything.
    found = event.properties.get(name)
    return [str(line) for line in found] if isinstance(found, list) else []


def _progress(counted: Sequence[JournalEvent]) -> TaskProgress | None:
    """Return what the last attempt reported last, unless the run is completed or waits for another attempt."""
    for event in reversed(counted):
        if event.event_type in (STARTED, COMPLETED, INTERRUPTED, ATTEMPT_FAILED, PENDING):
            return None
        if event.event_type == HEARTBEAT and (found := event.properties.get("progress")) is not None:
            with suppress(msgspec.ValidationError):
                return msgspec.convert(found, TaskProgress)
    return None


def _last(events: Sequence[JournalEvent], name: str) -> Any:
    """Return the property from the last event that has it."""
    found = (event.properties[name] for event in reversed(events) if event.properties.get(name) is not None)
    return next(found, None)


def task_history(journal: Journal, tenant: str, request_id: str, *, raw: bool = False) -> list[JournalEvent]:
    """Return all events of a task, in order; `raw` does not read blobs.

    Args:
        journal: Where to look.
        tenant: The tenant of the task.
        request_id: The task.
        raw: Whether to leave blobs unread.
    """
    return list(every_event(journal, "GSI1", tenant=tenant, entity=(TASK, request_id), raw=raw))


def task_state(
    journal: Journal, tenant: str, request_id: str, at: int | None = None, *, raw: bool = False
) -> TaskState | None:
    """Return the state of a task, now or at a moment in milliseconds; None before its first event.

    `raw` does not read blobs, so the state may lack the output. Without it, `OverflowMismatch` is raised if the output
    is in a blob that is not what was stored.

    Args:
        journal: Where to look.
        tenant: The tenant of the task.
        request_id: The task.
        at: The moment; by default now.
        raw: Whether to leave blobs unread.
    """
    return fold(every_event(journal, "GSI1", tenant=tenant, entity=(TASK, request_id), end=at, raw=raw))


def tasks_of_job(journal: Journal, tenant: str, job_id: str) -> list[dict[str, Any]]:
    """Return the tasks of a job as its events name them: those it was created with, then those that were added."""
    asked: dict[str, Any] = {"tenant": tenant, "entity": (JOB, job_id)}
    created = every_event(journal, "GSI5", **asked, event_type=JOB_CREATED)
    added = every_event(journal, "GSI5", **asked, event_type=JOB_TASKS_ADDED)
    tasks = [task for event in created for task in whole(event).properties["tasks"]]
    return [*tasks, *(task for event in added for task in whole(event).properties["newTasks"])]


def tasks_by_state(
    journal: Journal, tenant: str, *, app: str | None = None, since: int | None = None
) -> dict[str, list[str]]:
    """Return the sorted request ids of all tasks by state; `since`: only tasks with an event at or after it.

    Args:
        journal: Where to look.
        tenant: The tenant of the tasks.
        app: The application of the tasks.
        since: A moment, in milliseconds since 1970.
    """
    by_state: dict[str, list[str]] = {state: [] for state in STATES}
    kept = journal.states(tenant, app=app, since=since) if isinstance(journal, StoredJournal) else None
    for request_id, state in _folded(journal, tenant, app, since) if kept is None else kept:
        by_state[state].append(request_id)
    return {state: sorted(ids) for state, ids in by_state.items()}


def progress_of_tasks(events: Iterable[JournalEvent]) -> dict[str, Progress]:
    """Return the progress of each task after these events, which are in journal order."""
    tasks: dict[str, Progress] = {}
    for event in events:
        if event.entity_type == TASK:
            before = tasks.get(event.entity_id) or Progress()
            tasks[event.entity_id] = before.after(event.event_type, event.properties)
    return tasks


def _folded(journal: Journal, tenant: str, app: str | None, since: int | None) -> Iterator[tuple[str, str]]:
    """Yield every task once, with the state folded from all its events."""
    asked: dict[str, Any] = {"index": "PK"} if app is None else {"index": "GSI2", "app": app}
    tasks = progress_of_tasks(every_event(journal, **asked, tenant=tenant, start=since, raw=True))
    for request_id, progress in tasks.items():
        if app is None and since is None:
            if progress.state:
                yield request_id, progress.state
        elif (state := task_state(journal, tenant, request_id, raw=True)) is not None:
            yield request_id, state.state


Kind = Literal["event", "message", "push", "task", "job"]
Verdict = Literal[
    "handled", "waiting", "delayed", "in_flight", "retrying", "blocked", "dead", "expired", "completed", "failed"
]
Relation = Literal["caused_by", "causes", "correlates"]
NOTHING: Final = "nothing: done"
_BAD: Final = frozenset({ATTEMPT_FAILED, FAILED, TIMEOUT, "Job Failure Detected"})


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened; it never holds a payload."""

    at: str
    what: str
    where: str | None = None
    by: str | None = None
    ok: bool = True
    detail: str | None = None
    traceback: list[str] | msgspec.UnsetType = msgspec.UNSET
    """The traceback of a failed attempt."""
    last_lines: list[str] | msgspec.UnsetType = msgspec.field(name="lastLines", default=msgspec.UNSET)
    """The last lines that a failed attempt printed."""

    @property
    def lines(self) -> list[str]:
        """The traceback, then the last lines."""
        return [line for lines in (self.traceback, self.last_lines) if lines is not msgspec.UNSET for line in lines]


class Related(msgspec.Struct, frozen=True):
    """Another thing that is connected with this one."""

    id: str
    relation: Relation
    type: str


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to an event, a message, a push, a task or a job."""

    id: str
    kind: Kind
    verdict: Verdict
    summary: str
    steps: list[Step] = []
    related: list[Related] = []
    next: str = NOTHING

    def to_dict(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self))


def steps_of(events: Iterable[JournalEvent], *, where: str | None) -> list[Step]:
    return [_step(event, where) for event in events]


def _step(event: JournalEvent, where: str | None) -> Step:
    properties, failed = event.properties, event.event_type in _BAD
    return Step(
        at=iso(event.timestamp),
        what=event.event_type,
        where=where,
        by=properties.get("workerId") or event.context.get("workerId") or event.context.get("origin"),
        ok=not failed,
        detail=_detail(event),
        # Events of other types may hold anything under these names.
        traceback=properties.get("traceback", msgspec.UNSET) if failed else msgspec.UNSET,
        last_lines=properties.get("lastLines", msgspec.UNSET) if failed else msgspec.UNSET,
    )


def iso(milliseconds: int) -> str:
    """Return a moment in ISO 8601, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _detail(event: JournalEvent) -> str | None:
    """Return the category and first line of an error, the reason of an end, or the number of the attempt."""
    known = event.properties
    if "error" in known:
        first = (str(known["error"]).splitlines() or [""])[0]
        return f"{known.get('errorCategory', 'unknown')}: {first}"
    if event.event_type == TIMEOUT:
        return f"{known.get('signal')} after {known.get('elapsedMs')} ms"
    if "reason" in known:
        return str(known["reason"])
    if "failedTaskId" in known:
        return f"task {known['failedTaskId']} failed"
    return None if "attemptNumber" not in known else f"attempt {known['attemptNumber']}"
