"""`postroad verify`: break a running system on purpose and count what was lost, doubled or reordered."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import typer

from postroad import signals
from postroad.cli import packages
from postroad.cli.call import Call, verb
from postroad.cli.display import table
from postroad.cli.parameters import argument, duration, flag, option
from postroad.errors import InvalidInput
from postroad.failpoints import NAMES
from postroad.telemetry import counted, legible

_MOST_SHOWN = 10
_MUTANT_SECONDS = 10.0
_SEEDS = 1_000_000
_LONGEST_SECONDS = 604_800
ScenarioName = Literal["all", "queue", "topic", "bus", "outbox", "tasks", "jobs", "agents", "stream"]


def flow_time(text: str) -> float:
    """Return the seconds that messages flow."""
    seconds = duration(text)
    if not 1 <= seconds <= _LONGEST_SECONDS:
        raise typer.BadParameter(f'"{text}" is not a time from 1s to 7d')
    return seconds


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What fixes the plan of a run."""

    scenario: Annotated[
        ScenarioName,
        option("NAME", "The system to break: queue, topic, bus, outbox, tasks, jobs, agents, stream, or all of them."),
    ] = "all"
    store: Annotated[
        Literal["sqlite", "postgres", "aws"],
        option("STORE", "What it runs on: sqlite, postgres (queue, topic, outbox) or aws (all but stream)."),
    ] = "sqlite"
    size: Annotated[Literal["quick", "gate", "soak"], option("SIZE", "How much it does.")] = "quick"
    messages: Annotated[int | None, option("N", "Messages in all.", min=1)] = None
    kills: Annotated[int | None, option("N", "Processes to kill; 0 for a run without faults.", min=0)] = None
    seconds: Annotated[
        float | None, option("DURATION", "How long messages flow and faults happen.", parser=flow_time)
    ] = None
    seed: Annotated[int | None, option("N", "Repeats the plan of an earlier run.", min=0)] = None

    def plans(self, seed: int) -> list[Any]:
        able = packages.testing_verify_scenario.scenarios_on(self.store)
        if self.scenario not in ("all", *able):
            raise InvalidInput(
                f"--scenario: {self.scenario} does not run on {self.store}",
                field="scenario",
                remedy=f"On {self.store} there are {', '.join(able)}.",
            )
        given = {"messages": self.messages, "kills": self.kills, "seconds": self.seconds}
        size = msgspec.structs.replace(
            packages.testing_verify_plan.SIZES[self.size], **{k: v for k, v in given.items() if v is not None}
        )
        chosen = able if self.scenario == "all" else (self.scenario,)
        return packages.testing_verify_plan.plans(seed, chosen, size, store=self.store)


@verb("verify run", "--scenario queue --kills 12")
def run(
    call: Call,
    options: PlanOptions,
    dsn: Annotated[str | None, option("DSN", "A PostgreSQL database for --store postgres.")] = None,
    mutant: Annotated[str | None, option("NAME", "Give every process this deliberate bug.")] = None,
    load: Annotated[list[str] | None, option("MODULE", "Run the handlers of this module.")] = None,
    report: Annotated[Path | None, option("DIR", "Where the report and the history go.")] = None,
    keep: Annotated[bool, flag("--keep", "Keep the files of the run, not only the report.")] = False,
) -> None:
    """Run processes, kill and pause them, and check that nothing was lost, doubled or reordered; exit 1 if it was."""
    if mutant is not None:
        options = _for_mutant(options, mutant)
    if load:
        # The processes of the run search the working directory too; what they could not use is refused here.
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        packages.testing_verify_workload.use_handlers(load)
    seed = secrets.randbelow(_SEEDS) if options.seed is None else options.seed
    with _directories(report, keep=keep) as (reports, work):
        asked = packages.testing_verify_run.Options(
            plans=tuple(options.plans(seed)),
            store=options.store,
            size=options.size,
            command=_command(options, seed, mutant, load or []),
            report=reports,
            work=work,
            url=call.url,
            dsn=dsn,
            mutant=mutant,
            load=tuple(load or ()),
        )
        with signals.interrupted_by_sigterm(), call.working("starting") as progress:
            found = packages.testing_verify_run.run(asked, progress)
    show_report(call, found, reports)


def _for_mutant(options: PlanOptions, name: str) -> PlanOptions:
    """Return the options with what shows the mutant, where nothing else was asked for."""
    mutant = packages.testing_mutants.find_mutant(name)
    return replace(
        options,
        scenario=cast("ScenarioName", mutant.scenario) if options.scenario == "all" else options.scenario,
        messages=options.messages or mutant.messages,
        kills=mutant.kills if options.kills is None else options.kills,
        seconds=options.seconds or _MUTANT_SECONDS,
    )


def _command(options: PlanOptions, seed: int, mutant: str | None, load: list[str]) -> str:
    given = {field.name: getattr(options, field.name) for field in fields(options)} | {"seed": seed, "mutant": mutant}
    words = [f"--{name} {value}" for name, value in given.items() if value is not None]
    return " ".join(["postroad verify run", *words, *(f"--load {module}" for module in load)])


@contextmanager
def _directories(report: Path | None, *, keep: bool) -> Iterator[tuple[Path, Path]]:
    """Yield the directory of the report and one for the files of the run, which is removed unless it is kept."""
    if report is not None:
        clear_report(report)
    base = Path(tempfile.mkdtemp(prefix="postroad-verify-"))
    try:
        yield report or base / "report", base / "work"
    except BaseException:
        shutil.rmtree(base, ignore_errors=True)
        raise
    if not keep:
        shutil.rmtree(base / "work" if report is None else base, ignore_errors=True)


def clear_report(directory: Path) -> None:
    """Remove an earlier report; refuse a directory that holds anything else."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        holds_other_files = any(directory.iterdir()) and not (directory / "report.json").is_file()
    except OSError as error:
        raise InvalidInput(
            f"--report: {directory} cannot be used: {error.strerror}",
            field="report",
            remedy="Name a directory that you may write to.",
        ) from error
    if holds_other_files:
        raise InvalidInput(
            f"--report: {directory} is not empty, and holds no earlier report",
            field="report",
            remedy="Name a new directory, or one with a report, which is replaced.",
        )
    for name in ("history", *packages.testing_verify_scenario.SCENARIOS):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in ("report.json", "report.md", "run.json"):
        (directory / name).unlink(missing_ok=True)


@verb("verify check", "proof/report")
def check(
    call: Call,
    directory: Annotated[Path, argument("DIR", "A report: run.json and history/*.jsonl.")],
) -> None:
    """Check the history of a run against all invariants; exit 1 unless the verdict is ok."""
    with call.working("reading the history"):
        parts = sorted(path.parent for path in directory.glob("*/run.json"))
        if parts and not (directory / "run.json").exists():
            report = packages.testing_verify_run.merge([packages.testing_checker.check(part) for part in parts])
        else:
            report = packages.testing_checker.check(directory)
    show_report(call, report, directory)


def show_report(call: Call, report: Any, directory: Path) -> None:
    """Print a report: a table, the first findings, and one line with the verdict and how to repeat it."""
    rows = [[name, f"{number:,}"] for name, number in report.rows()]
    said = []
    for each in report.findings[:_MOST_SHOWN]:
        place = " in ".join(str(part) for part in (each.id, each.subscription) if part is not None)
        said.append(f"{each.invariant} {each.name} {f'{place}: ' if place else ''}{each.detail}")
    verdict = f"{report.verdict}, seed {report.seed}, report {directory}, repeat with: {report.command}"
    shown = [legible(text) for text in (*report.reasons, *said, verdict)]
    call.show(report, table(["WHAT", ">NUMBER"], rows), *shown, ok=report.verdict == "ok")


@verb("verify plan", "--seed 7 --json")
def plan(call: Call, options: PlanOptions) -> None:
    """Show which faults a run with this seed makes, without running it; the same seed gives the same bytes."""
    seed = options.seed or 0
    made = options.plans(seed)
    rows = (
        [each.scenario, f"{action.at:.3f}", action.do, action.who, f"{action.seconds:g}"]
        for each in made
        for action in each.actions
    )
    document = {"seed": seed, "size": options.size, "store": options.store, "items": msgspec.to_builtins(made)}
    call.show(document, table(["SCENARIO", ">AT", "FAULT", "WHO", ">SECONDS"], rows, "no faults"))


@verb("verify failpoints", "--json")
def failpoints(call: Call) -> None:
    """List the places at which POSTROAD_FAILPOINTS can kill, stop or fail a process."""
    names = sorted(NAMES)
    call.show({"items": [{"name": name} for name in names]}, *names)


@verb("verify mutants", "--json")
def mutants(call: Call) -> None:
    """List the deliberate bugs that `verify run --mutant NAME` must find."""
    items = [
        {"name": each.name, "bug": each.bug, "invariant": each.invariant} for each in packages.testing_mutants.MUTANTS
    ]
    rows = ([each["name"], each["invariant"], each["bug"]] for each in items)
    call.show({"items": items}, table(["MUTANT", "INVARIANT", "BUG"], rows))


@verb("verify powerloss", "--images 500 --seed 7")
def power_loss(
    call: Call,
    images: Annotated[int, option("N", "How many power cuts to try.", min=1)] = 2_000,
    seed: Annotated[int | None, option("N", "Repeat the choices of another run.")] = None,
    synchronous: Annotated[
        Literal["FULL", "NORMAL", "OFF"],
        option("MODE", "NORMAL and OFF leave out syncs, to show that losses are found."),
    ] = "FULL",
) -> None:
    """Record what a writer does to its files, cut the power at random points, and look for what is missing."""
    chosen = secrets.randbelow(_SEEDS) if seed is None else seed
    with call.working("recording a writer", lambda done: f"{done:,} of {counted(images, 'image')} opened") as progress:
        found = packages.testing_powerloss_trial.verify_power_loss(
            images, seed=chosen, synchronous=synchronous, progress=progress
        )
    call.show(
        found,
        f"{counted(found.images, 'power cut')} in {counted(found.commits, 'acknowledged commit')}, {found.synchronous}",
        f"lost {found.lost:,} (at most {found.max_lost:,} at once), corrupt {found.corrupt:,}",
        f"{found.verdict}: postroad verify powerloss --images {images} --seed {chosen} --synchronous {synchronous}",
        ok=found.verdict == "ok",
    )
