"""`postroad doctor|health|compact`: problems of a deployment, the health of tasks, and the size of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from postroad.cli.call import Call, verb
from postroad.cli.display import table
from postroad.cli.parameters import argument, duration, duration_option, flag, option, pairs, short_duration
from postroad.telemetry import counted, legible

if TYPE_CHECKING:
    from rich.text import Text

    from postroad.engine import Compaction
    from postroad.settings import Settings
    from postroad.topology import Finding


@verb("doctor", "--p99 orders=12 --strict")
def doctor(
    call: Call,
    p99: Annotated[list[str] | None, option("QUEUE=SECONDS", "The p99 of a queue's handler; repeatable.")] = None,
    dsn: Annotated[
        str | None, option("DSN", "The application's database: postgresql://host/name or sqlite:///path.")
    ] = None,
    outbox_horizon: Annotated[float | None, duration_option("How long the outbox retries (4.6h).")] = None,
    inbox_retention: Annotated[float | None, duration_option("How long the inbox remembers (30d).")] = None,
    strict: Annotated[bool, flag("--strict", "Exit 1 on a warning too.")] = False,
) -> None:
    """Look for problems; exit 1 on an error."""
    from postroad.operations import doctor as examine

    with call.backend() as backend:
        found = examine(
            backend,
            handler_p99={name: duration(each) for name, each in pairs(p99 or [], "p99", "QUEUE=SECONDS").items()},
            dsn=dsn,
            outbox_horizon=outbox_horizon,
            inbox_retention=inbox_retention,
        )
    findings = (*found, *_weak_tokens(call.settings()))
    ok = not any(strict or finding.severity == "error" for finding in findings)
    document = {"ok": ok, "findings": findings}
    shown = table(["SEVERITY", "CODE", "FINDING AND REMEDY"], map(_finding, findings), "nothing found")
    call.show(document, shown, ok=ok)


def _finding(finding: Finding) -> tuple[Text, str, Text]:
    from rich.text import Text

    severity = Text(finding.severity, "red" if finding.severity == "error" else "yellow")
    return severity, finding.code, Text.assemble(legible(finding.message), "\n", (legible(finding.remedy), "dim"))


def _weak_tokens(settings: Settings) -> Iterator[Finding]:
    """Yield a finding if the admin token, which the operator set or wrote beside the data, can be guessed."""
    from postroad.http import read_secret
    from postroad.settings import beside
    from postroad.topology import Finding
    from postroad.up.command import STRONG_TOKEN, token_of

    made = beside(settings.url, "token")
    token = token_of(settings) or (read_secret(made) if made.exists() else None)
    if token is not None and len(token) < STRONG_TOKEN:
        message = f"token: the admin token has {counted(len(token), 'character')} and can be guessed"
        remedy = f"Set one of {STRONG_TOKEN} characters or more, or leave it out to have one made."
        yield Finding("token-weak", "warning", "token", message, remedy)


_BAD = ("critical", "overtime")
_HEADINGS = ("TASK", "HEALTH", ">RUNNING FOR", ">SILENT FOR", "WORKER", "STEP")


@verb("health", "req-123")
def health(call: Call, request_id: Annotated[str | None, argument("REQUEST_ID", "Only this task.")] = None) -> None:
    """Check running tasks, record the result and alert; exit 1 if one is critical or overtime."""
    from postroad.settings import slack_webhook_url
    from postroad.tasks.health import HealthCheck, SlackAlerts

    alerts = SlackAlerts() if request_id is None and slack_webhook_url() is not None else None
    with call.backend() as backend:
        check = HealthCheck(backend, **call.settings().identity, alerts=alerts)
        if request_id is not None:
            document = check.check_single(request_id)
            tasks = [document]
        else:
            report = check.check()
            document, tasks = {"summary": report.summary, "tasks": report.tasks}, report.tasks
    bad = any(task.get("health") in _BAD or task.get("status") == "not_found" for task in tasks)
    call.show(document, table(_HEADINGS, map(_cells, tasks), "no task runs"), ok=not bad)


def _cells(task: dict[str, Any]) -> tuple[str, ...]:
    """Return the id of a task, its health, how long it has run and been silent, its worker and its last step."""
    activity = task.get("lastActivity") or {}
    return (
        task["requestId"],
        task.get("health") or task.get("currentState") or task.get("status", "-"),
        *(short_duration(task[name] / 1_000) if name in task else "-" for name in ("elapsed", "timeSinceLastEvent")),
        task.get("workerId") or "-",
        activity.get("stepName") or activity.get("type") or "-",
    )


@verb("compact", "--url sqlite:///work.db")
def compact(
    call: Call,
    rebuild: Annotated[bool, flag("--rebuild", "Rewrite a large file of an earlier version; writers wait.")] = False,
) -> None:
    """Return unused space of the embedded file to the disk, while others use the file."""

    def describe(so_far: Compaction) -> str:
        return f"step {so_far.steps:,}, {_megabytes(so_far.after_bytes)} left"

    with call.backend() as backend, call.working("compacting", describe) as progress:
        done = backend.compact(rebuild=rebuild, progress=progress)
    names = ("given_back_bytes", "before_bytes", "after_bytes", "steps", "rebuilt")
    document = {name: getattr(done, name) for name in names}
    call.show(document, f"gave back {_megabytes(done.given_back_bytes)}; {_megabytes(done.after_bytes)} are in use")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
