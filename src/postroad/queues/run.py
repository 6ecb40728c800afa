"""One run of a redrive: step by step to the queue's end, or until something tells it to stop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from postroad import failpoints
from postroad.errors import PostroadError
from postroad.queues.canary import Canary
from postroad.queues.match import Chosen
from postroad.queues.moves import Movable, MoveStep
from postroad.queues.pace import STEP, Pace
from postroad.queues.report import Progress, RedriveReport
from postroad.queues.walks import Walk


class Run:
    """One run. What it moved is gone; what it did not come to is untouched."""

    def __init__(
        self,
        source: Movable,
        chosen: Chosen,
        walk: Walk,
        pace: Pace,
        *,
        watched: str | None,
        stop_after: int,
        progress: Progress | None,
    ) -> None:
        self._source = source
        self._chosen = chosen
        self._walk = walk
        self._pace = pace
        self._watched = watched
        self._stop_after = stop_after
        self._progress = progress

    def finish(self, canary: Canary | None) -> RedriveReport:
        """Move what is chosen, the canary first."""
        try:
            if canary is not None and not self._is_well(canary):
                return self._chosen.report("canary_failed")
            if self._go(lambda: self._chosen.knows_enough):
                return self._chosen.report("returned")
        finally:
            with suppress(PostroadError):
                self._walk.stop()
        return self._chosen.report("limit" if self._chosen.more else "done")

    def _is_well(self, canary: Canary) -> bool:
        first: list[str] = []
        self._chosen.only_first(canary.size)
        if self._go(lambda: self._chosen.full, first):
            return False
        if first:
            self._tell()
            if not canary.is_well(self._source, first, self._chosen):
                return False
        self._walk.go_on()
        return True

    def _go(self, is_enough: Callable[[], bool], moved: list[str] | None = None) -> bool:
        """Step to the end, or until it is enough; whether too many came back."""
        while not is_enough():
            step = self._step()
            self._count(step)
            if moved is not None:
                moved += [message_id for message_id, _ in step.moved]
            if self._too_many_returned():
                return True
            if step.cursor is None or is_enough():
                break
            self._tell()
            failpoints.hit("queue.redrive.mid")
        return False

    def _step(self) -> MoveStep:
        """One step, as large as the rate allows; when nothing more may go, only looks are left."""
        left = self._chosen.left
        return self._walk.step(STEP if left == 0 else self._pace.allowance(), left)

    def _count(self, step: MoveStep) -> None:
        self._pace.spend(len(step.moved))
        self._chosen.count(step)

    def _too_many_returned(self) -> bool:
        while self._watched is not None:
            # What returns stands behind all that was there when the run began.
            looked = self._source.look(cursor=self._watched, limit=STEP)
            for message in looked.messages:
                self._chosen.has_returned(message)
            if looked.cursor is None:
                break
            self._watched = looked.cursor
        return 0 < self._stop_after <= len(self._chosen.returned)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._chosen.report("running"))
