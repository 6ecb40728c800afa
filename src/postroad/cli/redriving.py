"""`postroad queue redrive`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call
from postroad.cli.completion import queue_names
from postroad.cli.confirming import confirm_yes
from postroad.cli.errors import ANSWER_IS_NO
from postroad.cli.messages import attributes
from postroad.cli.verbs import add_verb

if TYPE_CHECKING:
    from postroad.queues.redrive import RedriveReport

_EXAMPLE = "postroad queue redrive orders-dlq --type orders.placed --rate 50 --dry-run"

_STOPPED = ("returned", "canary_failed")


def add_to(app: typer.Typer) -> None:
    """Make the verb part of `postroad queue`."""
    add_verb(app, "redrive", redrive, example=_EXAMPLE, destructive=True)


def per_second(text: str) -> float:
    """A rate above zero."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise typer.BadParameter(f'"{text}" is not a number of messages per second above 0')
    return rate


def redrive(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="DLQ", help="The dead-letter queue.", autocompletion=queue_names)],
    to: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Where to, if not back.", autocompletion=queue_names)
    ] = None,
    failure_group: Annotated[str | None, typer.Option(metavar="FP", help="Only this failure group.")] = None,
    key: Annotated[str | None, typer.Option(metavar="K", help="Only this key.")] = None,
    type_: Annotated[str | None, typer.Option("--type", metavar="T", help="Only this event type.")] = None,
    attr: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Only with this attribute; repeatable.")] = None,
    id_: Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="Only this message; repeatable.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Move at most so many.")] = None,
    rate: Annotated[
        float | None, typer.Option(parser=per_second, metavar="R", help="Move at most so many per second.")
    ] = None,
    stop_after: Annotated[int, typer.Option(min=0, metavar="N", help="Stop when so many came back; 0: never.")] = 5,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would move, change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for the record.")] = "",
) -> None:
    """Send dead letters back to where they came from."""
    from postroad.documents import open_queue, redrive_report
    from postroad.queues.match import Match
    from postroad.queues.redrive import redrive as move

    match = Match(
        fingerprint=failure_group, key=key, event_type=type_, attributes=attributes(attr or []), ids=tuple(id_ or ())
    )  # fmt: skip
    options: dict[str, Any] = {"to": to, "match": match, "limit": limit, "rate": rate, "stop_after": stop_after}
    with call.backend() as backend:
        for queue in filter(None, (name, to)):
            open_queue(backend, queue)

        def look() -> RedriveReport:
            return move(backend, name, dry_run=True, **options)

        if dry_run:
            report = look()
        else:
            confirm_yes(yes, f'redriving "{name}"', lambda: f"moves {_counts(look().destinations)}")
            with _progress(call) as progress:
                report = move(backend, name, reason=reason, progress=progress, **options)
    call.show(redrive_report(report), *_summary(report))
    if report.status in _STOPPED:
        raise typer.Exit(ANSWER_IS_NO)


@contextmanager
def _progress(call: Call) -> Iterator[Callable[[RedriveReport], None] | None]:
    """Count on one line of the terminal while messages move; nothing elsewhere."""
    if call.json or not sys.stderr.isatty():
        yield None
        return
    try:
        yield lambda report: _overwrite(f"moved {report.moved:,}, {report.returned:,} came back")
    finally:
        _overwrite("")


def _overwrite(text: str) -> None:
    sys.stderr.write(f"\r{text:<60}\r")
    sys.stderr.flush()


def _summary(report: RedriveReport) -> Iterator[str]:
    verb = "would move" if report.status == "dry_run" else "moved"
    yield f"{verb} {_counts(report.destinations)} ({report.matched:,} matched)"
    for why, count in report.skipped.items():
        yield f"left {count:,}: {why.replace('_', ' ')}"
    if report.status in _STOPPED:
        yield f"stopped: {report.returned:,} came back; look at why before going on"
    if report.status == "limit":
        yield "more matched than the limit; run it again for the rest"


def _counts(destinations: Mapping[str, int]) -> str:
    if not destinations:
        return "nothing"
    return ", ".join(f"{count:,} to {name}" for name, count in sorted(destinations.items()))
