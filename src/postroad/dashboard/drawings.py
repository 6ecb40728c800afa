"""What is drawn: the graph of a job, and the map of everything that events pass through."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from postroad.dashboard.graphs import Layout, columns_of, layered
from postroad.jobs import JobStatus, JobTaskStatus

MOST_DRAWN: Final = 60
"""A job with more tasks becomes a table with its failed path drawn."""
_LABEL_COLUMNS: Final = 22
_SIGNS: Final = {
    "waiting": "\N{MIDDLE DOT}",
    "pending": "\N{WHITE CIRCLE}",
    "processing": "\N{CIRCLE WITH LEFT HALF BLACK}",
    "completed": "\N{CHECK MARK}",
    "failed": "\N{MULTIPLICATION X}",
    "cancelled": "\N{CIRCLED DIVISION SLASH}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What stands in a box, and where a click on it leads."""

    label: str
    note: str
    title: str
    """All of it, for the reader of a shortened label."""
    kind: str
    """The state of a task, or the kind of a thing on the map."""
    href: str
    alarm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A layout with what stands in its boxes."""

    layout: Layout
    nodes: Mapping[str, Node]


def job_drawing(job: JobStatus) -> Drawing | None:
    """Return the graph of a job; of a large one only its failed path, and None if nothing has failed."""
    tasks = {task.task_id: task for task in job.tasks}
    if len(tasks) > MOST_DRAWN:
        path = failed_path(job.tasks)
        tasks = {name: task for name, task in tasks.items() if name in path}
    if not tasks:
        return None
    edges = [(needed, task.task_id) for task in tasks.values() for needed in task.depends_on]
    return Drawing(layout=layered(tasks, edges), nodes={name: _task_node(task) for name, task in tasks.items()})


def failed_path(tasks: Sequence[JobTaskStatus]) -> set[str]:
    """Return the failed tasks, each with the longest chain of tasks before it, as many as can be drawn."""
    needs = {task.task_id: list(task.depends_on) for task in tasks}
    depth = columns_of(list(needs), [(need, name) for name, found in needs.items() for need in found])
    path = set[str]()
    for task in tasks:
        chain, name = set[str](), task.task_id if task.status == "failed" else None
        while name is not None:
            chain.add(name)
            name = max(needs[name], key=lambda each: depth[each], default=None)
        if len(path | chain) <= MOST_DRAWN:
            path |= chain
    return path


def _task_node(task: JobTaskStatus) -> Node:
    return Node(
        label=fitted(task.task_id, _LABEL_COLUMNS),
        note=f"{_SIGNS[task.status]} {task.status}",
        title=f"{task.task_id}: {task.name}, {task.status}",
        kind=task.status,
        href=f"/ui/events/{quote(task.request_id, safe='')}",
    )


def fitted(text: str, columns: int) -> str:
    """Return the text shortened to so many columns of a drawing; wide characters take two."""
    used = 0
    for kept, character in enumerate(text):
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > columns:
            return f"{text[: max(0, kept - 1)]}\N{HORIZONTAL ELLIPSIS}"
    return text
