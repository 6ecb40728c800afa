"""`postroad doctor|health|compact`: problems of a deployment, the health of tasks, and the size of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from postroad.cli.call import Call, verb
from postroad.cli.display import table
from postroad.cli.packages import engine, http, operations, rich_text, tasks_health, topology, up_command
from postroad.cli.parameters import argument, duration, duration_option, flag, option, pairs, short_duration
from postroad.settings import Settings, beside, slack_webhook_url
from postroad.telemetry import counted, legible


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
    with call.backend() as backend:
        found = operations.doctor(
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


def _finding(finding: topology.Finding) -> tuple[rich_text.Text, str, rich_text.Text]:
    severity = rich_text.Text(finding.severity, "red" if finding.severity == "error" else "yellow")
    remedy = (legible(finding.remedy), "dim")
    return severity, finding.code, rich_text.Text.assemble(legible(finding.message), "\n", remedy)


def _weak_tokens(settings: Settings) -> Iterator[topology.Finding]:
    """Yield a finding if the admin token, which the operator set or wrote beside the data, can be guessed."""
    made = beside(settings.url, "token")
    token = up_command.token_of(settings) or (http.read_secret(made) if made.exists() else None)
    if token is not None and len(token) < up_command.STRONG_TOKEN:
        message = f"token: the admin token has {counted(len(token), 'character')} and can be guessed"
        remedy = f"Set one of {up_command.STRONG_TOKEN} characters or more, or leave it out to have one made."
        yield topology.Finding("token-weak", "warning", "token", message, remedy)


_HEADINGS = ("TASK", "HEALTH", ">RUNNING FOR", ">SILENT FOR", "WORKER", "STEP")


@verb("health", "req-123")
def health(call: Call, request_id: Annotated[str | None, argument("REQUEST_ID", "Only this task.")] = None) -> None:
    """Check running tasks, record the result and alert; exit 1 if one is critical or overtime."""
    alerts = tasks_health.SlackAlerts() if request_id is None and slack_webhook_url() is not None else None
    with call.backend() as backend:
        check = tasks_health.HealthCheck(backend, **call.settings().identity, alerts=alerts)
        if request_id is not None:
            document = check.check_single(request_id)
            tasks = [document]
        else:
            report = check.check()
            document, tasks = {"summary": report.summary, "tasks": report.tasks}, report.tasks
    bad = any(task.get("health") in ("critical", "overtime") or task.get("status") == "not_found" for task in tasks)
    call.show(document, table(_HEADINGS, map(_cells, tasks), "no task runs"), ok=not bad)


def _cells(task: dict[str, Any]) -> tuple[str, ...]:
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

    def describe(so_far: engine.Compaction) -> str:
        return f"step {so_far.steps:,}, {_megabytes(so_far.after_bytes)} left"

    with call.backend() as backend, call.working("compacting", describe) as progress:
        done = backend.compact(rebuild=rebuild, progress=progress)
    names = ("given_back_bytes", "before_bytes", "after_bytes", "steps", "rebuilt")
    document = {name: getattr(done, name) for name in names}
    call.show(document, f"gave back {_megabytes(done.given_back_bytes)}; {_megabytes(done.after_bytes)} are in use")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
