"""Sending dead letters back: in order, in steps that a crash cannot tear, and never in a circle."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from typing import Unpack

from postroad.errors import InvalidInput
from postroad.queues.bounds import BoundOptions, Bounds
from postroad.queues.canary import Canary
from postroad.queues.destinations import Destinations, QueueDirectory
from postroad.queues.match import Chosen, Match
from postroad.queues.moves import Movable, as_movable
from postroad.queues.pace import Pace
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
    run_id: str | None = None,
    dry_run: bool = False,
    reason: str = "",
    begin: Callable[[Callable[[], RedriveReport]], None] | None = None,
    progress: Progress | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    **bounds: Unpack[BoundOptions],
) -> RedriveReport:
    """Move matching dead letters back in order; running it again goes on where it ended.

    A message that comes back during the run is not sent a second time, and `stop_after` of them stop the run. A
    `canary` goes first, and the others only follow when it was handled. `begin` is called before the first message can
    move, when nothing is left that could be refused, with what tells how far the run is at any time.
    """
    within = Bounds(**bounds)
    queue = queues.queue(dead_letter_queue)
    source = as_movable(queue)
    destinations = Destinations(queues, dead_letter_queue, to)
    chosen = Chosen(match or Match(), within.limit, within.max_redrives, _checked_run(run_id))
    if dry_run:
        return _planned(source, chosen, destinations, only_look=True).report()
    watched = source.end()
    clean = queue.traits.peeks_clean
    walk: Walk = (_planned if clean else Meeting)(source, chosen, destinations)
    if begin is not None:
        begin(lambda: chosen.report("running"))
    run = Run(
        source,
        chosen,
        walk,
        Pace(within.rate, monotonic=monotonic, sleep=sleep),
        watched=watched,
        stop_after=within.stop_after,
        progress=progress,
    )
    canary = Canary(
        dead_letters=dead_letter_queue, size=within.canary, wait=within.canary_wait, monotonic=monotonic, sleep=sleep
    )
    with tracing.redriving(dead_letter_queue):
        report = run.finish(canary if within.canary else None)
    _check_not_nobodys(chosen, destinations)
    _tell(dead_letter_queue, report, reason)
    return report


def _planned(source: Movable, chosen: Chosen, destinations: Destinations, *, only_look: bool = False) -> Plan:
    plan = Plan(source, chosen, destinations, only_look=only_look)
    _check_not_nobodys(chosen, destinations)
    return plan


def _check_not_nobodys(chosen: Chosen, destinations: Destinations) -> None:
    if not chosen.looked_at:
        destinations.refuse_if_nobodys()


def _checked_run(run_id: str | None) -> str:
    if run_id is None:
        return uuid.uuid4().hex
    if _RUN_ID.fullmatch(run_id) is None:
        raise InvalidInput(f"run_id: {run_id!r} is not 1 to 64 letters, digits or '-'", field="run_id")
    return run_id


def _tell(queue: str, report: RedriveReport, reason: str) -> None:
    get_logger("queues").info(
        "queue_redriven", queue=queue, run_id=report.run_id, status=report.status, moved=report.moved, reason=reason
    )
