"""`postroad queue redrive`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call, verb
from postroad.cli.output import confirm_yes
from postroad.cli.parameters import (
    Yes,
    argument,
    duration_option,
    flag,
    option,
    pairs,
    per_second,
    queue_names,
    short_duration,
    time_option,
)
from postroad.signals import interrupted_by_sigterm
from postroad.telemetry import counted

if TYPE_CHECKING:
    from postroad.queues import RedriveReport
    from postroad.wiring import Backend


_STOPPED = ("returned", "canary_failed")
# Why messages stayed that should have moved.
_LEFT = {"failed", "no_destination"}


@verb("queue redrive", "orders-dlq --type orders.placed --rate 50 --dry-run", destructive=True)
def redrive(
    call: Call,
    name: Annotated[str, argument("DLQ", "The dead-letter queue.", autocompletion=queue_names)],
    to: Annotated[str | None, option("QUEUE", "Where to send them, if not back.", autocompletion=queue_names)] = None,
    failure_group: Annotated[str | None, option("FP", "Only this failure group.")] = None,
    key: Annotated[str | None, option("K", "Only this key.")] = None,
    type_: Annotated[str | None, option("T", "Only this event type.", "--type")] = None,
    attr: Annotated[list[str] | None, option("K=V", "Only with this attribute; repeatable.")] = None,
    id_: Annotated[list[str] | None, option("ID", "Only this message; repeatable.", "--id")] = None,
    sent_after: Annotated[datetime | None, time_option("Only messages first sent after this time.")] = None,
    sent_before: Annotated[datetime | None, time_option("Only messages first sent before this time.")] = None,
    limit: Annotated[int | None, option("N", "Move at most this many.", min=1)] = None,
    max_redrives: Annotated[
        int | None, option("N", "Leave messages that were redriven this many times already (3).", min=1)
    ] = None,
    native: Annotated[
        bool | None,
        typer.Option(
            "--native/--no-native",
            show_default=False,
            help="Let SQS move a whole queue itself, or never; by default it does if it can.",
        ),
    ] = None,
    rate: Annotated[float | None, option("R", "Move at most this many per second.", parser=per_second)] = None,
    canary: Annotated[int, option("N", "Move this many first, and wait for them.", min=0)] = 0,
    canary_wait: Annotated[float | None, duration_option("Wait at most this long for them (60s).")] = None,
    stop_after: Annotated[int, option("N", "Stop when this many came back; 0 means never.", min=0)] = 5,
    dry_run: Annotated[bool, flag("--dry-run", "Show what would move, change nothing.")] = False,
    yes: Yes = False,
    reason: Annotated[str, option("TEXT", "Why, for the audit log.")] = "",
    status: Annotated[bool, flag("--status", "Only show what SQS itself is moving.")] = False,
) -> None:
    """Send dead letters back to where they came from."""
    from postroad.operations import Match, redrive as move
    from postroad.queues import Bounds
    from postroad.views import open_queue

    if status:
        _show_tasks(call, name)
        return
    match = Match(
        fingerprint=failure_group,
        key=key,
        event_type=type_,
        attributes=pairs(attr or [], "attr", "K=V"),
        ids=tuple(id_ or ()),
        sent_before=sent_before,
        sent_after=sent_after,
    )
    wait = Bounds().canary_wait if canary_wait is None else canary_wait
    options: dict[str, Any] = {
        "to": to,
        "match": match,
        "limit": limit,
        "rate": rate,
        "canary": canary,
        "canary_wait": wait,
        "stop_after": stop_after,
        "native": native,
    }
    if max_redrives is not None:
        # SQS itself would move what was redriven too often as well.
        options.update(max_redrives=max_redrives, native=bool(native))
    with call.backend() as backend:
        for queue in filter(None, (name, to)):
            open_queue(backend, queue)
        if dry_run:
            report = move(backend, name, dry_run=True, **options)
        elif not yes and (empty := _nothing(backend, name, options)) is not None:
            report = empty
        else:
            confirm_yes(yes, f'redriving "{name}"', lambda: _effect(backend, name, options))
            with (
                call.working(f"looking at {name}", partial(_progress, canary=canary, wait=wait)) as progress,
                interrupted_by_sigterm(),
            ):
                report = move(backend, name, reason=reason, progress=progress, **options)
    nothing = f"{name} holds no {'messages' if match == Match() else 'message that matches'}"
    call.show(
        report, *_summary(report, nothing), ok=report.status not in _STOPPED and not _LEFT & report.skipped.keys()
    )


def _nothing(backend: Backend, name: str, options: dict[str, Any]) -> RedriveReport | None:
    """Return the report of a run that would find nothing to move, so that nobody has to be asked; else None."""
    from msgspec.structs import replace

    from postroad.operations import redrive as move

    queue = backend.queue(name)
    if not queue.traits.peeks_clean:
        stats = queue.stats()
        if stats.visible or stats.in_flight or stats.delayed:
            return None
    report = move(backend, name, dry_run=True, **options)
    return None if report.matched else replace(report, status="done")


def _effect(backend: Backend, name: str, options: dict[str, Any]) -> str:
    """Return what a run would do, without touching a message."""
    from postroad.operations import redrive as move

    queue = backend.queue(name)
    if queue.traits.peeks_clean:
        return f"moves {_counts(move(backend, name, dry_run=True, **options).destinations, 'message')}"
    return f"moves up to about {counted(queue.stats().visible, 'message')}"


def _show_tasks(call: Call, name: str) -> None:
    from postroad.operations import redrive_tasks
    from postroad.views import open_queue

    with call.backend() as backend:
        open_queue(backend, name)
        items = redrive_tasks(backend, name)
    lines = [f"{item.status.lower()}: {item.moved:,} moved of {item.to_move or 0:,}" for item in items]
    call.show({"items": items}, *(lines or ["SQS itself moves nothing out of this queue"]))


def _progress(report: RedriveReport, canary: int, wait: float) -> str:
    """Return what a running redrive does or waits for."""
    if 0 < report.moved <= canary:
        queues = " and ".join(sorted(report.destinations))
        first = counted(report.moved, "message")
        return f"waiting at most {short_duration(wait)} for {queues} to handle the canary of {first}"
    return f"moved {report.moved:,}, {report.returned:,} came back"


def _summary(report: RedriveReport, nothing: str) -> Iterator[str]:
    if report.status in ("done", "dry_run") and not report.matched and not report.skipped:
        yield f"nothing to redrive: {nothing}"
        return
    if report.status == "native":
        yield f"SQS moves about {_counts(report.destinations)} by itself; --status shows the progress"
        return
    verb = "would move" if report.status == "dry_run" else "moved"
    yield f"{verb} {_counts(report.destinations)} ({report.matched:,} matched)"
    for why, count in report.skipped.items():
        yield f"left {count:,}: {why.replace('_', ' ')}"
    if report.status == "canary_failed" and not report.returned:
        yield "stopped: the canary was not handled in time; find out why before you go on"
    elif report.status in _STOPPED:
        yield f"stopped: {report.returned:,} came back; find out why before you go on"
    if report.status == "limit":
        yield "more matched than the limit; run it again for the rest"


def _counts(destinations: Mapping[str, int], word: str = "") -> str:
    if not destinations:
        return "nothing"
    counts = {name: counted(count, word) if word else f"{count:,}" for name, count in sorted(destinations.items())}
    return ", ".join(f"{count} to {name}" for name, count in counts.items())
