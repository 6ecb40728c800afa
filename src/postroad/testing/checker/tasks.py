"""Tasks, their children and jobs, as their events tell. Invariants I22 to I25."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from postroad.testing.checker.balance import Balance
from postroad.testing.checker.history import Child, Job, Name, Task
from postroad.testing.checker.leases import Faults
from postroad.testing.checker.report import Blame

_TERMINAL: Final = frozenset({"completed", "failed", "timeout", "cancelled"})
STARTS: Final = "starts"


@dataclass(slots=True)
class _Run:
    holders: list[Name | None] = field(default_factory=list)
    ended: str | None = None
    faults: int = 0
    held_until: float = 0.0


class Tasks:
    """All tasks that are not at their end, and in `starts` their starts on the left and their children on the right.

    A task is forgotten when its run ends, and `ended` is told about it. In the first reading `blame` therefore only
    takes note of whatever looks wrong; in the second reading, without `ended`, these few are kept to the end.
    """

    def __init__(
        self,
        lease_seconds: float,
        faults: Faults,
        starts: Balance,
        blame: Blame,
        ended: Callable[[Name], None] | None = None,
    ) -> None:
        self._lease_seconds = lease_seconds
        self._faults, self._starts, self._blame, self._ended = faults, starts, blame, ended
        self.open: dict[Name, dict[Name, _Run]] = {}
        self.seen = False

    def task(self, line: Task) -> None:
        self.seen = True
        runs = self.open.setdefault(line.id, {})
        run = runs.get(line.run)
        if run is None:
            run = runs[line.run] = _Run()
            if self._ended is not None and line.state != "started":
                self._blame("I22", line.id, None, "an event of a task that may have ended")
        if run.ended == line.state:
            self._blame("I23", line.id, None, f"run {line.run} is {line.state} a second time, by {line.by}")
        elif run.ended is not None:
            self._blame("I22", line.id, None, f"run {line.run} was {run.ended}, and is {line.state} afterwards")
        elif line.state == "started":
            self._starts.left(STARTS, (line.id, line.run))
            # On a machine that is too busy to renew it, a lease ends although nothing was broken.
            if run.holders and run.faults == self._faults.total and line.t < run.held_until:
                self._blame("I25", line.id, None, f"run {line.run} started twice, by {run.holders[-1]} and {line.by}")
            run.holders.append(line.by)
            run.faults = self._faults.total
            run.held_until = line.t + self._lease_seconds
        elif line.state == "heartbeat":
            run.held_until = line.t + self._lease_seconds
        elif line.state in _TERMINAL:
            self._end(runs, run, line)

    def _end(self, runs: dict[Name, _Run], run: _Run, line: Task) -> None:
        run.ended = line.state
        newest = next(reversed(runs))
        holder = run.holders[-1] if run.holders else line.by
        # A sweeper may say that a task failed or timed out; a former holder may not.
        stale = line.by != holder and (line.state == "completed" or line.by in run.holders)
        if line.by is not None and (stale or newest != line.run):
            what = f"{line.state} in run {line.run} by {line.by}"
            self._blame("I23", line.id, None, f"{what}, but {holder} held run {newest}")
        if self._ended is not None and newest == line.run and run.holders:
            self._ended(line.id)
            del self.open[line.id]


class Jobs:
    """Jobs and the children of tasks: what one reading shows, since little has to be kept."""

    def __init__(self, starts: Balance, blame: Blame) -> None:
        self._starts, self._blame = starts, blame
        self._ended: dict[Name, bool] = {}
        self._needs: dict[Name, set[str]] = {}
        self._needed_by: dict[Name, list[str]] = defaultdict(list)

    def child(self, line: Child) -> None:
        if line.event == "spawned":
            self._starts.right(STARTS, (line.id, line.run))
        elif line.event == "orphan":
            self._blame("I24", line.id, None, f"its child {line.pid} lives on after its worker")

    def job(self, line: Job) -> None:
        """A job has an event; its first one says what its tasks need."""
        if line.id not in self._ended:
            self._ended[line.id] = False
            for task, needed in line.needs.items():
                self._needs[task] = set(needed)
                for each in needed:
                    self._needed_by[each].append(task)
        ends = line.state in _TERMINAL
        if ends and self._ended.get(line.id):
            self._blame("I25", line.id, None, f"the job is {line.state} after its end")
        if ends or line.state == "resumed":
            self._ended[line.id] = ends

    def task(self, line: Task) -> None:
        """A task started or ended, after or before those that it needs."""
        if line.state == "started" and (missing := self._needs.pop(line.id, None)):
            self._blame("I25", line.id, None, f"started before these completed: {', '.join(sorted(missing))}")
        elif line.state == "completed":
            for task in self._needed_by.pop(line.id, ()):
                self._needs.get(task, set()).discard(str(line.id))
