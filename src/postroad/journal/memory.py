"""The journal in this process's memory, for tests and trials."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence

from postroad.connections.own_memory import OwnMemory
from postroad.errors import PostroadError
from postroad.journal.asking import Question
from postroad.journal.event import JournalEvent
from postroad.journal.places import place_of
from postroad.journal.records import Entry, event_of

Scope = tuple[str, tuple[str, str] | None, str | None, str | None]
"""Tenant, entity, app and event type; None where an index does not ask for it."""


class MemoryRecords:
    """Entries that end with the process, in one sorted list for each thing that can be asked for."""

    def __init__(self) -> None:
        self._lock = OwnMemory()
        self._rows: dict[tuple[str, bytes], tuple[bytes, int, int | None]] = {}
        self._places: defaultdict[Scope, list[bytes]] = defaultdict(list)

    def init(self) -> None:
        """Memory needs no making."""

    def add(self, entries: Sequence[Entry], received_at: int, ttl: int | None) -> list[bool | PostroadError]:
        """Keep each entry: True when it is new, False when it was there."""
        with self._lock:
            return [self._add(entry, received_at, ttl) for entry in entries]

    def has(self, event: JournalEvent) -> bool:
        """Whether an event of this tenant, time and id is there."""
        with self._lock:
            return _key(event) in self._rows

    @property
    def expires_itself(self) -> bool:
        """Nothing leaves memory by itself."""
        return False

    def remove(self, events: Sequence[JournalEvent]) -> None:
        """Forget these events; one that is not there changes nothing."""
        with self._lock:
            for event in events:
                key = _key(event)
                if self._rows.pop(key, None) is not None:
                    for scope in _scopes(event):
                        places = self._places[scope]
                        del places[bisect_left(places, key[1])]
                        if not places:
                            del self._places[scope]

    def read(self, question: Question, low: bytes, high: bytes, limit: int) -> list[JournalEvent]:
        """Up to `limit` events between two places, both of them outside."""
        tenant, entity = question.tenant, question.entity
        scope = (tenant, entity and (entity[0], entity[1]), question.app, question.event_type)
        with self._lock:
            found = self._places.get(scope, [])
            first, last = bisect_right(found, low), bisect_left(found, high)
            some = found[max(first, last - limit) : last][::-1] if question.descending else found[first:last][:limit]
            return [event_of(tenant, place, *self._rows[tenant, place]) for place in some]

    def close(self) -> None:
        """Refuse every use of the entries from now on."""
        self._lock.close()

    def _add(self, entry: Entry, received_at: int, ttl: int | None) -> bool:
        key = _key(entry.event)
        if key in self._rows:
            return False
        self._rows[key] = (entry.body, received_at, ttl)
        for scope in _scopes(entry.event):
            insort(self._places[scope], key[1])
        return True


def _key(event: JournalEvent) -> tuple[str, bytes]:
    return event.tenant_id, place_of(event.timestamp, event.event_id)


def _scopes(event: JournalEvent) -> Iterator[Scope]:
    for entity in (None, (event.entity_type, event.entity_id)):
        for app in (None, event.app):
            for event_type in (None, event.event_type):
                yield event.tenant_id, entity, app, event_type
