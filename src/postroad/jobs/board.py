"""What one process remembers of a job, so that a finished task costs what hangs on it and not what the job holds.

Nothing here is needed: all of it can be found again in leases and journal. A task that is known to be completed stays
completed, so the positions only move forward.
"""

from __future__ import annotations

from collections.abc import Callable

from postroad.jobs.graph import Graph

IsCompleted = Callable[[str], bool]


class Board:
    """The graph of a job and how much of it is known to be completed."""

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
