"""The journal on any store: it checks events on the way in, reads their blobs, and follows them as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from heapq import merge
from typing import Any, Final

import msgspec

from postroad.arguments import check, whole_number
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import InvalidEvent, InvalidQuery, PostroadError
from postroad.journal import port
from postroad.journal.event import OVERFLOW, JournalEvent, whole
from postroad.journal.overflow import SMALL_BYTES, Overflow
from postroad.journal.port import AppendResult, Appends, Entity, Entry, Followed, Page, Query, Records

# Clocks of several writers differ, and an index of DynamoDB lags behind its table.
_MARGIN_MS: Final = 60_000
# Events may arrive an hour late; a scan every ten minutes finds them.
_LATE_MS: Final = 3_900_000
_LATE_EVERY_MS: Final = 600_000
# How much of a long backlog one step reads.
_STEP_MS: Final = 600_000


def appending(target: Appends, events: Sequence[JournalEvent]) -> Callable[[Sequence[JournalEvent]], None]:
    """Return a function that appends these events and those that it gets, or raises why one cannot be stored."""

    def append(more: Sequence[JournalEvent]) -> None:
        for result in target.append([*events, *more]) if events or more else ():
            if result.error is not None:
                raise result.error

    return append


class _Position(msgspec.Struct, frozen=True):
    """The time up to which stored events were returned: those on time, and those that arrived late."""

    near: int
    late: int


Read = Callable[[str, int, int], Iterable[JournalEvent]]
"""Reads the events of a type between two times, in milliseconds."""


def follow_by_time(read: Read, event_types: Collection[str], position: str | None, *, now: int) -> Followed:
    """Follow a store that has no order of arrival by the times at which events happened and were stored."""
    if position is None:
        return Followed([], _encode_position(now, now))
    at = msgspec.json.decode(position, type=_Position)
    end = min(now, at.near + _STEP_MS)
    looks_far = end - at.late >= _LATE_EVERY_MS
    stored_from = (at.late if looks_far else at.near) - _MARGIN_MS
    start = stored_from - (_LATE_MS if looks_far else _MARGIN_MS)
    by_time = (read(event_type, start, end) for event_type in event_types)
    found = merge(*by_time, key=lambda event: (event.timestamp, event.event_id.int))
    events = [event for event in found if (event.received_at or 0) >= stored_from]
    return Followed(events, _encode_position(end, end if looks_far else at.late), has_more=end < now)


def _encode_position(near: int, late: int) -> str:
    return msgspec.json.encode(_Position(near, late)).decode()


class StoredJournal:
    """A journal whose events are in some `Records`, and whose large properties are in blobs.

    Args:
        records: The store of the events.
        overflow: Moves large properties into blobs.
        clock: The time at which events are stored.
        ttl_days: How many days an event is kept; forever by default.
        sender: Where appended events go instead of `records`; reads return an event once it has arrived there.
    """

    def __init__(
        self,
        records: Records,
        overflow: Overflow,
        *,
        clock: Clock = SYSTEM_CLOCK,
        ttl_days: int | None = None,
        sender: Appends | None = None,
    ) -> None:
        self._records = records
        self._overflow = overflow
        self._clock = clock
        self._ttl_days = ttl_days
        self._sender = sender

    def init(self) -> None:
        self._records.init()

    def append(self, events: Sequence[JournalEvent]) -> list[AppendResult]:
        if self._sender is not None:
            return self._sender.append(events)
        entries = [self._entry(event) for event in events]
        return port.append_results(events, entries, self._add([entry for entry in entries if isinstance(entry, Entry)]))

    def prepared(self, events: Sequence[JournalEvent]) -> Callable[[Sequence[JournalEvent]], None]:
        """Return a function that stores these events and those that it gets, or raises why one cannot be stored.

        All of them were checked when they were created. It may run more than once: events that are stored already do
        not change.
        """
        if self._sender is not None:
            return appending(self._sender, events)
        entries = [self._packed(Entry.of(event)) for event in events]

        def store(more: Sequence[JournalEvent]) -> None:
            for result in self._add([*entries, *(self._packed(Entry.of(event)) for event in more)]):
                if isinstance(result, Exception):
                    raise result

        return store

    def _add(self, entries: Sequence[Entry]) -> list[bool | PostroadError]:
        now = self._clock.now().timestamp()
        ttl = None if self._ttl_days is None else int(now) + self._ttl_days * 86_400
        return self._records.add(entries, int(now * 1000), ttl) if entries else []

    def query(
        self, index: str, *, limit: int = 100, cursor: str | None = None, raw: bool = False, **asked: Any
    ) -> Page:
        """Return a page of one index, as `Journal.query` describes it; `asked` are the other fields of a `Query`."""
        check(limit, whole_number(1, port.MAX_LIMIT), "limit", InvalidQuery)
        query = Query(index=index, **asked)
        low, high = query.bounds(cursor)
        found = self._records.read(query, low, high, limit + 1) if low < high else []
        events = found[:limit]
        following = query.cursor(port.place_of(events[-1])) if len(found) > limit else None
        return Page(events if raw else self._unpacked(events), following)

    def latest(self, tenant: str, entity_type: str, entity_id: str) -> JournalEvent | None:
        """Return the last event of an entity, or None; `OverflowMismatch` if its blob is not what was stored."""
        page = self.query("GSI1", tenant=tenant, entity=(entity_type, entity_id), descending=True, limit=1)
        return whole(page.events[0]) if page.events else None

    def follow(self, tenant: str, event_types: Collection[str], position: str | None) -> Followed:
        """Return the next events of these types after the position, in the order of their arrival.

        A position of None means the current end. An event may be returned more than once.
        """
        followed = self._records.follow(tenant, event_types, position)
        if followed is not None:
            return Followed(self._unpacked(followed.events), followed.position, followed.has_more)

        def read(event_type: str, start: int, end: int) -> Iterable[JournalEvent]:
            return port.every_event(self, "GSI4", tenant=tenant, event_type=event_type, start=start, end=end)

        return follow_by_time(read, event_types, position, now=int(self._clock.now().timestamp() * 1000))

    def watch(self, tenant: str, entity: Entity, call: Callable[[bool], None]) -> AbstractContextManager[object] | None:
        """Call `call` for the time of a `with` block, on any thread, when the task ended (True) or may have (False).

        None if the store wakes nobody.
        """
        return None if self._sender is not None else self._records.watch(tenant, entity, call)

    @property
    def keeps_days(self) -> int | None:
        """After how many days events have to be removed; None: never, or the store does it by itself."""
        return None if self._records.expires_itself else self._ttl_days

    def remove(self, events: Sequence[JournalEvent]) -> None:
        """Delete these events, which were read with `raw`, and their blobs."""
        if events:
            self._records.remove(events)
        for event in events:
            self._overflow.forget(event)

    def states(
        self, tenant: str, *, app: str | None, since: int | None, state: str | None = None
    ) -> Iterable[tuple[str, str]] | None:
        """Return the request id and state of each task, or of those in one state; None if the store keeps no states."""
        Query(index="PK" if app is None else "GSI2", tenant=tenant, app=app, start=since)
        return self._records.states(tenant, app=app, since=since, state=state)

    def _unpacked(self, events: Sequence[JournalEvent]) -> list[JournalEvent]:
        unpack = self._overflow.unpack_or_note
        return [unpack(event) if OVERFLOW in event.properties else event for event in events]

    def _entry(self, event: JournalEvent) -> Entry | PostroadError:
        try:
            if not isinstance(event, JournalEvent):
                return InvalidEvent(f"{type(event).__name__} is not a JournalEvent")
            return self._packed(port.checked_entry(event))
        except PostroadError as error:
            return error

    def _packed(self, entry: Entry) -> Entry:
        """Return the entry; large properties are stored in a blob."""
        if len(entry.body) > SMALL_BYTES:
            entry = self._overflow.pack(entry)
            # The blob of an event that is stored already must not change.
            if entry.payload is not None and not self._records.has(entry.event):
                self._overflow.store(entry)
        return entry
