"""The feed of a journal: the events of some types in the order in which they were stored, each at least once.

The order of a journal is that of the events' own times, and an event may arrive late. Whoever follows it needs the
order of arrival: a store that has one gives it, and elsewhere the last minutes are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from heapq import merge
from typing import Final, Protocol, runtime_checkable

import msgspec

from postroad.journal.event import JournalEvent

# Clocks of several writers differ, and an index of DynamoDB lags behind its table.
_MARGIN_MS: Final = 60_000
# Events may come an hour late; they are looked for once in ten minutes.
_LATE_MS: Final = 3_900_000
_LATE_EVERY_MS: Final = 600_000
# How much one step reads of a long backlog.
_STEP_MS: Final = 600_000


class Followed(msgspec.Struct, frozen=True):
    """What came behind a position: the events, the position behind them, and whether there is more now."""

    events: list[JournalEvent]
    position: str
    has_more: bool = False


@runtime_checkable
class Follows(Protocol):
    """A journal, or a store of one, whose events can be followed as they arrive."""

    def follow(self, tenant: str, event_types: Collection[str], position: str | None) -> Followed:
        """Return the next events of these types behind the position; None stands for the present end.

        An event may be returned more than once.
        """
        ...


class _Position(msgspec.Struct, frozen=True):
    """Up to when events that were stored have been returned: those in time, and those that came late."""

    near: int
    late: int


Read = Callable[[str, int, int], Iterable[JournalEvent]]
"""Reads the events of a type between two times, in milliseconds."""


def follow_by_time(read: Read, event_types: Collection[str], position: str | None, *, now: int) -> Followed:
    """Follow a store that has no order of arrival by the times at which events happened and were stored."""
    if position is None:
        return Followed([], _written(_Position(now, now)))
    at = msgspec.json.decode(position, type=_Position)
    end = min(now, at.near + _STEP_MS)
    looks_far = end - at.late >= _LATE_EVERY_MS
    stored_from = (at.late if looks_far else at.near) - _MARGIN_MS
    start = stored_from - (_LATE_MS if looks_far else _MARGIN_MS)
    found = merge(*(read(event_type, start, end) for event_type in event_types), key=_order)
    events = [event for event in found if (event.received_at or 0) >= stored_from]
    return Followed(events, _written(_Position(end, end if looks_far else at.late)), has_more=end < now)


def _order(event: JournalEvent) -> tuple[int, int]:
    return event.timestamp, event.event_id.int


def _written(position: _Position) -> str:
    return msgspec.json.encode(position).decode()
