"""A job as a picture: text for a terminal, Mermaid for a page, dot for Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from postroad.errors import InvalidInput
from postroad.jobs.status import JobStatus, JobTaskStatus

_SIGNS = {
    "waiting": "·", "pending": "○", "processing": "◐", "completed": "●", "failed": "✗", "cancelled": "⊘",
}  # fmt: skip
_COLOURS = {
    "waiting": "#e5e7eb", "pending": "#fef3c7", "processing": "#bfdbfe", "completed": "#bbf7d0", "failed": "#fecaca",
    "cancelled": "#d1d5db",
}  # fmt: skip


def draw(job: JobStatus, format: str) -> str:
    """The picture, or a refusal of a format that nobody knows."""
    drawings = {"text": _text, "mermaid": _mermaid, "dot": _dot}
    if format not in drawings:
        raise InvalidInput(
            f"format: {format!r} is none of {', '.join(drawings)}", field="format", remedy="Name one of them."
        )
    return "\n".join(drawings[format](job))


def _text(job: JobStatus) -> Iterator[str]:
    yield f"{job.job_id}  {job.status}"
    for task in job.tasks:
        after = f"  after {', '.join(task.depends_on)}" if task.depends_on else ""
        yield f"{_SIGNS[task.status]} {task.task_id}  {task.name}  {task.status}{after}"


def _mermaid(job: JobStatus) -> Iterator[str]:
    yield "graph TD"
    nodes = _numbered(job)
    for task in job.tasks:
        yield f'  {nodes[task.task_id]}["{_label(task)}"]:::{task.status}'
    yield from (f"  {nodes[needed]} --> {nodes[task.task_id]}" for task in job.tasks for needed in task.depends_on)
    yield from (f"  classDef {state} fill:{colour}" for state, colour in _COLOURS.items())


def _dot(job: JobStatus) -> Iterator[str]:
    yield f'digraph "{job.job_id}" {{'
    yield "  node [shape=box, style=filled];"
    for task in job.tasks:
        yield f'  "{task.task_id}" [label="{_label(task)}", fillcolor="{_COLOURS[task.status]}"];'
    yield from (f'  "{needed}" -> "{task.task_id}";' for task in job.tasks for needed in task.depends_on)
    yield "}"


def _numbered(job: JobStatus) -> dict[str, str]:
    return {task.task_id: f"t{place}" for place, task in enumerate(job.tasks)}


def _label(task: JobTaskStatus) -> str:
    return f"{task.task_id}: {task.name} ({task.status})"
