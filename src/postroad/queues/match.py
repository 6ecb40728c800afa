"""Which messages an operation is meant for, and which of them a redrive has moved."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.arguments import check
from postroad.errors import InvalidInput
from postroad.queues.markers import DeadLetter, fingerprint, read_dead, redriven_by, redrives
from postroad.queues.port import MoveStep, PeekedMessage

Status = Literal["running", "done", "limit", "returned", "canary_failed", "dry_run", "native"]
EVENT_ID_WITHIN = 512
"""The id of an event stands within so many bytes of its body."""
_EVENT_ID = re.compile(rb'"event_id":"([!#-\[\]-~]{1,128})"')
_PLAIN = re.compile(r"[!-~]{1,128}")
_Moment = Annotated[datetime, Meta(tz=True, description="a moment with a time zone")]


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of messages: those for which everything that is given holds.

    Args:
        fingerprint: The fingerprint of a dead letter's failure.
        key: The message group.
        event_type: The type of the event that the message carries.
        attributes: Attributes that the message must have with these values.
        ids: Message ids; empty for any.
        sent_before: A moment with a time zone; the message was sent before it.
        sent_after: A moment with a time zone; the message was sent after it.

    Raises:
        InvalidInput: A value is not of its type.

    Example:
        redrive(backend, "jobs-dead", match=Match(event_type="users.renamed"))
    """

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
        """Return whether everything that is given holds for `message`."""
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
    """Return the type of the event the message carries, if its attributes name it."""
    return _type(message, None if "EventType" in message.attributes else read_dead(message.attributes))


def event_id(attributes: Mapping[str, str], body: bytes) -> str | None:
    """Return the id of the event that a message carries, if it carries one."""
    if (named := attributes.get("EventId")) is not None:
        return named if _PLAIN.fullmatch(named) else None
    found = _EVENT_ID.search(body, 0, EVENT_ID_WITHIN) if "EventType" in attributes else None
    return None if found is None else found[1].decode()


def failure(message: PeekedMessage) -> str:
    """Return the fingerprint of a dead letter's failure."""
    dead = read_dead(message.attributes)
    return fingerprint(None if dead is None else dead.error, _type(message, dead))


def _type(message: PeekedMessage, dead: DeadLetter | None) -> str | None:
    return message.attributes.get("EventType") or (None if dead is None else dead.type)


class RedriveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a redrive did, or would do.

    Attributes:
        run_id: The id of this redrive, which moved messages carry.
        status: How it ended.
        matched: How many messages were selected.
        moved: How many were moved.
        returned: How many came back to the dead letters.
        skipped: How many were left out, by reason.
        destinations: How many were moved to each queue.
        task_handle: The handle of a move that SQS does by itself.
    """

    run_id: str
    status: Status
    matched: int
    moved: int
    returned: int
    skipped: Mapping[str, int]
    destinations: Mapping[str, int]
    task_handle: str | None = None


class Selection:
    """The messages that a redrive moves, chosen in the order in which they are read."""

    def __init__(self, match: Match, limit: int | None, max_redrives: int, run_id: str) -> None:
        self._match = match
        self._limit = self._cap = limit
        self._max_redrives = max_redrives
        self.run_id = run_id
        self.looked_at = 0
        self.matched = 0
        self.moved: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.returned: set[str] = set()
        self.unmarked: set[str] = set()
        self.more = False
        self._chosen = 0

    def count_moved_only(self) -> None:
        """From now on count what moved against the limit, not what was chosen to move."""
        self._chosen = self.moved.total()

    def choose_first(self, count: int) -> None:
        """Choose no more than `count` messages for now."""
        self._cap = count if self._limit is None else min(count, self._limit)

    def choose_all(self, *, again: bool = False) -> None:
        """Choose the others too; with `again` the queue is read from its beginning."""
        self._cap = self._limit
        if again:
            self.more = False
            self.matched = self.moved.total()
            self.skipped.clear()

    def has_returned(self, message: PeekedMessage) -> bool:
        """Return whether this run has moved the message before, and count it once."""
        mine = redriven_by(message.attributes) == self.run_id or message.message_id in self.unmarked
        if mine:
            self.returned.add(message.message_id)
        return mine

    def chooses(self, message: PeekedMessage) -> bool:
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
        self._chosen += 1
        return True

    def leave(self, why: str) -> None:
        """Leave a chosen message where it is, for a reason found later."""
        self._chosen -= 1
        self.skipped[why] += 1

    def count(self, step: MoveStep) -> None:
        self.moved.update(to for _, to in step.moved)
        self.count_moved_only()
        self.skipped["in_flight"] += step.in_flight
        self.skipped["failed"] += step.failed

    @property
    def full(self) -> bool:
        return self._cap is not None and self._chosen >= self._cap

    @property
    def left(self) -> int | None:
        """Return how many more may be chosen; None for any number."""
        return None if self._cap is None else max(0, self._cap - self._chosen)

    def report(self, status: Status, destinations: Mapping[str, int] | None = None) -> RedriveReport:
        return RedriveReport(
            run_id=self.run_id,
            status=status,
            matched=self.matched,
            moved=self.moved.total(),
            returned=len(self.returned),
            skipped=dict(+self.skipped),
            destinations=dict(self.moved if destinations is None else destinations),
        )
