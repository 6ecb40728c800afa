"""`postroad doctor|health|compact`: how everything is, and how to keep the file small."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.output import ANSWER_IS_NO
from postroad.cli.parameters import duration, spoken
from postroad.errors import InvalidInput
from postroad.telemetry import legible

if TYPE_CHECKING:
    from rich.table import Table

    from postroad.engine import Compaction
    from postroad.settings import Settings
    from postroad.topology import Finding


def add_to(app: typer.Typer) -> None:
    """Make the verb part of the program."""
    add_verb(app, "doctor", doctor, example="postroad doctor --p99 orders=12 --strict")
    add_verb(app, "health", health, example="postroad health req-123")
    add_verb(app, "compact", compact, example="postroad compact --url sqlite:///work.db")


def doctor(
    call: Call,
    p99: Annotated[
        list[str] | None, typer.Option(metavar="QUEUE=SECONDS", help="The p99 of a queue's handler; repeatable.")
    ] = None,
    dsn: Annotated[
        str | None, typer.Option(metavar="DSN", help="The application's database: postgresql://… or sqlite:///path.")
    ] = None,
    outbox_horizon: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="How long the outbox retries (4.6h).")
    ] = None,
    inbox_retention: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="How long the inbox remembers (30d).")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on a warning too.")] = False,
) -> None:
    """Look for what will go wrong; exit 1 on an error."""
    from postroad.operations import doctor as examine

    with call.backend() as backend:
        found = examine(
            backend,
            handler_p99=_seconds(p99 or []),
            dsn=dsn,
            outbox_horizon=outbox_horizon,
            inbox_retention=inbox_retention,
        )
    findings = (*found, *_weak_tokens(call.settings()))
    ok = not any(strict or finding.severity == "error" for finding in findings)
    document = {"ok": ok, "findings": [asdict(finding) for finding in findings]}
    call.show(document, *(_lines(findings) if findings else ["nothing found"]))
    if not ok:
        raise typer.Exit(ANSWER_IS_NO)


def _seconds(pairs: list[str]) -> dict[str, float]:
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(f'p99: "{pair}" is not QUEUE=SECONDS', field="p99")
        found[name] = duration(text)
    return found


def _weak_tokens(settings: Settings) -> Iterator[Finding]:
    """The admin token, where the operator set one that can be guessed."""
    from postroad.topology import Finding
    from postroad.up.command import STRONG_TOKEN, token_of

    token = token_of(settings)
    if token is not None and len(token) < STRONG_TOKEN:
        message = f"token: the admin token has {len(token)} characters and can be guessed"
        remedy = f"Set one of {STRONG_TOKEN} characters or more, or leave it out to have one made."
        yield Finding("token-weak", "warning", "token", message, remedy)


def _lines(findings: tuple[Finding, ...]) -> Iterator[str]:
    for finding in findings:
        yield legible(f"{finding.severity:<8} {finding.code:<20} {finding.message}")
        yield legible(f"{'':<29} {finding.remedy}")


_BAD = ("critical", "overtime")
_HEADINGS = ("TASK", "HEALTH", ">RUNNING FOR", ">SILENT FOR", "WORKER", "STEP")


def health(
    call: Call,
    request_id: Annotated[str | None, typer.Argument(metavar="REQUEST_ID", help="Only this task.")] = None,
) -> None:
    """Look at running tasks, record it and alert; exit 1 when one is critical or runs overtime."""
    from postroad.settings import slack_webhook_url
    from postroad.tasks.health import HealthCheck, SlackAlerts

    settings = call.settings()
    alerts = SlackAlerts() if request_id is None and slack_webhook_url() is not None else None
    with call.backend() as backend:
        check = HealthCheck(backend, tenant_id=settings.tenant, app=settings.app, alerts=alerts)
        if request_id is not None:
            told = check.check_single(request_id)
            document, tasks = told, [told]
        else:
            report = check.check()
            document, tasks = {"summary": report.summary, "tasks": report.tasks}, report.tasks
    call.show(document, _table(tasks) if tasks else "no task runs")
    if any(task.get("health") in _BAD or task.get("status") == "not_found" for task in tasks):
        raise typer.Exit(ANSWER_IS_NO)


def _table(tasks: list[dict[str, Any]]) -> Table:
    from rich.text import Text

    from postroad.cli.tables import table

    return table(_HEADINGS, ([Text(legible(cell)) for cell in _cells(task)] for task in tasks))


def _cells(task: dict[str, Any]) -> tuple[str, ...]:
    """One task: how it is, how long it runs, how long nothing was heard of it, where it runs and what it last did."""
    activity = task.get("lastActivity") or {}
    return (
        task["requestId"],
        task.get("health") or task.get("currentState") or task.get("status", "-"),
        *(spoken(task[name] / 1_000) if name in task else "-" for name in ("elapsed", "timeSinceLastEvent")),
        task.get("workerId") or "-",
        activity.get("stepName") or activity.get("type") or "-",
    )


def compact(
    call: Call,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Write a large file of an earlier version anew; writers wait.")
    ] = False,
) -> None:
    """Give the disk what the embedded file no longer needs, while others use it."""
    with call.backend() as backend, _progress(call) as progress:
        done = backend.compact(rebuild=rebuild, progress=progress)
    document = {
        "given_back_bytes": done.given_back_bytes,
        "before_bytes": done.before_bytes,
        "after_bytes": done.after_bytes,
        "steps": done.steps,
        "rebuilt": done.rebuilt,
    }
    call.show(document, f"gave back {_megabytes(done.given_back_bytes)}; {_megabytes(done.after_bytes)} are in use")


@contextmanager
def _progress(call: Call) -> Iterator[Callable[[Compaction], None] | None]:
    """Count on one line of the terminal; nothing elsewhere."""
    if call.json or not sys.stderr.isatty():
        yield None
        return
    try:
        yield lambda done: _overwrite(f"step {done.steps:,}, {_megabytes(done.after_bytes)} left")
    finally:
        _overwrite("")


def _overwrite(text: str) -> None:
    sys.stderr.write(f"\r{text:<60}\r")
    sys.stderr.flush()


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
