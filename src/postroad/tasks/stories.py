"""The story of a task: its history, its lease, its dead letter, and what to do next."""

from __future__ import annotations

from contextlib import suppress

from postroad.errors import PostroadError
from postroad.journal import (
    ATTEMPT_FAILED,
    NOTHING,
    PENDING,
    JournalEvent,
    Related,
    Story,
    TaskState,
    Verdict,
    fold,
    steps_of,
    task_history,
)
from postroad.ports import Store
from postroad.tasks.leases import Lease, TaskRecords
from postroad.tasks.messages import WITH_ITS_JOB, named_by

_LETTERS_LOOKED_AT = 1_000


def task_story(backend: Store, tenant: str, request_id: str) -> Story | None:
    """Return what happened to a task and what to do next; None if there is no such task."""
    events = task_history(backend.journal(), tenant, request_id, raw=True)
    state = fold(events)
    if state is None:
        return None
    held = TaskRecords(backend).read(tenant, request_id)
    lease = Lease(run=state.run) if held is None else held.lease
    queue = lease.queue or "tasks"
    verdict, summary, following = _view(state, lease, queue, now=backend.clock.now().timestamp())
    if state.state == "cancelled" and any(event.properties.get("reason") == WITH_ITS_JOB for event in events):
        verdict, summary, following = ("failed", "was cancelled with its job", "nothing: its job was cancelled")
    if verdict in ("waiting", "retrying") and _has_dead_letter(backend, queue, request_id, state.run):
        verdict, summary, following = ("dead", f"its message is in {queue}-dlq: {_why(state)}", _HANDLE_LETTERS)
    return Story(
        id=request_id,
        kind="task",
        verdict=verdict,
        summary=f"task {request_id}, run {state.run}: {summary}",
        steps=steps_of(events, where=queue),
        related=_related(events, state),
        next=following,
    )


_HANDLE_LETTERS = "a worker with the role dlq ends the run: postroad worker --roles dlq"


def _view(state: TaskState, lease: Lease, queue: str, *, now: float) -> tuple[Verdict, str, str]:
    match state.state:
        case "completed":
            return ("completed", f"completed at attempt {state.attempt}", NOTHING)
        case "failed":
            return ("failed", f"failed: {_why(state)}", _again(state))
        case "cancelled":
            return ("failed", "was cancelled", _again(state))
    if lease.outcome is not None:
        return ("in_flight", f"ended as {lease.outcome.state}", "its last event is on its way to the journal")
    if lease.is_live(now):
        seconds = max(0, round(lease.effective_until - now))
        return (
            "in_flight",
            f"attempt {lease.attempts} runs at {lease.owner}",
            f"its lease ends in {seconds} s unless it is extended",
        )
    if lease.owner is not None:
        return ("retrying", f"its worker {lease.owner} was lost", f"a worker of queue {queue} runs it again")
    if state.last_event_type == ATTEMPT_FAILED:
        return ("retrying", f"attempt {state.attempt}: {_why(state)}", f"a worker of queue {queue} retries it")
    if lease.sent_at is None:
        return ("waiting", "recorded and not sent", "a reconciler sends it: postroad worker --roles reconciler")
    return ("waiting", f"waits in queue {queue}", "a worker takes it: postroad worker --import MODULE")


def _why(state: TaskState) -> str:
    first = (state.error or "no error recorded").splitlines()[0]
    return first if state.error_category is None else f"{state.error_category}: {first}"


def _again(state: TaskState) -> str:
    if state.job_id is not None:
        return f"run it again: postroad job resume {state.job_id}"
    return f"run it again: postroad task retry {state.request_id}"


def _related(events: list[JournalEvent], state: TaskState) -> list[Related]:
    if state.job_id is None:
        return []
    needs = next((event.properties.get("dependsOn") for event in events if event.event_type == PENDING), None)
    before = [Related(f"{state.job_id}.{task_id}", "caused_by", "task") for task_id in needs or ()]
    return [Related(state.job_id, "caused_by", "job"), *before]


def _has_dead_letter(backend: Store, queue: str, request_id: str, run: int) -> bool:
    """Return whether this run has a dead letter, if the queue can be peeked without side effects."""
    with suppress(PostroadError):
        letters = backend.queue(f"{backend.stage_prefix}{queue}-dlq")
        if letters.traits.peeks_clean:
            found = letters.peek(limit=_LETTERS_LOOKED_AT)
            return any(named_by(letter) == (request_id, run) for letter in found)
    return False
