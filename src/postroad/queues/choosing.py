"""Which dead letters go back, and what is told about the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from postroad.queues.markers import redriven_by, redrives
from postroad.queues.match import Match
from postroad.queues.moving import MoveStep
from postroad.queues.port import PeekedMessage
from postroad.queues.report import RedriveReport, Status


class Chosen:
    """The messages that go, in the order in which they are looked at."""

    def __init__(self, match: Match, limit: int | None, max_redrives: int, run_id: str) -> None:
        self._match = match
        self._limit = limit
        self._cap = limit
        self._max_redrives = max_redrives
        self.run_id = run_id
        self.looked_at = 0
        self.matched = 0
        self.moved: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.returned: set[str] = set()
        self.unmarked: set[str] = set()
        self.more = False
        self._going = 0

    def is_made(self) -> None:
        """From now on only what moves counts against the limit, not what was chosen to."""
        self._going = self.moved.total()

    def only_first(self, count: int) -> None:
        """Let no more than so many go for now."""
        self._cap = count if self._limit is None else min(count, self._limit)

    def release(self) -> None:
        """Let the others go too."""
        self._cap = self._limit

    def begin_again(self) -> None:
        """Let the others go too, looking at the queue from its beginning again."""
        self.release()
        self.more = False
        self.matched = self.moved.total()
        self.skipped.clear()

    def has_returned(self, message: PeekedMessage) -> bool:
        """Whether this run has moved the message before; counted once."""
        mine = redriven_by(message.attributes) == self.run_id or message.message_id in self.unmarked
        if mine:
            self.returned.add(message.message_id)
        return mine

    def goes(self, message: PeekedMessage) -> bool:
        """Whether the message is to be moved."""
        if self.has_returned(message):
            return False
        if message.state == "in_flight":
            self.skipped["in_flight"] += 1
            return False
        if not self._match.holds(message):
            return False
        self.matched += 1
        if redrives(message.attributes) >= self._max_redrives:
            self.skipped["max_redrives"] += 1
            return False
        if self.full:
            self.more = True
            return False
        self._going += 1
        return True

    def stays(self, why: str) -> None:
        """One that was to go is left, for a reason found later."""
        self._going -= 1
        self.skipped[why] += 1

    def count(self, step: MoveStep) -> None:
        """Remember what a step did; only what has moved counts against the limit."""
        self.moved.update(to for _, to in step.moved)
        self.is_made()
        self.skipped["in_flight"] += step.in_flight
        self.skipped["failed"] += step.failed

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self._cap is not None and self._going >= self._cap

    @property
    def knows_enough(self) -> bool:
        """Whether nothing more may go, and it is known that more would have matched."""
        return self.full and self.more

    @property
    def left(self) -> int | None:
        """How many more may go; None when all may."""
        return None if self._cap is None else max(0, self._cap - self._going)

    def report(self, status: Status, destinations: Mapping[str, int] | None = None) -> RedriveReport:
        """What is known so far."""
        return RedriveReport(
            run_id=self.run_id,
            status=status,
            matched=self.matched,
            moved=self.moved.total(),
            returned=len(self.returned),
            skipped=dict(+self.skipped),
            destinations=dict(self.moved if destinations is None else destinations),
        )
