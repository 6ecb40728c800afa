"""Checking a history: a first reading finds what looks wrong, and a second one looks closely at just that."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from typing import Any, Final

from postroad import __version__
from postroad.testing.checker import history as lines
from postroad.testing.checker.balance import Balance, Repeats
from postroad.testing.checker.history import History, Name, Run, read_run
from postroad.testing.checker.leases import Faults
from postroad.testing.checker.messages import Messages
from postroad.testing.checker.order import Order
from postroad.testing.checker.report import INVARIANTS, Blame, Counts, Recovery, Report
from postroad.testing.checker.tasks import STARTS, Jobs, Tasks

_FAULTS: Final[dict[type, str]] = {
    lines.Kill: "kills",
    lines.Pause: "pauses",
    lines.Restart: "restarts",
    lines.Proxy: "proxy_faults",
}
_BY_NAME: Final = {name: number for number, name in INVARIANTS.items()}
_MOST_REASONS: Final = 20
_Actions = dict[type, Callable[[Any], None]]


def check(directory: Path) -> Report:
    """Check the history of a run against all invariants.

    Args:
        directory: The directory of the report: it holds `run.json` and `history/*.jsonl`.

    Raises:
        InvalidInput: If it is no such directory, or if a newer version wrote it.
    """
    run = read_run(directory)
    return _Check(run, History(directory), f"postroad verify check {directory}").report()


class _Check:
    """One check; memory grows with the messages and tasks that are open at the same time, not with the history."""

    def __init__(self, run: Run, history: History, command: str) -> None:
        self._run, self._history = run, history
        self._effects, self._starts, self._repeats = Balance(), Balance(), Repeats()
        self._messages: set[Name] = set()
        self._tasks: set[Name] = set()
        self._reasons: list[str] = []
        self._report = Report(
            seed=run.seed,
            scenario=run.scenario,
            store=run.store,
            size=run.size,
            started_at=run.started_at,
            versions=run.versions or {"postroad": __version__, "python": platform.python_version()},
            command=run.command or command,
        )

    def report(self) -> Report:
        """Read the history, twice if anything looks wrong, and return what was found."""
        self._read()
        uneven = [balance.look_closer() for balance in (self._effects, self._starts)]
        if self._messages or self._tasks or self._repeated or any(uneven):
            self._read_again()
        report, broken = self._report, self._history.broken
        report.reasons = list(self._doubts())[:_MOST_REASONS]
        if broken or not (report.findings or report.reasons):
            report.verdict = "inconclusive" if broken else "ok"
        else:
            report.verdict = "violated" if report.findings else "inconclusive"
        return report

    def _read(self) -> None:
        """Read everything; forget what is settled, and take note of what looks wrong."""
        report, faults = self._report, Faults()
        order = Order(self._run, report.blame)
        suspected_messages, suspected_tasks = _suspect(self._messages), _suspect(self._tasks)
        messages = Messages(self._run, faults, report.counts, self._effects, suspected_messages, order)
        tasks = Tasks(self._run.visibility, faults, self._starts, suspected_tasks, self._repeats.add)
        jobs = Jobs(self._starts, report.blame)

        def task(line: lines.Task) -> None:
            tasks.task(line)
            jobs.task(line)

        actions: _Actions = _per_message(messages) | {
            lines.Task: task,
            lines.Gap: order.gap,
            lines.Effect: messages.effect,
            lines.Child: jobs.child,
            lines.Job: jobs.job,
            lines.Check: self._checked,
            **dict.fromkeys(_FAULTS, self._count_fault),
            lines.Line: self._count_unknown,
        }
        began = ended = None
        self._faults = faults
        for line in self._history:
            actions[type(line)](line)
            ended = line.t
            if began is None:
                began = ended
        order.finish(lambda id, sub: id in messages.open and messages.open[id].copies[sub].dead > 0)
        self._tasks_seen = tasks.seen
        self._messages.update(messages.open)
        self._tasks.update(tasks.open)
        self._repeated = self._repeats.found()
        if seconds := sorted(messages.recoveries):
            report.recovery_seconds = Recovery(max=seconds[-1], p99=seconds[ceil(len(seconds) * 0.99) - 1])
        spent = 0.0 if began is None or ended is None else ended - began
        report.seconds = spent if self._run.seconds is None else self._run.seconds

    def _count_fault(self, line: lines.Fault) -> None:
        name = _FAULTS[type(line)]
        setattr(self._report.counts, name, getattr(self._report.counts, name) + 1)
        self._faults.total += 1

    def _count_unknown(self, line: lines.Line) -> None:
        self._report.counts.unknown_ops += 1

    def _checked(self, line: lines.Check) -> None:
        number = _BY_NAME.get(line.invariant, line.invariant)
        if number not in INVARIANTS:
            self._reasons.append(f'a check names "{line.invariant}", which is no invariant')
        elif not line.ok:
            self._report.blame(number, None, None, str(line.detail))

    def _read_again(self) -> None:
        """Read what looked wrong once more, and keep all that is known about it to the end."""
        blame, faults = self._report.blame, Faults()
        messages = Messages(self._run, faults, Counts(), Balance(), blame)
        tasks = Tasks(self._run.visibility, faults, Balance(), blame)

        def handled(line: lines.Handled) -> None:
            if line.id in self._messages:
                messages.handled(line)
            if line.outcome == "ok":
                self._effects.left(line.sub, line.id)

        def task(line: lines.Task) -> None:
            if line.id in self._tasks or hash(line.id) in self._repeated:
                tasks.task(line)
            if line.state == "started":
                self._starts.left(STARTS, (line.id, line.run))

        def count_fault(_: lines.Fault) -> None:
            faults.total += 1

        actions: _Actions = {kind: _only(self._messages, act) for kind, act in _per_message(messages).items()}
        actions |= {lines.Handled: handled, lines.Task: task, **dict.fromkeys(_FAULTS, count_fault)}
        actions[lines.Effect] = lambda line: self._effects.right(line.sub, line.id)
        actions[lines.Child] = Jobs(self._starts, _ignore).child
        for line in self._history:
            actions.get(type(line), _ignore)(line)
        messages.finish()
        self._compare(faults.total)

    def _compare(self, faults: int) -> None:
        for sub, id, handled, effects in self._effects.pairs():
            if effects > 1 or (handled and not effects and self._run.drained):
                self._report.blame("I5", id, sub, f"{effects} effects of a message that was handled {handled} times")
        for _, (id, run), starts, children in self._starts.pairs():
            if abs(starts - children) > faults:
                self._report.blame("I24", id, None, f"run {run} started {starts} times, with {children} children")

    def _doubts(self) -> Iterator[str]:
        counts = self._report.counts
        yield from self._history.broken
        yield from self._run.problems
        yield from self._reasons
        if not self._run.drained:
            yield "the run did not drain"
        if counts.kills < self._run.asked_kills:
            yield f"{self._run.asked_kills} kills were asked for, {counts.kills} are recorded"
        if not counts.deliveries and not self._tasks_seen:
            yield "nothing was delivered"


def _suspect(suspects: set[Name]) -> Blame:
    """Return what takes note of whoever is blamed, for the second reading."""
    return lambda invariant, id, subscription, detail: suspects.add(id)


def _only(suspects: set[Name], act: Callable[[Any], None]) -> Callable[[Any], None]:
    def perhaps(line: Any) -> None:
        if line.id in suspects:
            act(line)

    return perhaps


def _ignore(*_: object) -> None:
    """Do nothing with a line or a finding that another reading takes care of."""


def _per_message(messages: Messages) -> _Actions:
    return {
        lines.Publish: messages.publish,
        lines.Receive: messages.receive,
        lines.Handled: messages.handled,
        lines.Ack: messages.settle,
        lines.Extend: messages.settle,
        lines.Release: messages.settle,
        lines.Peek: messages.peek,
        lines.Dead: messages.dead,
        lines.Left: messages.left,
    }
