"""Sending dead letters back: in order, in steps that a crash cannot tear, and never in a circle."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Callable

from postroad.errors import InvalidInput
from postroad.queues.canary import Canary
from postroad.queues.choosing import Chosen
from postroad.queues.destinations import Destinations, QueueDirectory
from postroad.queues.match import Match
from postroad.queues.moving import as_movable
from postroad.queues.pace import Pace, check_rate
from postroad.queues.report import Progress, RedriveReport
from postroad.queues.run import Run
from postroad.queues.walks import Meeting, Plan, Walk
from postroad.telemetry import get_logger, tracing

__all__ = ["RedriveReport", "redrive"]

_RUN_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


def redrive(
    queues: QueueDirectory,
    dead_letter_queue: str,
    *,
    to: str | None = None,
    match: Match | None = None,
    limit: int | None = None,
    rate: float | None = None,
    canary: int = 0,
    canary_wait: float = 60.0,
    stop_after: int = 5,
    max_redrives: int = 3,
    run_id: str | None = None,
    dry_run: bool = False,
    reason: str = "",
    begin: Callable[[Callable[[], RedriveReport]], None] | None = None,
    progress: Progress | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RedriveReport:
    """Move matching dead letters back in order; running it again goes on where it ended.

    A message that comes back during the run is not sent a second time, and `stop_after` of them stop the run. A
    `canary` goes first, and the others only follow when it was handled. `begin` is called before the first message can
    move, when nothing is left that could be refused, with what tells how far the run is at any time.
    """
    check_options(
        limit=limit, rate=rate, canary=canary, canary_wait=canary_wait, stop_after=stop_after,
        max_redrives=max_redrives,
    )  # fmt: skip
    pace = Pace(rate, monotonic=monotonic, sleep=sleep)
    first = None
    if canary:
        first = Canary(
            dead_letters=dead_letter_queue, size=canary, wait=canary_wait, monotonic=monotonic, sleep=sleep
        )  # fmt: skip
    queue = queues.queue(dead_letter_queue)
    source = as_movable(queue)
    destinations = Destinations(queues, dead_letter_queue, to)
    chosen = Chosen(match or Match(), limit, max_redrives, _checked_run(run_id))
    if dry_run:
        plan = Plan(source, chosen, destinations, only_look=True)
        _check_not_nobodys(chosen, destinations)
        return plan.report()
    watched = source.end()
    walk: Walk
    if queue.traits.peeks_clean:
        walk = Plan(source, chosen, destinations)
        _check_not_nobodys(chosen, destinations)
    else:
        walk = Meeting(source, chosen, destinations)
    if begin is not None:
        begin(lambda: chosen.report("running"))
    run = Run(source, chosen, walk, pace, watched=watched, stop_after=stop_after, progress=progress)
    with tracing.redriving(dead_letter_queue):
        report = run.finish(first)
    _check_not_nobodys(chosen, destinations)
    get_logger("queues").info(
        "queue_redriven", queue=dead_letter_queue, run_id=report.run_id, status=report.status, moved=report.moved,
        reason=reason,
    )  # fmt: skip
    return report


def check_options(
    *, limit: int | None, rate: float | None, canary: int, canary_wait: float, stop_after: int, max_redrives: int
) -> None:
    """Refuse a number that is out of range, naming it."""
    if limit is not None:
        check_whole(limit, "limit", 1)
    check_whole(canary, "canary", 0)
    check_whole(stop_after, "stop_after", 0)
    check_whole(max_redrives, "max_redrives", 1)
    _check_wait(canary_wait)
    check_rate(rate)


def _check_not_nobodys(chosen: Chosen, destinations: Destinations) -> None:
    if not chosen.looked_at:
        destinations.refuse_if_nobodys()


def _checked_run(run_id: str | None) -> str:
    if run_id is None:
        return uuid.uuid4().hex
    if _RUN_ID.fullmatch(run_id) is None:
        raise InvalidInput(f"run_id: {run_id!r} is not 1 to 64 letters, digits or '-'", field="run_id")
    return run_id


def check_whole(value: object, field: str, low: int) -> None:
    """Refuse what is not a whole number from `low` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidInput(f"{field}: {value!r} is not a whole number from {low} on", field=field)


def _check_wait(seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise InvalidInput(f"canary_wait: {seconds!r} is not a number of seconds from 0 on", field="canary_wait")
