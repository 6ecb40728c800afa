"""The boards of the jobs that this process moves, read from the journal when they are missing or too small."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from postroad.jobs.board import Board
from postroad.jobs.books import Job
from postroad.jobs.graph import Graph, read_graph
from postroad.journal import Journal
from postroad.journal.states import tasks_of_job

_KEPT: Final = 64


class Boards:
    """The boards of one tenant's jobs."""

    def __init__(self, journal: Journal, tenant: str) -> None:
        self._journal = journal
        self._tenant = tenant
        self._kept: OrderedDict[str, Board] = OrderedDict()

    def get(self, job_id: str, job: Job) -> Board | None:
        """The board of the job; None while the journal does not show all of its tasks."""
        board = self._kept.get(job_id)
        if board is None or len(board.graph) != job.total:
            board = self.keep(job_id, self.graph(job_id))
        self._kept.move_to_end(job_id)
        return board if len(board.graph) == job.total else None

    def keep(self, job_id: str, graph: Graph) -> Board:
        """Remember a graph."""
        board = self._kept[job_id] = Board(graph)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return board

    def graph(self, job_id: str) -> Graph:
        """The graph that the journal tells: what the job was made with and all that was added, wherever it stands."""
        return read_graph(tasks_of_job(self._journal, self._tenant, job_id))
