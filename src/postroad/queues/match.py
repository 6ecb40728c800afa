"""Which messages an operation is meant for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.arguments import check
from postroad.errors import InvalidInput
from postroad.queues.fingerprint import fingerprint
from postroad.queues.markers import DeadLetter, read_dead, redriven_by, redrives
from postroad.queues.moves import MoveStep
from postroad.queues.port import PeekedMessage
from postroad.queues.report import RedriveReport, Status

_Moment = Annotated[datetime, Meta(tz=True, description="a moment with a time zone")]


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """Messages for which all that is given holds. `key` is the message group, `fingerprint` that of a dead letter."""

    fingerprint: str | None = None
    key: str | None = None
    event_type: str | None = None
    attributes: Mapping[str, str] = {}
    ids: Collection[str] = ()
    sent_before: datetime | None = None
    sent_after: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("fingerprint", "key", "event_type"):
            if not isinstance(getattr(self, name), str | None):
                raise InvalidInput(f"match.{name}: {getattr(self, name)!r} is not text", field=f"match.{name}")
        if isinstance(self.ids, str):
            raise InvalidInput(f"match.ids: {self.ids!r} is one text; give a list of message ids", field="match.ids")
        check(self.sent_before, _Moment | None, "match.sent_before")
        check(self.sent_after, _Moment | None, "match.sent_after")

    def holds(self, message: PeekedMessage) -> bool:
        """Whether all that is given holds for the message."""
        return (
            (self.key is None or message.group == self.key)
            and (not self.ids or message.message_id in self.ids)
            and (self.sent_before is None or message.sent_at < self.sent_before)
            and (self.sent_after is None or message.sent_at > self.sent_after)
            and (not self.attributes or self.attributes.items() <= message.attributes.items())
            and (self.event_type is None or event_type(message) == self.event_type)
            and (self.fingerprint is None or failure(message) == self.fingerprint)
        )


def event_type(message: PeekedMessage) -> str | None:
    """The type of the event the message carries, as far as its attributes tell."""
    return _type(message, None if "EventType" in message.attributes else read_dead(message.attributes))


def failure(message: PeekedMessage) -> str:
    """The fingerprint of what a dead letter died of."""
    dead = read_dead(message.attributes)
    return fingerprint(None if dead is None else dead.error, _type(message, dead))


def _type(message: PeekedMessage, dead: DeadLetter | None) -> str | None:
    return message.attributes.get("EventType") or (None if dead is None else dead.type)


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
