"""Moving dead letters back: in order, in steps that survive a crash, and never in a circle."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypedDict, Unpack

from msgspec import Meta

from postroad import failpoints
from postroad.arguments import FINITE, check, check_settings
from postroad.errors import InvalidInput, PostroadError
from postroad.queues.match import Match, RedriveReport, Selection
from postroad.queues.port import MoveStep, QueueStore, as_movable
from postroad.queues.walks import STEP, Destinations, PlannedWalk, UnorderedWalk
from postroad.telemetry import get_logger, tracing

_RUN_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_CANARY_PAUSE = 0.05

Progress = Callable[[RedriveReport], None]
EachStep = Callable[[Callable[[], MoveStep]], MoveStep]
"""Runs one step and returns what it did, so that a caller can store that in the step's own transaction."""
Rate = Annotated[float, Meta(gt=0, le=FINITE, description="a number of messages per second above 0")]


class BoundOptions(TypedDict, total=False):
    """The bounds as keywords of a call; what is left out is as in `Bounds`."""

    limit: int | None
    rate: float | None
    canary: int
    canary_wait: float
    stop_after: int
    max_redrives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of one redrive. A number that is out of range is refused by its name."""

    limit: Annotated[int, Meta(ge=1)] | None = None
    """Move at most this many messages; None for all."""
    rate: Rate | None = None
    """Move at most this many messages in any second; None for no ceiling."""
    canary: Annotated[int, Meta(ge=0)] = 0
    """Move this many first, and the others only when these were handled."""
    canary_wait: Annotated[float, Meta(ge=0, le=FINITE, description="a number of seconds from 0 on")] = 60.0
    """Wait this many seconds for the canary."""
    stop_after: Annotated[int, Meta(ge=0)] = 5
    """Stop when this many messages came back; 0 for never."""
    max_redrives: Annotated[int, Meta(ge=1)] = 3
    """Leave messages that were redriven this often."""

    def __post_init__(self) -> None:
        check_settings(self, InvalidInput)


class Pace:
    """How many messages the next step may move. A `rate` below one means one message in 1 / `rate` seconds."""

    def __init__(self, rate: float | None, *, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> None:
        check(rate, Rate | None, "rate")
        self._window = 1.0 if rate is None or rate >= 1 else 1 / rate
        self._ceiling = math.inf if rate is None else max(1, math.floor(rate))
        self._monotonic = monotonic
        self._sleep = sleep
        self._spent: deque[tuple[float, int]] = deque()

    def allowance(self) -> int:
        """Wait until something may move; return how many, at most a step."""
        while True:
            now = self._monotonic()
            while self._spent and now - self._spent[0][0] >= self._window:
                self._spent.popleft()
            free = self._ceiling - sum(count for _, count in self._spent)
            if free >= 1:
                return int(min(STEP, free))
            self._sleep(max(0.001, self._spent[0][0] + self._window - self._monotonic()))

    def spend(self, count: int) -> None:
        """Count messages that have moved."""
        if count and self._ceiling < math.inf:
            self._spent.append((self._monotonic(), count))


def redrive(
    queues: QueueStore,
    dead_letter_queue: str,
    *,
    to: str | None = None,
    match: Match | None = None,
    run_id: str | None = None,
    dry_run: bool = False,
    reason: str = "",
    begin: Callable[[Callable[[], RedriveReport]], None] | None = None,
    progress: Progress | None = None,
    each_step: EachStep | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    **bounds: Unpack[BoundOptions],
) -> RedriveReport:
    """Move matching dead letters back in order; running it again continues where it ended.

    A message that comes back during the run is not moved a second time.

    Args:
        queues: The backend, or its store of queues.
        dead_letter_queue: The queue to move messages out of.
        to: The destination of all messages; by default each goes back to the queue it came from.
        match: Which messages to move; by default all.
        run_id: 1 to 64 letters, digits or '-' that mark the moved messages; by default a new one.
        dry_run: Only count what would move.
        reason: Why, for the log.
        begin: Called before the first message can move, when nothing can be refused any more, with a function that
            returns the report so far.
        progress: Called with the report after each step.
        each_step: Called with each step instead of running it at once.
        monotonic: The clock that paces the run, in seconds; for tests.
        sleep: How to wait for that clock; for tests.
        bounds: `limit`, `rate`, `canary`, `canary_wait`, `stop_after` and `max_redrives`, as in `Bounds`.

    Raises:
        QueueNotFound: The dead-letter queue or a destination does not exist.
        AmbiguousSource: A message does not name its source, and several queues or none can be it.
        InvalidInput: A bound or the run id is out of range.

    Example:
        redrive(backend, "jobs-dead", canary=10, rate=50)
    """
    within = Bounds(**bounds)
    queue = queues.queue(dead_letter_queue)
    source = as_movable(queue)
    destinations = Destinations(queues, dead_letter_queue, to)
    run_id = uuid.uuid4().hex if run_id is None else run_id
    if _RUN_ID.fullmatch(run_id) is None:
        raise InvalidInput(f"run_id: {run_id!r} is not 1 to 64 letters, digits or '-'", field="run_id")
    selection = Selection(match or Match(), within.limit, within.max_redrives, run_id)
    watched = None if dry_run else source.end()
    walk: PlannedWalk | UnorderedWalk
    if dry_run or queue.traits.peeks_clean:
        walk = PlannedWalk(source, selection, destinations, only_look=dry_run)
        if not selection.looked_at:
            destinations.refuse_if_unused()
        if dry_run:
            return walk.report()
    else:
        walk = UnorderedWalk(source, selection, destinations)
    if begin is not None:
        begin(lambda: selection.report("running"))
    run = _Run(walk, within, dead_letter_queue, watched, progress, each_step or (lambda take: take()), monotonic, sleep)
    began = time.perf_counter()
    with tracing.redriving(dead_letter_queue):
        report = run.finish()
    if not selection.looked_at:
        destinations.refuse_if_unused()
    get_logger("queues").info(
        "queue_redriven",
        queue=dead_letter_queue,
        run_id=report.run_id,
        status=report.status,
        moved=report.moved,
        reason=reason,
        duration_ms=round((time.perf_counter() - began) * 1_000, 3),
    )
    return report


@dataclass(slots=True)
class _Run:
    """One run. What it moved is gone; what it did not reach is untouched."""

    walk: PlannedWalk | UnorderedWalk
    bounds: Bounds
    dead_letters: str
    watched: str | None
    progress: Progress | None
    each_step: EachStep
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]

    def finish(self) -> RedriveReport:
        pace = Pace(self.bounds.rate, monotonic=self.monotonic, sleep=self.sleep)
        try:
            if self.bounds.canary and not self._canary_passes(pace):
                return self.walk.selection.report("canary_failed")
            # Enough is known when nothing more may go, and more would have matched.
            if self._stops(pace, lambda: self.walk.selection.full and self.walk.selection.more):
                return self.walk.selection.report("returned")
        finally:
            with suppress(PostroadError):
                self.walk.stop()
        return self.walk.selection.report("limit" if self.walk.selection.more else "done")

    def _canary_passes(self, pace: Pace) -> bool:
        first: list[str] = []
        self.walk.selection.choose_first(self.bounds.canary)
        if self._stops(pace, lambda: self.walk.selection.full, first):
            return False
        if first:
            self._report()
            if not self._were_handled(first):
                return False
        self.walk.go_on()
        return True

    def _were_handled(self, ids: Collection[str]) -> bool:
        """Return whether all were handled or, where the store cannot know that, none came back in time."""
        deadline = self.monotonic() + self.bounds.canary_wait
        while (places := self.walk.source.whereabouts(ids)) is not None:
            back = [message_id for message_id, queue in places.items() if queue == self.dead_letters]
            self.walk.selection.returned.update(back)
            if back or not places:
                return not back
            if (left := deadline - self.monotonic()) <= 0:
                return False
            self.sleep(min(_CANARY_PAUSE, left))
        self.sleep(self.bounds.canary_wait)
        cursor: str | None = None
        while True:
            looked = self.walk.source.look(cursor=cursor, limit=STEP)
            if any(self.walk.selection.has_returned(message) for message in looked.messages):
                self.walk.source.stop(looked.cursor)
                return False
            if (cursor := looked.cursor) is None:
                return True

    def _stops(self, pace: Pace, is_enough: Callable[[], bool], moved: list[str] | None = None) -> bool:
        """Step to the end, or until it is enough; return whether too many messages came back."""
        while not is_enough():
            # When nothing more may go, a step only counts what would match.
            left = self.walk.selection.left
            take = partial(self.walk.step, STEP if left == 0 else pace.allowance(), left)
            step = self.each_step(take)
            pace.spend(len(step.moved))
            self.walk.selection.count(step)
            if moved is not None:
                moved += [message_id for message_id, _ in step.moved]
            if self._too_many_returned():
                return True
            if step.cursor is None or is_enough():
                break
            self._report()
            failpoints.hit("queue.redrive.mid")
        return False

    def _too_many_returned(self) -> bool:
        while self.watched is not None:
            # What comes back is behind everything that was there when the run began.
            looked = self.walk.source.look(cursor=self.watched, limit=STEP)
            for message in looked.messages:
                self.walk.selection.has_returned(message)
            if looked.cursor is None:
                break
            self.watched = looked.cursor
        return 0 < self.bounds.stop_after <= len(self.walk.selection.returned)

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(self.walk.selection.report("running"))
