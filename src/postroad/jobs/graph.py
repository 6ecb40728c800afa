"""The graph of a job: which task waits for which, checked before anything is written."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroad.arguments import check, text
from postroad.errors import InvalidJob, InvalidTask
from postroad.journal import Journal, tasks_of_job
from postroad.tasks import TaskName, check_input

if TYPE_CHECKING:
    from postroad.jobs.records import Job


MAX_NEW_TASKS: Final = 50
MAX_TASKS: Final = 10_000
_TASK_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
JobId = text(r"[A-Za-z0-9_-]{1,120}", "a job id", remedy="Use 1 to 120 letters, digits, '_' or '-'.")
_FIELDS = frozenset({"taskId", "name", "dependsOn", "input"})


class GraphTask(msgspec.Struct, frozen=True, rename="camel"):
    """One task of a graph."""

    task_id: str
    name: str
    depends_on: tuple[str, ...] = ()
    input: dict[str, Any] = {}


class Graph:
    """The tasks of a job in the order in which they were given."""

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
        """Tasks that wait for none."""
        return [task.task_id for task in self.tasks.values() if not task.depends_on]


def request_id_of(job_id: str, task_id: str) -> str:
    """The request id of a job's task; ids that people choose hold no dot, so that none collide."""
    return f"{job_id}.{task_id}"


def read_tasks(tasks: object, known: Graph | None = None) -> list[GraphTask]:
    """The new tasks of a job, or `InvalidJob` naming what is wrong; `known` are those that it has."""
    if not isinstance(tasks, Sequence) or isinstance(tasks, str | bytes):
        raise InvalidJob(f"tasks: {type(tasks).__name__} is not a list of tasks", field="tasks")
    if not tasks:
        raise InvalidJob("tasks: is empty; a job has at least one task", field="tasks")
    if len(tasks) > MAX_NEW_TASKS:
        raise InvalidJob(f"Too many tasks: {len(tasks)} (max {MAX_NEW_TASKS})", field="tasks")
    found = [_read(task, f"tasks[{place}]") for place, task in enumerate(tasks)]
    _check_graph(found, known or Graph(()))
    return found


def read_graph(recorded: Iterable[Mapping[str, Any]]) -> Graph:
    """The graph out of what the journal holds; it was checked when it was written."""
    return Graph(msgspec.convert(task, GraphTask) for task in recorded)


def _read(task: object, where: str) -> GraphTask:
    if isinstance(task, GraphTask):
        task = msgspec.to_builtins(task)
    if not isinstance(task, Mapping):
        raise InvalidJob(f"{where}: {type(task).__name__} is not an object", field=where)
    if unknown := sorted(set(task) - _FIELDS):
        raise InvalidJob(f"{where}.{unknown[0]}: is not a field of a task", field=f"{where}.{unknown[0]}")
    task_id = task.get("taskId")
    if not isinstance(task_id, str) or _TASK_ID.fullmatch(task_id) is None:
        raise InvalidJob(
            f"{where}.taskId: {str(task_id)[:150]!r} is not 1 to 128 letters, digits, '_' or '-'",
            field=f"{where}.taskId",
        )
    try:
        name: Any = task.get("name")
        given = check_input(task.get("input"))
        check(name, TaskName, "name", InvalidTask)
    except InvalidTask as error:
        raise InvalidJob(f"{where}.{error}", field=f"{where}.{error.field}") from None
    return GraphTask(task_id, name, _depends_on(task.get("dependsOn"), f"{where}.dependsOn"), given)


def _depends_on(value: object, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise InvalidJob(f"{where}: is not a list of task ids", field=where)
    return tuple(dict.fromkeys(value))


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
    if stuck := _in_circles(new, known):
        raise InvalidJob(f"Cycle detected involving: {', '.join(sorted(stuck))}", field="dependsOn")


def _in_circles(new: Sequence[GraphTask], known: Graph) -> set[str]:
    """The tasks on a circle: what is left when tasks whose needs are met are taken away, from both ends."""
    waits = {task.task_id: {each for each in task.depends_on if each not in known.tasks} for task in new}
    return set(_left(_turned(_left(waits))))


def _left(waits: dict[str, set[str]]) -> dict[str, set[str]]:
    free = [task_id for task_id, needs in waits.items() if not needs]
    behind = _turned(waits)
    left = {task_id: set(needs) for task_id, needs in waits.items()}
    while free:
        done = free.pop()
        del left[done]
        for task_id in behind.get(done, ()):
            left[task_id].discard(done)
            if not left[task_id]:
                free.append(task_id)
    return left


def _turned(waits: dict[str, set[str]]) -> dict[str, set[str]]:
    turned: dict[str, set[str]] = {task_id: set() for task_id in waits}
    for task_id, needs in waits.items():
        for needed in needs & set(waits):
            turned[needed].add(task_id)
    return turned


IsCompleted = Callable[[str], bool]


class GraphProgress:
    """The graph of a job and how much of it is known to be completed.

    So a finished task costs what depends on it, and not what the job holds. Nothing here is needed: all of it can be
    found again in leases and journal. A task that is completed stays completed, so positions only move forward.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._order = list(graph.tasks)
        self._done: set[str] = set()
        self._met: dict[str, int] = {}
        self._finished = 0

    def note_completed(self, task_id: str) -> None:
        """The task is completed."""
        self._done.add(task_id)

    def is_ready(self, task_id: str, is_completed: IsCompleted) -> bool:
        """Whether all that the task waits for is completed. Each need is asked for until it is, and never again."""
        needs = self.graph.tasks[task_id].depends_on
        met = self._met.get(task_id, 0)
        while met < len(needs) and self._known(needs[met], is_completed):
            met += 1
        self._met[task_id] = met
        return met == len(needs)

    def is_finished(self, is_completed: IsCompleted) -> bool:
        """Whether every task is completed."""
        while self._finished < len(self._order) and self._known(self._order[self._finished], is_completed):
            self._finished += 1
        return self._finished == len(self._order)

    def _known(self, task_id: str, is_completed: IsCompleted) -> bool:
        if task_id not in self._done and is_completed(task_id):
            self._done.add(task_id)
        return task_id in self._done


_KEPT: Final = 64


class GraphCache:
    """The graphs of one tenant's jobs."""

    def __init__(self, journal: Journal, tenant: str) -> None:
        self._journal = journal
        self._tenant = tenant
        self._kept: OrderedDict[str, GraphProgress] = OrderedDict()

    def get(self, job_id: str, job: Job) -> GraphProgress | None:
        """The progress of the job; None while the journal does not show all of its tasks."""
        progress = self._kept.get(job_id)
        if progress is None or len(progress.graph) != job.total:
            progress = self.keep(job_id, self.graph(job_id))
        self._kept.move_to_end(job_id)
        return progress if len(progress.graph) == job.total else None

    def keep(self, job_id: str, graph: Graph) -> GraphProgress:
        """Remember a graph."""
        progress = self._kept[job_id] = GraphProgress(graph)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return progress

    def graph(self, job_id: str) -> Graph:
        """The graph that the journal tells: what the job was made with and all that was added, wherever it stands."""
        return read_graph(tasks_of_job(self._journal, self._tenant, job_id))
