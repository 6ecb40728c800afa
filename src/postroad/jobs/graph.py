"""A job as it is stored: the graph of its tasks, checked before anything is written, and its item.

The item says whether tasks may still be added and whether the job is over; every change of it is conditional.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from postroad import failpoints
from postroad.arguments import check, text
from postroad.errors import InvalidJob, InvalidTask, OutcomeUnknown
from postroad.items import ABSENT, Expect
from postroad.journal import Appends, Journal, JournalEvent, Owing, OwingItems, owing_nothing, tasks_of_job
from postroad.ports import Store
from postroad.tasks import TaskName, check_input, open_job_key, scan

MAX_NEW_TASKS: Final = 50
MAX_TASKS: Final = 10_000
JobId = text(r"[A-Za-z0-9_-]{1,120}", "a job id", remedy="Use 1 to 120 letters, digits, '_' or '-'.")
_FIELDS: Final[dict[str, Any]] = {
    "taskId": text(r"[A-Za-z0-9_-]{1,128}", "1 to 128 letters, digits, '_' or '-'"),
    "name": TaskName,
    "dependsOn": Annotated[list[str] | None, msgspec.Meta(description="a list of task ids")],
    "input": Any,
}


class GraphTask(msgspec.Struct, frozen=True, rename="camel"):
    """One task of a graph."""

    task_id: str
    name: str
    depends_on: tuple[str, ...] = ()
    input: dict[str, Any] = {}


class Graph:
    """The tasks of a job in the order in which they were submitted."""

    def __init__(self, tasks: Iterable[GraphTask]) -> None:
        self.tasks: dict[str, GraphTask] = {task.task_id: task for task in tasks}
        self.dependents: dict[str, list[str]] = {task_id: [] for task_id in self.tasks}
        for task in self.tasks.values():
            for needed in task.depends_on:
                self.dependents.setdefault(needed, []).append(task.task_id)

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def roots(self) -> list[str]:
        """The tasks that depend on nothing."""
        return [task.task_id for task in self.tasks.values() if not task.depends_on]


def request_id_of(job_id: str, task_id: str) -> str:
    """Return the request id of a job's task; submitted ids have no dot, so the two never collide."""
    return f"{job_id}.{task_id}"


def read_tasks(tasks: object, known: Graph | None = None) -> list[GraphTask]:
    """Return the new tasks of a job, or raise `InvalidJob`; `known` are the tasks it has already."""
    if not isinstance(tasks, Sequence) or isinstance(tasks, str | bytes):
        raise InvalidJob(f"tasks: {type(tasks).__name__} is not a list of tasks", field="tasks")
    if not tasks:
        raise InvalidJob("tasks: is empty; a job has at least one task", field="tasks")
    if len(tasks) > MAX_NEW_TASKS:
        raise InvalidJob(f"Too many tasks: {len(tasks)} (max {MAX_NEW_TASKS})", field="tasks")
    found = [_read(task, f"tasks[{place}]") for place, task in enumerate(tasks)]
    _check_graph(found, known or Graph(()))
    return found


def _read(task: object, where: str) -> GraphTask:
    if isinstance(task, GraphTask):
        task = msgspec.to_builtins(task)
    if not isinstance(task, Mapping):
        raise InvalidJob(f"{where}: {type(task).__name__} is not an object", field=where)
    if unknown := sorted(set(task) - _FIELDS.keys()):
        raise InvalidJob(f"{where}.{unknown[0]}: is not a field of a task", field=f"{where}.{unknown[0]}")
    for field, kind in _FIELDS.items():
        check(task.get(field), kind, f"{where}.{field}", InvalidJob)
    try:
        given = check_input(task.get("input"))
    except InvalidTask as error:
        raise InvalidJob(f"{where}.{error}", field=f"{where}.{error.field}") from None
    return GraphTask(task["taskId"], task["name"], tuple(dict.fromkeys(task.get("dependsOn") or ())), given)


def _check_graph(new: Sequence[GraphTask], known: Graph) -> None:
    ids = set(known.tasks)
    for task in new:
        if task.task_id in ids:
            raise InvalidJob(f"Duplicate taskId: {task.task_id}", field="taskId")
        ids.add(task.task_id)
    if len(ids) > MAX_TASKS:
        raise InvalidJob(f"Too many tasks: {len(ids)} in one job (max {MAX_TASKS})", field="tasks")
    for task in new:
        for needed in task.depends_on:
            if needed not in ids:
                raise InvalidJob(f'Task {task.task_id} depends on "{needed}" which does not exist', field="dependsOn")
    try:
        TopologicalSorter({task.task_id: task.depends_on for task in new}).prepare()
    except CycleError:
        # Cycles are what is left after removing, again and again, tasks that need no other or that no other needs.
        before, left = 0, {task.task_id: set(task.depends_on) for task in new}
        while len(left) != before:
            before, used = len(left), set[str]().union(*left.values())
            left = {task_id: needs for task_id, needs in left.items() if task_id in used and not needs.isdisjoint(left)}
        raise InvalidJob(f"Cycle detected involving: {', '.join(sorted(left))}", field="dependsOn") from None


IsCompleted = Callable[[str], bool]


class GraphProgress:
    """The graph of a job, and the tasks that are known to be completed.

    It is a cache of leases and journal: a task that ends costs a look at its dependents, not at the whole job. A
    completed task stays completed, so positions only move forward.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._order = list(graph.tasks)
        self._done: set[str] = set()
        self._met: dict[str, int] = {}
        self._finished = 0

    def note_completed(self, task_id: str) -> None:
        self._done.add(task_id)

    def is_ready(self, task_id: str, is_completed: IsCompleted) -> bool:
        """Return whether all dependencies of the task are completed; each is asked for until it is, and never again."""
        needs = self.graph.tasks[task_id].depends_on
        met = self._met.get(task_id, 0)
        while met < len(needs) and self._known(needs[met], is_completed):
            met += 1
        self._met[task_id] = met
        return met == len(needs)

    def is_finished(self, is_completed: IsCompleted) -> bool:
        while self._finished < len(self._order) and self._known(self._order[self._finished], is_completed):
            self._finished += 1
        return self._finished == len(self._order)

    def _known(self, task_id: str, is_completed: IsCompleted) -> bool:
        if task_id not in self._done and is_completed(task_id):
            self._done.add(task_id)
        return task_id in self._done


_KEPT: Final = 64


class GraphCache:
    """The graphs of the last used jobs of a tenant."""

    def __init__(self, journal: Journal, tenant: str) -> None:
        self._journal = journal
        self._tenant = tenant
        self._kept: OrderedDict[str, GraphProgress] = OrderedDict()

    def get(self, job_id: str, job: Job) -> GraphProgress | None:
        """Return the progress of the job; None while the journal does not show all of its tasks."""
        progress = self._kept.get(job_id)
        if progress is None or len(progress.graph) != job.total:
            progress = self.keep(job_id, self.graph(job_id))
        self._kept.move_to_end(job_id)
        return progress if len(progress.graph) == job.total else None

    def keep(self, job_id: str, graph: Graph) -> GraphProgress:
        progress = self._kept[job_id] = GraphProgress(graph)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return progress

    def graph(self, job_id: str) -> Graph:
        """Read the graph from the journal, with all tasks that were added."""
        tasks = tasks_of_job(self._journal, self._tenant, job_id)
        return Graph(msgspec.convert(task, GraphTask) for task in tasks)


Status = Literal["processing", "completed", "partial_failure", "cancelled"]


class Job(Owing, frozen=True, kw_only=True, rename="camel"):
    """The item of a job."""

    status: Status = "processing"
    total: int
    digest: str
    """A hash of its first tasks."""
    queue: str
    created_at: int
    completed_at: int | None = None
    request_id: str | None = None
    resumes: int = 0
    failure_recorded: bool = msgspec.field(default=False, name="failureTold")
    """Whether a failure was recorded since the job began or was last resumed."""
    resuming: dict[str, int] = {}
    """Tasks to begin again, with the number of their next run."""

    @property
    def is_over(self) -> bool:
        """Whether nothing can be added or resumed."""
        return self.status in ("completed", "cancelled")


class HeldJob(NamedTuple):
    """A job as it was read or written, with the version that the next write expects."""

    job: Job
    version: int


class JobRecords:
    """Reads and writes the items of jobs together with their events."""

    def __init__(self, backend: Store, tenant: str, journal: Appends | None = None) -> None:
        self._backend = backend
        self._tenant = tenant
        self._items = backend.items()
        recorded_in: Appends = backend.journal() if journal is None else journal
        self._jobs = OwingItems(Job, HeldJob, self._items, backend.blobs(), recorded_in)
        # A journal that the caller brings has its own commits.
        self._together = journal is None and backend.joins_writes

    def read(self, job_id: str) -> HeldJob | None:
        """Return the job, after the events it owes are recorded."""
        held = self._jobs.read(self._key(job_id))
        return held if held is None or not held.job.owes else self._pay(job_id, held)

    def write(
        self, job_id: str, job: Job, events: Sequence[JournalEvent], *, expect: HeldJob | None, is_open: bool
    ) -> HeldJob | None:
        """Write the job if it is still as expected, and record the events; return None if it is not."""
        version: int | Expect = ABSENT if expect is None else expect.version
        if self._together:

            def unit() -> HeldJob | None:
                held = self._put(job_id, job, version)
                if held is not None:
                    self._mark(job_id, is_open=is_open)
                    self._append(events)
                return held

            return self._backend.together(unit)
        if is_open:
            self._mark(job_id, is_open=True)
        due = [*self._jobs.owed(job), *events]
        path = f"jobs/{job_id}/{due[-1].event_id if due else 'none'}.json"
        held = self._put(job_id, self._jobs.owing(job, due, path), version)
        if held is None:
            return None
        held = self._pay(job_id, held)
        if not is_open:
            self._mark(job_id, is_open=False)
        return held

    def open_jobs(self) -> Iterator[str]:
        """Yield the jobs that may have something to do."""
        prefix = open_job_key(self._tenant, "")
        for item in scan(self._items, prefix, limit=200):
            yield item.key.removeprefix(prefix)

    def _key(self, job_id: str) -> str:
        return f"{self._tenant}/JOB#{job_id}"

    def claim_mark(self, job_id: str) -> int | None:
        """Write the mark anew before a look at the job, and return its version; None if there is no mark to remove."""
        key = open_job_key(self._tenant, job_id)
        mark = self._items.get(key)
        if mark is None or not self._items.put(key, mark.value, expect=mark.version).ok:
            return None
        return mark.version + 1

    def close(self, job_id: str, held: HeldJob, *, mark: int) -> None:
        """Let dispatchers skip the job, if neither it nor its mark has changed."""
        # A write that has marked the job and not happened yet fails because of this one, and marks it again.
        if self._put(job_id, held.job, held.version) is not None:
            with suppress(OutcomeUnknown):
                self._items.delete(open_job_key(self._tenant, job_id), expect=mark)

    def _mark(self, job_id: str, *, is_open: bool) -> None:
        """Let dispatchers look at the job, or skip it because it is completed for good."""
        key = open_job_key(self._tenant, job_id)
        if is_open:
            self._items.put(key, b"1")
        else:
            self._items.delete(key)

    def _put(self, job_id: str, job: Job, version: int | Expect) -> HeldJob | None:
        ok, found = self._jobs.put(self._key(job_id), job, version)
        return found if ok else None

    def _append(self, events: Sequence[JournalEvent]) -> None:
        failpoints.hit("dispatcher.before_job_event")
        self._jobs.append(events)

    def _pay(self, job_id: str, held: HeldJob) -> HeldJob:
        """Record the events that the item owes, then remove them from it; recorded events do not change."""
        self._append(self._jobs.owed(held.job))
        paid = self._put(job_id, owing_nothing(held.job), held.version)
        self._jobs.forget(held.job)
        return paid or self.read(job_id) or held
