"""The story of a task: its history, its lease, its dead letter, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import msgspec

from postroad import journal
from postroad.errors import PostroadError
from postroad.journal import JournalEvent, Related, Step, Story
from postroad.ports import Store
from postroad.tasks.leases import Held, Lease, TaskRecords
from postroad.tasks.messages import WITH_ITS_JOB, named_by

_LETTERS_LOOKED_AT = 1_000


def task_story(backend: Store, tenant: str, request_id: str) -> Story | None:
    """Return what happened to a task and what to do next; None if there is no such task."""
    events = journal.task_history(backend.journal(), tenant, request_id, raw=True)
    state = journal.fold(events)
    if state is None:
        return _waiting_story(backend, tenant, request_id)
    held = TaskRecords(backend).read(tenant, request_id)
    lease = Lease(run=state.run) if held is None else held.lease
    queue, job_id = lease.queue or "tasks", state.job_id
    now = backend.clock.now().timestamp()
    verdict, summary, following = _view(state, lease, queue, now=now)
    if state.state == "cancelled" and any(event.properties.get("reason") == WITH_ITS_JOB for event in events):
        verdict, summary, following = ("failed", "was cancelled with its job", "nothing: its job was cancelled")
    if verdict in ("waiting", "retrying") and _has_dead_letter(backend, queue, request_id, state.run):
        verdict, summary, following = ("dead", f"its message is in {queue}-dlq: {_why(state)}", _HANDLE_LETTERS)
    return Story(
        id=request_id,
        kind="task",
        verdict=verdict,
        summary=f"task {request_id}, run {state.run}: {summary}",
        steps=_steps(events, lease, queue, now=now),
        related=_of_job(job_id, _graph(backend, tenant, job_id), request_id) if job_id else [],
        next=following,
    )


_SEND_LATER = "a worker with the role scheduler sends it then: postroad worker --roles scheduler"
_HANDLE_LETTERS = "a worker with the role dlq ends the run: postroad worker --roles dlq"


def _view(state: journal.TaskState, lease: Lease, queue: str, *, now: float) -> tuple[journal.Verdict, str, str]:
    match state.state:
        case "completed":
            return ("completed", f"completed at attempt {state.attempt}", journal.NOTHING)
        case "failed":
            return ("failed", f"failed: {_why(state)}", _again(state))
        case "cancelled":
            return ("failed", "was cancelled", _again(state))
    if lease.outcome is not None:
        return ("in_flight", f"ended as {lease.outcome.state}", "its last event is on its way to the journal")
    if lease.is_live(now):
        seconds = max(0, round(lease.effective_until - now))
        far = "" if lease.progress is None else f": {lease.progress}"
        return (
            "in_flight",
            f"attempt {lease.attempts} runs at {lease.owner}{far}",
            f"its lease ends in {seconds} s unless it is extended",
        )
    if lease.owner is not None:
        return ("retrying", f"its worker {lease.owner} was lost", f"a worker of queue {queue} runs it again")
    if state.last_event_type == journal.ATTEMPT_FAILED:
        return ("retrying", f"attempt {state.attempt}: {_why(state)}", f"a worker of queue {queue} retries it")
    if lease.sent_at is None and lease.due_at is not None:
        return ("waiting", f"is put off until {journal.iso(lease.due_at)}", _SEND_LATER)
    if lease.sent_at is None:
        return ("waiting", "recorded and not sent", "a reconciler sends it: postroad worker --roles reconciler")
    return ("waiting", f"waits in queue {queue}", "a worker takes it: postroad worker --load MODULE")


def _steps(events: Sequence[JournalEvent], lease: Lease, where: str, *, now: float) -> list[Step]:
    """Return the steps of a task: heartbeats in a row as one, and what the journal cannot hold, a lost worker."""
    found, sign = list[Step](), None
    for is_beat, group in groupby(events, lambda event: event.event_type == journal.HEARTBEAT):
        run = list(group)
        if is_beat:
            (step,) = journal.steps_of(run[:1], where=where)
            detail = f"{len(run):,} heartbeats, the last at {journal.iso(run[-1].timestamp)}"
            found.append(step if len(run) == 1 else msgspec.structs.replace(step, detail=detail))
            sign = sign and run[-1]
            continue
        for event in run:
            if event.event_type == journal.STARTED and sign is not None:
                found.append(_lost(sign, where))
            if event.event_type in journal.EVENT_TO_STATE:
                sign = event if event.event_type == journal.STARTED else None
            found += journal.steps_of([event], where=where)
    if sign is not None and lease.owner is not None and lease.outcome is None and not lease.is_live(now):
        found.append(_lost(sign, where))
    return found


def _lost(sign: JournalEvent, where: str) -> Step:
    """Return the step of a worker that was not heard of after this sign of life, so that its lease ended."""
    worker, seen = sign.properties.get("workerId"), journal.iso(sign.timestamp)
    ended = int(sign.properties.get("effectiveUntil", 0)) * 1_000
    return Step(
        at=journal.iso(max(ended, sign.timestamp)),
        what="lease_expired",
        where=where,
        by=worker,
        ok=False,
        detail=f"the worker was lost: nothing was heard of it after {seen}",
    )


def _waiting_story(backend: Store, tenant: str, request_id: str) -> Story | None:
    """Return the story of a job's task that has not begun; None if there is no such job or task."""
    job_id, dot, task_id = request_id.partition(".")
    graph = _graph(backend, tenant, job_id) if dot else {}
    if task_id not in graph:
        return None
    leases = TaskRecords(backend).read_many(tenant, f"{job_id}.")
    states = {each: _state_in_job(leases.get(each)) for each in graph}
    needs = list(graph[task_id].get("dependsOn") or ())
    waits_for = [each for each in needs if states[each] != "completed"]
    broken = [each for each in _all_before(graph, task_id) if states[each] in ("failed", "cancelled")]
    verdict: journal.Verdict = "waiting"
    summary = "waits for " + ", ".join(f"{each} ({states[each]})" for each in waits_for)
    following = f"it begins when {', '.join(waits_for)} {'is' if len(waits_for) == 1 else 'are'} completed"
    if broken:
        verdict, following = "blocked", f"run {', '.join(broken)} again: postroad job resume {job_id}"
    elif not waits_for:
        summary = "all tasks that it depends on are completed" if needs else "it depends on no other task"
        following = "a dispatcher begins it: postroad worker --roles dispatcher"
    created = journal.every_event(
        backend.journal(), "GSI5", tenant=tenant, entity=(journal.JOB, job_id), event_type=journal.JOB_CREATED, raw=True
    )
    return Story(
        id=request_id,
        kind="task",
        verdict=verdict,
        summary=f"task {request_id} of job {job_id}: {summary}",
        steps=journal.steps_of(created, where=None),
        related=_of_job(job_id, graph, request_id),
        next=following,
    )


def _all_before(graph: Mapping[str, dict[str, Any]], task_id: str) -> list[str]:
    """Return the tasks that a task depends on, and those that they depend on, in the order of the graph."""
    found, level = set[str](), {task_id}
    while level:
        level = {need for each in level for need in graph[each].get("dependsOn") or ()} - found
        found |= level
    return [each for each in graph if each in found]


def _state_in_job(held: Held | None) -> str:
    if held is None:
        return "waiting"
    lease = held.lease
    if lease.outcome is not None:
        return lease.outcome.state
    return journal.EVENT_TO_STATE.get(lease.last_event_type or "", "pending")


def _why(state: journal.TaskState) -> str:
    first = (state.error or "no error recorded").splitlines()[0]
    return first if state.error_category is None else f"{state.error_category}: {first}"


def _again(state: journal.TaskState) -> str:
    if state.job_id is not None:
        return f"run it again: postroad job resume {state.job_id}"
    return f"run it again: postroad task retry {state.request_id}"


def _graph(backend: Store, tenant: str, job_id: str) -> dict[str, dict[str, Any]]:
    return {task["taskId"]: task for task in journal.tasks_of_job(backend.journal(), tenant, job_id)}


def _of_job(job_id: str, graph: Mapping[str, dict[str, Any]], request_id: str) -> list[Related]:
    """Return the job of a task, the tasks that it depends on, and those that depend on it."""
    task_id = request_id.removeprefix(f"{job_id}.")
    before = graph.get(task_id, {}).get("dependsOn") or ()
    behind = [each for each, task in graph.items() if task_id in (task.get("dependsOn") or ())]
    return [
        Related(job_id, "caused_by", "job"),
        *(Related(f"{job_id}.{each}", "caused_by", "task") for each in before),
        *(Related(f"{job_id}.{each}", "causes", "task") for each in behind),
    ]


def _has_dead_letter(backend: Store, queue: str, request_id: str, run: int) -> bool:
    """Return whether this run has a dead letter, if the queue can be peeked without side effects."""
    with suppress(PostroadError):
        letters = backend.queue(f"{backend.stage_prefix}{queue}-dlq")
        if letters.traits.peeks_clean:
            found = letters.peek(limit=_LETTERS_LOOKED_AT)
            return any(named_by(letter) == (request_id, run) for letter in found)
    return False
