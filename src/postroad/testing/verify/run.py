"""One run: each scenario is prepared, broken, drained, read back and checked, and one report is written."""

from __future__ import annotations

import platform
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from postroad import __version__
from postroad.errors import PostroadError
from postroad.testing.checker import Report, check, write_report
from postroad.testing.checker.report import MOST_FINDINGS
from postroad.testing.mutants import find_mutant
from postroad.testing.powerloss.trial import verify_power_loss
from postroad.testing.verify.audits import audit_file
from postroad.testing.verify.nemeses import RunFailed
from postroad.testing.verify.plan import AT_ONCE, Plan
from postroad.testing.verify.scenario import Scenario, StoreName, find_scenario
from postroad.testing.verify.stores import Opening, opened, visibility
from postroad.testing.verify.supervisor import Supervisor
from postroad.testing.verify.workload import prepare_ledger, read_ledger

Progress = Callable[[str], None]
_IMAGES: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `verify run` was asked for."""

    plans: tuple[Plan, ...]
    store: StoreName
    size: str
    command: str
    report: Path
    work: Path
    url: str | None = None
    dsn: str | None = None
    mutant: str | None = None
    load: tuple[str, ...] = ()

    def directory(self, plan: Plan) -> Path:
        """Return where the history of one scenario belongs."""
        return self.report if len(self.plans) == 1 else self.report / plan.scenario


def run(options: Options, progress: Progress) -> Report:
    """Run all scenarios, check their histories, and write the report; Ctrl-C ends the run and is part of the report."""
    if options.mutant is not None and find_mutant(options.mutant).by_power_loss:
        return _cut_power(options, progress)
    stop = threading.Event()
    told: dict[str, str] = {}

    def run_one(plan: Plan) -> Path:
        def tell(text: str) -> None:
            told[plan.scenario] = text
            progress("; ".join(list(told.values())))

        try:
            return run_scenario(options, plan, tell, stop)
        finally:
            told.pop(plan.scenario, None)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [pool.submit(run_one, plan) for plan in options.plans]
        try:
            wait(runs, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            progress("interrupted")
        finally:
            stop.set()
            for each in runs:
                each.cancel()
    return _report(options, [run for run in runs if not run.cancelled()])


def _cut_power(options: Options, progress: Progress) -> Report:
    progress(f"{_IMAGES} power cuts")
    plan = options.plans[0]
    found = verify_power_loss(_IMAGES, seed=plan.seed, synchronous="OFF")
    report = Report(seed=plan.seed, scenario=plan.scenario, store=options.store, size=options.size)
    report.versions, report.command = versions(), options.command
    report.counts.messages = found.commits
    report.verdict = "violated" if found.lost or found.corrupt else "ok"
    if found.lost:
        report.blame("I1", None, None, f"{found.lost} of {found.images} power cuts lost acknowledged messages")
    if found.corrupt:
        report.blame("I27", None, None, f"{found.corrupt} of {found.images} power cuts left a file that cannot be used")
    write_report(report, options.report)
    return report


def _report(options: Options, runs: Sequence[Future[Path]]) -> Report:
    directories = [run.result() for run in runs]
    reports = [check(directory) for directory in directories]
    report = reports[0]
    if len(options.plans) > 1:
        for each, directory in zip(reports, directories, strict=True):
            write_report(each, directory)
        report = merge(reports, missing=len(options.plans) - len(reports), command=options.command)
    write_report(report, options.report)
    return report


def merge(reports: Sequence[Report], *, missing: int = 0, command: str = "") -> Report:
    """Return one report of several scenarios: all of their numbers, and the worst of their verdicts."""
    first = reports[0]
    merged = Report(seed=first.seed, scenario="all", store=first.store, size=first.size, started_at=first.started_at)
    for each in reports:
        for name in each.counts.__struct_fields__:
            setattr(merged.counts, name, getattr(merged.counts, name) + getattr(each.counts, name))
        for name, number in each.violations.items():
            merged.violations[name] += number
        merged.reasons += [f"{each.scenario}: {reason}" for reason in each.reasons]
        merged.seconds += each.seconds
        merged.recovery_seconds.max = max(merged.recovery_seconds.max, each.recovery_seconds.max)
        merged.recovery_seconds.p99 = max(merged.recovery_seconds.p99, each.recovery_seconds.p99)
    if missing:
        merged.reasons.append(f"{missing} scenarios did not run")
    merged.findings = [finding for each in reports for finding in each.findings][:MOST_FINDINGS]
    verdicts = {each.verdict for each in reports} | ({"inconclusive"} if missing else set())
    merged.verdict = next(verdict for verdict in ("violated", "inconclusive", "ok") if verdict in verdicts)
    merged.versions, merged.command = first.versions, command or first.command
    return merged


def run_scenario(options: Options, plan: Plan, progress: Progress, stop: threading.Event) -> Path:
    """Run one scenario to its end, and return where its history and `run.json` are, also if it is interrupted."""
    scenario = find_scenario(plan.scenario)
    report, work = options.directory(plan), options.work / plan.scenario
    for directory in (report, work, report / "history"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = _facts(options, plan, scenario)
    # Written now as well, so that a history whose supervisor was killed can be checked.
    _write_run(report, facts)
    began = time.monotonic()
    try:
        with opened(options, plan, scenario.facts, report, work) as opening:
            facts["drained"] = _play(scenario, plan, opening, options, progress, stop)
    except RunFailed as failure:
        facts["problems"] = [str(failure)]
    facts["seconds"] = round(time.monotonic() - began, 3)
    _write_run(report, facts)
    return report


def _play(
    scenario: Scenario, plan: Plan, opening: Opening, options: Options, progress: Progress, stop: threading.Event
) -> bool:
    """Let the processes work, break them, and read back what they left; return whether everything drained.

    Raises:
        RunFailed: A process did not do its part, or the store was away when the supervisor needed it.
    """
    place, history = opening.place, opening.history
    try:
        prepare_ledger(place)
        with place.backend() as backend:
            scenario.prepare(place, backend)
        supervisor = Supervisor(scenario, plan, opening, options, stop)
        with supervisor.running():
            supervisor.break_things(progress)
            drained = supervisor.drain(progress)
            supervisor.end()
        read_ledger(place, history)
        with place.backend() as backend:
            scenario.read_back(place, backend, history)
        audit_file(place, history)
    except PostroadError as error:
        # A server that crashed is counted, and is the better explanation.
        opening.nemeses.look()
        raise RunFailed(f"{type(error).__name__}: {error}") from error
    return drained


def _write_run(report: Path, facts: dict[str, Any]) -> None:
    path = report / "run.json"
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(facts)))


def _facts(options: Options, plan: Plan, scenario: Scenario) -> dict[str, Any]:
    return {
        "format": 1,
        "seed": plan.seed,
        "faults": plan.kills > 0,
        **msgspec.to_builtins(scenario.facts),
        "visibility": visibility(scenario.facts, plan),
        "drained": False,
        "asked_kills": plan.kills,
        # Standard queues of AWS do not deduplicate, and SQS has no call that moves a message.
        "copies": options.store == "aws" and not scenario.facts.ordered,
        "two_step_reject": options.store == "aws",
        "scenario": plan.scenario,
        "store": options.store,
        "size": options.size,
        "command": options.command,
        "versions": versions(),
        "started_at": datetime.now(UTC).isoformat(),
    }


def versions() -> dict[str, str]:
    return {"postroad": __version__, "python": platform.python_version(), "sqlite3": sqlite3.sqlite_version}
