"""`postroad health`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call
from postroad.cli.durations import spoken
from postroad.cli.errors import ANSWER_IS_NO
from postroad.cli.verbs import add_verb
from postroad.telemetry import legible

if TYPE_CHECKING:
    from rich.table import Table

_BAD = ("critical", "overtime")
_HEADINGS = ("TASK", "HEALTH", ">RUNNING FOR", ">SILENT FOR", "WORKER", "STEP")


def add_to(app: typer.Typer) -> None:
    """Make the verb part of the program."""
    add_verb(app, "health", health, example="postroad health req-123")


def health(
    call: Call,
    request_id: Annotated[str | None, typer.Argument(metavar="REQUEST_ID", help="Only this task.")] = None,
) -> None:
    """Look at running tasks, record it and alert; exit 1 when one is critical or runs overtime."""
    from postroad.settings import slack_webhook_url
    from postroad.tasks.alerts import SlackAlerts
    from postroad.tasks.health import HealthCheck

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
