"""The coordinator of jobs: it begins tasks that are ready, records a failure once, and completes finished jobs.

Any number of coordinators may work on one job at the same time. The lease of a task marks that it was begun; the item
of the job marks that it failed, was cancelled or is completed. If a coordinator dies in between, the next look at the
job continues its work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from postroad.errors import PostroadError, Unavailable
from postroad.jobs.graph import Graph, GraphCache, GraphProgress, HeldJob, Job, JobRecords, Status, request_id_of
from postroad.journal import COMPLETED, TERMINAL, Appends, Journal, JournalEvent, task_state, whole
from postroad.ports import Store
from postroad.tasks import (
    WITH_ITS_JOB,
    EventFactory,
    Held,
    Lease,
    Submission,
    Submissions,
    TaskMessage,
    TaskRecords,
    first_lease_in_job,
    log_event,
)

JOB_COMPLETED: Final = "Job Completed"
FAILURE_DETECTED: Final = "Job Failure Detected"
FAILED: Final = ("failed", "cancelled")


class DispatchResult(msgspec.Struct, frozen=True):
    """What a look at a job did: the tasks it began, whether it completed the job, the failure it recorded."""

    dispatched: list[str] = []
    """The tasks that it began."""
    completed: bool = False
    """Whether it completed the job."""
    failed_task: str | None = None
    """The task whose failure it recorded."""


class JobCoordinator:
    """Advances the jobs of one tenant."""

    def __init__(self, backend: Store, *, queue: str, tenant: str, app: str, journal: Appends | None = None) -> None:
        self.tenant = tenant
        self.queue_name = queue
        self.journal: Journal = journal if isinstance(journal, Journal) else backend.journal()
        self.jobs = JobRecords(backend, tenant, journal)
        self.tasks = TaskRecords(backend, journal)
        self.graphs = GraphCache(self.journal, tenant)
        self.factory = EventFactory(app=app, environment=backend.stage, origin="dispatcher", clock=backend.clock)
        self.submissions = Submissions(backend, self.tasks, queue_name=queue)

    def event(self, event_type: str, job_id: str, *, origin: str = "dispatcher", **properties: Any) -> JournalEvent:
        """Return an event of the job; `origin` is `producer` for requests of its owner."""
        return replace(self.factory, origin=origin).record(event_type, self.tenant, job_id, jobId=job_id, **properties)

    def advance(
        self, job_id: str, task_id: str, *, state: str, output: Mapping[str, Any] | None = None
    ) -> DispatchResult:
        """Do what follows from the end of a task. `output` holds its result if that is known.

        Raises:
            Unavailable: The journal does not show the necessary events yet; try again later.
        """
        held, progress = self._open(job_id)
        if held is None or held.job.is_over:
            return DispatchResult()
        if progress is None:
            raise _not_visible(job_id)
        if state == "completed":
            progress.note_completed(task_id)
            known = {} if output is None else {task_id: output}
            again = self._begin_again(job_id, held, progress) if held.job.resuming else []
            begun, hidden = self._begin_ready(job_id, progress, progress.graph.dependents.get(task_id, []), known=known)
            if hidden:
                raise _not_visible(job_id)
            return DispatchResult([*again, *begun], self._finish(job_id))
        if state in FAILED and held.job.failure_recorded:
            return DispatchResult()
        return DispatchResult(failed_task=self._note_failure(job_id))

    def begin(self, job_id: str, task_ids: Iterable[str]) -> DispatchResult:
        """Begin those of these tasks that are ready, without a look at the rest of the job."""
        held, progress = self._open(job_id)
        if held is None or progress is None or held.job.is_over:
            return DispatchResult()
        return DispatchResult(self._begin_ready(job_id, progress, task_ids)[0])

    def dispatch(self, job_id: str) -> DispatchResult:
        """Examine the whole job and advance it as far as possible; close it if nothing is left to do.

        Jobs of other queues are left to their dispatchers.
        """
        result, idle = self._look(job_id)
        if idle is not None and (mark := self.jobs.claim_mark(job_id)) is not None:
            result, idle = self._look(job_id)
            if idle is not None:
                self.jobs.close(job_id, idle, mark=mark)
        return result

    def _look(self, job_id: str) -> tuple[DispatchResult, HeldJob | None]:
        """Advance the job; the second value is the job if nothing is left to do until somebody changes it."""
        held, progress = self._open(job_id)
        if held is None or progress is None or held.job.queue != self.queue_name:
            return DispatchResult(), None
        if held.job.is_over:
            if held.job.status == "cancelled":
                self.cancel_tasks(job_id, progress.graph)
            return DispatchResult(), held
        leases = self.leases(job_id)
        waiting = [each for each in progress.graph.tasks if each not in leases or leases[each].lease.is_unsent]
        states = self.states(job_id, progress.graph, leases)
        for task_id, state in states.items():
            if state == "completed":
                progress.note_completed(task_id)
        begun = [
            *self._begin_again(job_id, held, progress, states),
            *self._begin_ready(job_id, progress, waiting, states=states)[0],
        ]
        if self._finish(job_id, states):
            return DispatchResult(begun, completed=True), None
        is_failed = any(fails(held.job, task_id, state) for task_id, state in states.items())
        failed = self._note_failure(job_id) if is_failed is not held.job.failure_recorded else None
        rests = not any(state in ("pending", "processing") for state in states.values())
        is_idle = is_failed and held.job.failure_recorded and not begun and rests
        return DispatchResult(begun, failed_task=failed), held if is_idle else None

    def state(self, job_id: str, task_id: str) -> str | None:
        """Return the state of a task by its lease and its events; None if it was never begun."""
        held = self.lease(job_id, task_id)
        return None if held is None else self._state(job_id, task_id, held.lease)

    def states(self, job_id: str, graph: Graph, leases: Mapping[str, Held] | None = None) -> dict[str, str | None]:
        """Return the state of every task; None for a task that was never begun."""
        known = self.leases(job_id) if leases is None else leases
        return {
            task_id: self._state(job_id, task_id, known[task_id].lease) if task_id in known else None
            for task_id in graph.tasks
        }

    def leases(self, job_id: str) -> dict[str, Held]:
        """Return the leases of all tasks of the job that were ever begun."""
        return self.tasks.read_many(self.tenant, request_id_of(job_id, ""))

    def _state(self, job_id: str, task_id: str, lease: Lease) -> str:
        if lease.outcome is not None:
            return lease.outcome.state
        if lease.is_live(self.factory.now_ms() / 1_000):
            return "processing"
        state = task_state(self.journal, self.tenant, request_id_of(job_id, task_id), raw=True)
        if state is not None and state.run == lease.run and state.last_event_type in TERMINAL:
            return state.state
        return "pending" if lease.owner is None else "processing"

    def lease(self, job_id: str, task_id: str) -> Held | None:
        """Return the lease of a task; None if it was never begun."""
        return self.tasks.read(self.tenant, request_id_of(job_id, task_id))

    def cancel_tasks(self, job_id: str, graph: Graph) -> list[str]:
        """Cancel all tasks that have not ended, begun or not; return their ids."""
        return [task_id for task_id in graph.tasks if self._cancel(job_id, task_id, graph)]

    def _cancel(self, job_id: str, task_id: str, graph: Graph) -> bool:
        request_id = request_id_of(job_id, task_id)

        def unbegun() -> Lease:
            return first_lease_in_job(self.tenant, request_id, graph.tasks[task_id].name, self.queue_name, self.factory)

        return self.tasks.cancel(self.tenant, request_id, self.factory, reason=WITH_ITS_JOB, unbegun=unbegun)

    def _open(self, job_id: str) -> tuple[HeldJob | None, GraphProgress | None]:
        held = self.jobs.read(job_id)
        return (None, None) if held is None else (held, self.graphs.get(job_id, held.job))

    def _is_completed(self, job_id: str, states: Mapping[str, str | None] | None) -> Callable[[str], bool]:
        """Return a function that says whether a task is completed, by these states or else by its lease."""
        if states is None:
            return lambda task_id: self.state(job_id, task_id) == "completed"
        return lambda task_id: states.get(task_id) == "completed"

    def _begin_ready(
        self,
        job_id: str,
        progress: GraphProgress,
        tasks: Iterable[str],
        *,
        known: Mapping[str, Any] | None = None,
        states: Mapping[str, str | None] | None = None,
    ) -> tuple[list[str], bool]:
        """Begin those of the tasks that are ready and were never begun; return their ids.

        A task whose submission was interrupted is completed. The second value says whether a task had to wait because
        the journal does not show the results it needs yet.
        """
        begun, hidden, is_completed = list[str](), False, self._is_completed(job_id, states)
        for task_id in tasks:
            if not progress.is_ready(task_id, is_completed):
                continue
            held = self.lease(job_id, task_id)
            if held is not None and not held.lease.is_unsent:
                continue
            run = 1 if held is None else held.lease.run
            submission = self._submission(job_id, progress, task_id, run=run, known=known or {})
            if submission is None:
                hidden = True
            elif self.submissions.begin(submission).created:
                begun.append(task_id)
        return begun, hidden

    def _begin_again(
        self, job_id: str, held: HeldJob, progress: GraphProgress, states: Mapping[str, str | None] | None = None
    ) -> list[str]:
        """Begin the next run of the tasks that a resume named; return their ids."""
        begun, left, is_completed = list[str](), dict[str, int](), self._is_completed(job_id, states)
        for task_id, run in held.job.resuming.items():
            lease = self.lease(job_id, task_id)
            if lease is None or lease.lease.run >= run:
                continue
            # A task that was cancelled before it began may still have to wait for others.
            ready = progress.is_ready(task_id, is_completed)
            submission = self._submission(job_id, progress, task_id, run=run, known={}) if ready else None
            if submission is None:
                left[task_id] = run
            elif self.submissions.begin_again(submission, lease):
                begun.append(task_id)
        if left != held.job.resuming:
            self.jobs.write(job_id, msgspec.structs.replace(held.job, resuming=left), (), expect=held, is_open=True)
        return begun

    def _submission(
        self, job_id: str, progress: GraphProgress, task_id: str, *, run: int, known: Mapping[str, Any]
    ) -> Submission | None:
        """Return the run of a task with the results it depends on; None while the journal does not show them."""
        task = progress.graph.tasks[task_id]
        outputs = self._outputs(job_id, task.depends_on, known)
        if outputs is None:
            return None
        message = TaskMessage(
            request_id=request_id_of(job_id, task_id),
            name=task.name,
            input=task.input,
            run=run,
            task_id=task_id,
            job_id=job_id,
            dependency_outputs=outputs,
        )
        return Submission.of(message, self.tenant, self.factory, depends_on=list(task.depends_on))

    def _outputs(self, job_id: str, needs: Iterable[str], known: Mapping[str, Any]) -> dict[str, Any] | None:
        outputs = {}
        for needed in needs:
            if needed in known:
                outputs[needed] = known[needed].get("output")
                continue
            entity = ("TASK", request_id_of(job_id, needed))
            page = self.journal.query(
                "GSI5", tenant=self.tenant, entity=entity, event_type=COMPLETED, descending=True, limit=1
            )
            if not page.events:
                return None
            outputs[needed] = whole(page.events[0]).properties.get("output")
        return outputs

    def _note_failure(self, job_id: str) -> str | None:
        """Record that a task failed, once until no task is failed; return the task if this call did it."""
        while True:
            held, progress = self._open(job_id)
            if held is None or progress is None or held.job.is_over:
                return None
            states = self.states(job_id, progress.graph)
            failed = next((task for task, state in states.items() if fails(held.job, task, state)), None)
            if held.job.failure_recorded is (failed is not None):
                return None
            events = []
            if failed is not None:
                events = [self.event(FAILURE_DETECTED, job_id, failedTaskId=failed, taskStatuses=states)]
            status: Status = "processing" if failed is None else "partial_failure"
            job = msgspec.structs.replace(held.job, status=status, failure_recorded=failed is not None)
            if self.jobs.write(job_id, job, events, expect=held, is_open=True) is not None:
                return failed

    def _finish(self, job_id: str, states: Mapping[str, str | None] | None = None) -> bool:
        """Complete the job if all of its tasks are completed; return whether this call did it."""
        while True:
            held, progress = self._open(job_id)
            if held is None or progress is None or held.job.is_over:
                return False
            if not progress.is_finished(self._is_completed(job_id, states)):
                return False
            statuses = dict.fromkeys(progress.graph.tasks, "completed")
            event = self.event(JOB_COMPLETED, job_id, totalTasks=held.job.total, taskStatuses=statuses)
            job: Job = msgspec.structs.replace(held.job, status="completed", completed_at=event.timestamp)
            if self.jobs.write(job_id, job, [event], expect=held, is_open=False) is not None:
                return True


def fails(job: Job, task_id: str, state: str | None) -> bool:
    """Return whether the task failed and is not about to begin again."""
    return state in FAILED and task_id not in job.resuming


def quietly(advance: Callable[[], DispatchResult], job_id: str) -> DispatchResult:
    """Advance a job that is recorded; after an error the next look does it."""
    try:
        return advance()
    except PostroadError as error:
        log_event("job_dispatch_failed", job_id=job_id, error=error)
        return DispatchResult()


def _not_visible(job_id: str) -> Unavailable:
    return Unavailable(f"job {job_id!r}: the journal does not show all of its events yet")
