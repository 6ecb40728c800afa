"""The journal on any store: checked on the way in, whole on the way out, and followed as events arrive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import merge
from typing import Final, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from postroad.arguments import check
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import InvalidEvent, InvalidQuery, PostroadError
from postroad.journal.event import JournalEvent
from postroad.journal.keys import place_of
from postroad.journal.overflow import Overflow, whole
from postroad.journal.port import AppendResult, Entity, Page
from postroad.journal.records import LIMIT, Entry, Question, Records, checked_entry
from postroad.journal.states import KeepsStates, every_event

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


_NO_ID = UUID(int=0)


class StoredJournal:
    """A journal whose events lie in some `Records`, and what is too large for them in blobs."""

    def __init__(
        self, records: Records, overflow: Overflow, *, clock: Clock = SYSTEM_CLOCK, ttl_days: int | None = None
    ) -> None:
        self._records = records
        self._overflow = overflow
        self._clock = clock
        self._ttl_days = ttl_days

    def init(self) -> None:
        """Make the storage where it is missing, or say how it differs from what is needed."""
        self._records.init()

    def append(self, events: Sequence[JournalEvent]) -> list[AppendResult]:
        """Take each event once, durably. One that is refused fails alone."""
        entries = [self._entry(event) for event in events]
        outcomes = iter(self._add([entry for entry in entries if isinstance(entry, Entry)]))
        return [
            _result(event, next(outcomes) if isinstance(entry, Entry) else entry)
            for event, entry in zip(events, entries, strict=True)
        ]

    def query(
        self,
        index: str,
        *,
        tenant: str,
        entity: Entity | None = None,
        app: str | None = None,
        event_type: str | None = None,
        start: int | None = None,
        end: int | None = None,
        descending: bool = False,
        limit: int = 100,
        cursor: str | None = None,
        raw: bool = False,
    ) -> Page:
        """A page of one index: `PK`, or `GSI1` to `GSI7` with what they need. `raw` leaves blobs where they are.

        An event whose blob is missing or altered says so in `overflow_error`; the others of its page are whole.
        """
        check(limit, LIMIT, "limit", InvalidQuery)
        question = Question(
            index=index,
            tenant=tenant,
            entity=entity,
            app=app,
            event_type=event_type,
            start=start,
            end=end,
            descending=descending,
        )
        low, high = question.bounds(cursor)
        found = self._records.read(question, low, high, limit + 1) if low < high else []
        events = found[:limit]
        last = events[-1] if len(found) > limit else None
        return Page(
            events=events if raw else [self._overflow.unpack_or_note(event) for event in events],
            cursor=None if last is None else question.cursor(place_of(last.timestamp, last.event_id)),
        )

    def latest(self, tenant: str, entity_type: str, entity_id: str) -> JournalEvent | None:
        """The last event of an entity, or None; `OverflowMismatch` when its blob is not what was stored."""
        page = self.query("GSI1", tenant=tenant, entity=(entity_type, entity_id), descending=True, limit=1)
        return whole(page.events[0]) if page.events else None

    def follow(self, tenant: str, event_types: Collection[str], position: str | None) -> Followed:
        """Return the next events of these types behind the position, in the order of their arrival."""
        if isinstance(self._records, Follows):
            followed = self._records.follow(tenant, event_types, position)
            whole_events = [self._overflow.unpack_or_note(event) for event in followed.events]
            return Followed(whole_events, followed.position, followed.has_more)

        def read(event_type: str, start: int, end: int) -> Iterable[JournalEvent]:
            return every_event(self, "GSI4", tenant=tenant, event_type=event_type, start=start, end=end)

        return follow_by_time(read, event_types, position, now=int(self._clock.now().timestamp() * 1000))

    @property
    def keeps_days(self) -> int | None:
        """After how many days somebody has to remove an event; None: never, or the store does it by itself."""
        return None if self._records.expires_itself else self._ttl_days

    def remove(self, events: Sequence[JournalEvent]) -> None:
        """Forget these events, read with `raw`, and their blobs."""
        if events:
            self._records.remove(events)
        for event in events:
            self._overflow.forget(event)

    def states(self, tenant: str, *, app: str | None, since: int | None) -> Iterable[tuple[str, str]] | None:
        """Request id and state of each task, where the store keeps them; None where it does not."""
        Question(index="PK" if app is None else "GSI2", tenant=tenant, app=app, start=since)
        if not isinstance(self._records, KeepsStates):
            return None
        return self._records.states(tenant, app=app, since=since)

    def _entry(self, event: JournalEvent) -> Entry | PostroadError:
        try:
            if not isinstance(event, JournalEvent):
                return InvalidEvent(f"{type(event).__name__} is not a JournalEvent")
            entry = self._overflow.pack(checked_entry(event))
            # The blob of an event that is stored already must stay what it is.
            if entry.payload is not None and not self._records.has(event):
                self._overflow.store(entry)
        except PostroadError as error:
            return error
        return entry

    def _add(self, entries: Sequence[Entry]) -> list[bool | PostroadError]:
        if not entries:
            return []
        now = self._clock.now().timestamp()
        ttl = None if self._ttl_days is None else int(now) + self._ttl_days * 86_400
        return self._records.add(entries, int(now * 1000), ttl)


def _result(event: JournalEvent, outcome: bool | PostroadError) -> AppendResult:
    if outcome is True:
        return AppendResult(event.event_id, True)
    if outcome is False:
        return AppendResult(event.event_id, True, True)
    return AppendResult(getattr(event, "event_id", _NO_ID), False, error=outcome)
