"""What is drawn: the graph of a job, and the map of everything that events pass through."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from postroad.dashboard.graphs import Layout, Pair, Size, columns_of, layered
from postroad.jobs import JobStatus, JobTaskStatus
from postroad.views import Map, MapNode

MOST_DRAWN: Final = 60
"""A job with more tasks becomes a table with its failed path drawn."""
MOST_MAPPED: Final = 120
MOST_QUEUES: Final = 80
"""Of more queues the map has those that hold most, so that there is room for their topics and handlers."""
_NOTE_COLUMNS: Final = 24
_COLUMN_PIXELS: Final = 7.4
_PADDING: Final = 28
_LABEL_COLUMNS: Final = 28
_SIGNS: Final = {
    "waiting": "\N{MIDDLE DOT}",
    "pending": "\N{WHITE CIRCLE}",
    "processing": "\N{CIRCLE WITH LEFT HALF BLACK}",
    "completed": "\N{CHECK MARK}",
    "failed": "\N{MULTIPLICATION X}",
    "cancelled": "\N{CIRCLED DIVISION SLASH}",
}

_PLACES: Final = {
    "queue": "/ui/queues/{}",
    "dead_letter": "/ui/queues/{}",
    "outbox": "/ui/outbox",
    "agent": "/ui/agents?agent={}",
    "stream": "/ui/agents",
    "topic": "/ui/queues",
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
    return _drawn({name: _task_node(task) for name, task in tasks.items()}, edges)


def _drawn(nodes: Mapping[str, Node], edges: Sequence[Pair]) -> Drawing:
    """Return the drawing, with boxes as wide as the longest label needs."""
    longest = max(_columns(text) for node in nodes.values() for text in (node.label, node.note))
    size = Size(width=_PADDING + round(longest * _COLUMN_PIXELS))
    return Drawing(layout=_remembered(tuple(nodes), tuple(edges), size), nodes=nodes)


@lru_cache(maxsize=64)
def _remembered(nodes: tuple[str, ...], edges: tuple[Pair, ...], size: Size) -> Layout:
    """Return the layout; states and numbers change often, graphs seldom."""
    return layered(nodes, edges, size)


def failed_path(tasks: Sequence[JobTaskStatus]) -> set[str]:
    """Return the failed tasks, each with the longest chain of tasks before it, as many as can be drawn."""
    needs = {task.task_id: list(task.depends_on) for task in tasks}
    depth = columns_of(list(needs), [(need, name) for name, found in needs.items() for need in found])
    path = set[str]()
    for task in tasks:
        if len(path) >= MOST_DRAWN:
            break
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


def map_drawing(system: Map) -> tuple[Drawing | None, Sequence[MapNode]]:
    """Return the drawing of what is connected, and the things that are connected with nothing or do not fit."""
    edges = [(edge.source, edge.target) for edge in system.edges]
    connected = _connected(system.nodes, edges)
    drawn = {node.id: node for node in connected[:MOST_MAPPED]}
    rest = [node for node in system.nodes if node.id not in drawn]
    if not drawn:
        return None, rest
    return _drawn({name: _map_node(node) for name, node in drawn.items()}, edges), rest


def _connected(nodes: Iterable[MapNode], edges: Sequence[Pair]) -> list[MapNode]:
    """Return the nodes with an edge, those with messages first, so that the busy ones are drawn of very many."""
    ends = {end for edge in edges for end in edge}
    found = [node for node in nodes if node.id in ends]
    return found if len(found) <= MOST_MAPPED else sorted(found, key=lambda node: -(node.depth or 0))


def _map_node(node: MapNode) -> Node:
    depth = "" if node.depth is None else f" \N{MIDDLE DOT} {node.depth:,}"
    kind = "dead letters" if node.kind == "dead_letter" else node.kind
    return Node(
        label=fitted(node.name, _LABEL_COLUMNS),
        note=fitted(f"{kind}{depth}", _NOTE_COLUMNS),
        title=f"{kind} {node.name}" + ("" if node.depth is None else f", {node.depth:,} waiting"),
        kind=node.kind,
        href=place_of(node),
        alarm=node.kind == "dead_letter" and bool(node.depth),
    )


def place_of(node: MapNode) -> str:
    """Return the page of a thing on the map; that of a handler shows its tasks, or the queue that it reads."""
    if node.kind == "handler":
        _, queue, name = node.id.split(":", 2)
        return f"/ui/tasks?name={quote(name, safe='')}" if queue == "task" else f"/ui/queues/{quote(queue, safe='')}"
    return _PLACES[node.kind].format(quote(node.name, safe=""))


def fitted(text: str, columns: int) -> str:
    """Return the text shortened to so many columns of a drawing."""
    if _columns(text) <= columns:
        return text
    kept = text[:columns]
    while _columns(kept) >= columns:
        kept = kept[:-1]
    return f"{kept}\N{HORIZONTAL ELLIPSIS}"


def _columns(text: str) -> int:
    """Return how wide a text is; wide characters take two columns."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)
