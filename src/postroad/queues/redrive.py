"""Sending dead letters back: in order, in steps that a crash cannot tear, and never in a circle."""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from postroad import failpoints
from postroad.errors import InvalidInput
from postroad.queues.destinations import Destinations, QueueDirectory
from postroad.queues.markers import REDRIVE, mark_redriven, redriven_by, redrives
from postroad.queues.match import Match
from postroad.queues.moving import Decide, Movable, Move, MoveStep, as_movable
from postroad.queues.pace import STEP, Pace
from postroad.queues.port import PeekedMessage, Queue
from postroad.telemetry import get_logger

Status = Literal["running", "done", "limit", "returned", "canary_failed", "dry_run", "native"]

_RUN_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


class RedriveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a redrive did, or would do: `skipped` by reason, `destinations` by queue."""

    run_id: str
    status: Status
    matched: int
    moved: int
    returned: int
    skipped: Mapping[str, int]
    destinations: Mapping[str, int]
    task_handle: str | None = None


def redrive(
    queues: QueueDirectory,
    dead_letter_queue: str,
    *,
    to: str | None = None,
    match: Match | None = None,
    limit: int | None = None,
    rate: float | None = None,
    stop_after: int = 5,
    max_redrives: int = 3,
    run_id: str | None = None,
    dry_run: bool = False,
    reason: str = "",
    progress: Callable[[RedriveReport], None] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RedriveReport:
    """Move matching dead letters back in order; running it again goes on where it ended.

    A message that comes back during the run is not sent a second time, and `stop_after` of them stop the run. To try a
    few first, redrive with a `limit` and go on under the same `run_id`.
    """
    _check_whole(limit, "limit", 1)
    _check_whole(stop_after, "stop_after", 0)
    _check_whole(max_redrives, "max_redrives", 1)
    pace = Pace(rate, monotonic=monotonic, sleep=sleep)
    source = queues.queue(dead_letter_queue)
    movable = as_movable(source)
    destinations = Destinations(queues, dead_letter_queue, to)
    chosen = _Chosen(match or Match(), limit, max_redrives, _checked_run(run_id))
    if dry_run:
        return _look(movable, chosen, destinations)
    if source.traits.peeks_clean:
        # One look ahead finds every destination that cannot be, while nothing has moved yet.
        _look(movable, chosen.again(), destinations)
    run = _Run(source, movable, chosen, destinations, pace, stop_after, progress)
    report = run.finish()
    get_logger("queues").info(
        "queue_redriven", queue=dead_letter_queue, run_id=report.run_id, status=report.status, moved=report.moved,
        reason=reason,
    )  # fmt: skip
    return report


class _Chosen:
    """Which messages go, in the order they are looked at, and what is told about the others."""

    def __init__(self, match: Match, limit: int | None, max_redrives: int, run_id: str) -> None:
        self._match = match
        self._limit = limit
        self._max_redrives = max_redrives
        self.run_id = run_id
        self.matched = 0
        self.going = 0
        self.skipped: Counter[str] = Counter()
        self.returned: set[str] = set()
        self.moved_unmarked: set[str] = set()
        self.more = False

    def again(self) -> _Chosen:
        """The same choice, begun anew."""
        return _Chosen(self._match, self._limit, self._max_redrives, self.run_id)

    def has_returned(self, message: PeekedMessage) -> bool:
        """Whether this run has moved the message before; counted once."""
        mine = redriven_by(message.attributes) == self.run_id or message.message_id in self.moved_unmarked
        if mine:
            self.returned.add(message.message_id)
        return mine

    def goes(self, message: PeekedMessage) -> bool:
        """Whether the message is to be moved."""
        if self.has_returned(message) or not self._match.holds(message):
            return False
        self.matched += 1
        if redrives(message.attributes) >= self._max_redrives:
            self.skipped["max_redrives"] += 1
            return False
        if self.full:
            self.more = True
            return False
        self.going += 1
        return True

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self._limit is not None and self.going >= self._limit

    def report(self, status: Status, destinations: Mapping[str, int], moved: int) -> RedriveReport:
        """What is known so far."""
        return RedriveReport(
            run_id=self.run_id,
            status=status,
            matched=self.matched,
            moved=moved,
            returned=len(self.returned),
            skipped=dict(+self.skipped),
            destinations=dict(destinations),
        )


def _look(source: Movable, chosen: _Chosen, destinations: Destinations) -> RedriveReport:
    """Go through the queue without moving anything, and ask for every destination."""
    origins: Counter[str | None] = Counter()

    def decide(message: PeekedMessage) -> None:
        if chosen.goes(message):
            origins[destinations.origin(message)] += 1

    cursor: str | None = None
    while True:
        step = source.move(_once(decide), cursor=cursor, limit=STEP)
        chosen.skipped["in_flight"] += step.in_flight
        # Asked between the steps: a step may be a transaction, which must not wait for a look-up.
        for origin in origins:
            destinations.resolve(origin)
        if (cursor := step.cursor) is None:
            break
    found: Counter[str] = Counter()
    for origin, count in origins.items():
        found[destinations.resolve(origin)] += count
    return chosen.report("dry_run", found, 0)


class _Run:
    """One run of a redrive."""

    def __init__(
        self,
        queue: Queue,
        source: Movable,
        chosen: _Chosen,
        destinations: Destinations,
        pace: Pace,
        stop_after: int,
        progress: Callable[[RedriveReport], None] | None,
    ) -> None:
        self._source = source
        self._chosen = chosen
        self._destinations = destinations
        # Where a step may be a transaction, only what was asked for before it is known in it.
        self._destination = destinations.known if queue.traits.peeks_clean else destinations.resolve
        self._pace = pace
        self._stop_after = stop_after
        self._progress = progress
        self._moved: Counter[str] = Counter()
        self._watched = source.end() if stop_after else None

    def finish(self) -> RedriveReport:
        """Step until the end, or until too many came back."""
        cursor: str | None = None
        while True:
            step = self._source.move(_once(self._decide), cursor=cursor, limit=self._step_limit())
            self._count(step)
            if self._too_many_returned():
                return self._report("returned")
            if (cursor := step.cursor) is None:
                return self._report("limit" if self._chosen.more else "done")
            if self._progress is not None:
                self._progress(self._report("running"))
            failpoints.hit("queue.redrive.mid")

    def _step_limit(self) -> int:
        return STEP if self._chosen.full else self._pace.allowance()

    def _decide(self, message: PeekedMessage) -> Move | None:
        if not self._chosen.goes(message):
            return None
        to = self._destination(self._destinations.origin(message))
        if to is None:
            # It came, or its lease ended, after the destinations were looked up; the next run knows it.
            self._chosen.going -= 1
            self._chosen.skipped["unseen"] += 1
            return None
        attributes = mark_redriven(message.attributes, self._chosen.run_id)
        if REDRIVE not in attributes:
            self._chosen.moved_unmarked.add(message.message_id)
        return Move(to=to, attributes=attributes)

    def _count(self, step: MoveStep) -> None:
        self._pace.spend(len(step.moved))
        self._moved.update(to for _, to in step.moved)
        self._chosen.skipped["in_flight"] += step.in_flight

    def _too_many_returned(self) -> bool:
        if not self._stop_after:
            return False
        while self._watched is not None:
            # What returns stands behind all others, where this run would come to see it last.
            step = self._source.move(self._watch, cursor=self._watched, limit=STEP)
            if step.cursor is None:
                break
            self._watched = step.cursor
        return len(self._chosen.returned) >= self._stop_after

    def _watch(self, message: PeekedMessage) -> None:
        self._chosen.has_returned(message)

    def _report(self, status: Status) -> RedriveReport:
        return self._chosen.report(status, self._moved, self._moved.total())


def _once(decide: Decide) -> Decide:
    """Decide on each message once, since a store may repeat a step that could not be committed."""
    decided: dict[str, Move | None] = {}

    def remembered(message: PeekedMessage) -> Move | None:
        if message.message_id not in decided:
            decided[message.message_id] = decide(message)
        return decided[message.message_id]

    return remembered


def _checked_run(run_id: str | None) -> str:
    if run_id is None:
        return uuid.uuid4().hex
    if _RUN_ID.fullmatch(run_id) is None:
        raise InvalidInput(f"run_id: {run_id!r} is not 1 to 64 letters, digits or '-'", field="run_id")
    return run_id


def _check_whole(value: object, field: str, low: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidInput(f"{field}: {value!r} is not a whole number from {low} on", field=field)
