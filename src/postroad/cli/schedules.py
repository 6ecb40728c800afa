"""`postroad schedule`: list the schedules of tasks, and pause, resume and run them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call, verb
from postroad.cli.display import table

if TYPE_CHECKING:
    from postroad.tasks import Schedules, ScheduleShown
    from postroad.wiring import Backend

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule, which has the name of its task.")]
_LATE = timedelta(minutes=1)


@verb("schedule list", "--json")
def list_schedules(call: Call) -> None:
    """List all schedules with their next and last runs."""
    from postroad.tasks import SchedulePage

    with call.backend() as backend:
        found = _schedules(call, backend).list_all()
        rows = list(_rows(found, backend.clock.now()))
    nothing = "no schedules; a worker registers those of its tasks when it starts"
    headings = ["SCHEDULE", "WHEN", "ZONE", "NEXT", "LAST", "LAST REQUEST ID"]
    call.show(SchedulePage(found, None), table(headings, rows, nothing))


def _rows(found: list[ScheduleShown], now: datetime) -> Iterator[list[Any]]:
    from rich.text import Text

    for each in found:
        following: Any = Text("paused", "yellow") if each.paused else _time(each.next_at)
        if each.next_at is not None and each.next_at < now - _LATE:
            following = Text(f"{_time(each.next_at)}, late: no worker runs it", "red")
        yield [Text(each.name, "bold"), each.schedule, each.tz, following, _time(each.last_at), each.last_request_id]


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


@verb("schedule pause", "nightly")
def pause(call: Call, name: Name) -> None:
    """Stop a schedule from running until it is resumed."""
    with call.backend() as backend:
        shown = _schedules(call, backend).pause(name)
    call.show(shown, f"{name} is paused; `postroad schedule resume {name}` lets it run again")


@verb("schedule resume", "nightly")
def resume(call: Call, name: Name) -> None:
    """Let a paused schedule run again, from its next time on."""
    with call.backend() as backend:
        shown = _schedules(call, backend).resume(name)
    call.show(shown, f"{name} runs next at {_time(shown.next_at)}")


@verb("schedule run", "nightly")
def run(call: Call, name: Name) -> None:
    """Run the task of a schedule once now, and print the request id."""
    with call.backend() as backend:
        shown = _schedules(call, backend).run(name)
    call.show(shown, str(shown.last_request_id))


def _schedules(call: Call, backend: Backend) -> Schedules:
    from postroad.tasks import Schedules

    settings = call.settings()
    return Schedules(backend, tenant_id=settings.tenant, app=settings.app)
