"""The ports of the journal: `Journal` for those who use it, and `Records` for the stores that keep its events.

Leases, dispatch markers and job items are not events. They are `Items` (`backend.items()`) of the same tenant, and on
DynamoDB they are in the same table: the key `f"{tenant}/LEASE#TASK#{request_id}"` becomes `PK = TENANT#{tenant}`,
`SK = LEASE#TASK#{request_id}`, and `f"{tenant}/JOB#{job_id}"` becomes `SK = JOB#{job_id}`. They have no index keys,
and the index `PK` reads `TIMESTAMP#` rows only, so a query never returns them. The fields of a lease or a job are the
item's JSON value; its `version` is the condition of the next write. Where `items().traits.joins_writes`, an append and
a write of items inside `backend.transaction()` commit together.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Protocol, Self, runtime_checkable
from uuid import UUID

import msgspec

from postroad.arguments import check
from postroad.errors import InvalidCursor, InvalidQuery, PostroadError
from postroad.journal.event import (
    Id,
    JournalEvent,
    check_content,
    check_event,
    check_names,
    is_entity_type,
    is_event_type,
    is_simple,
)

_NO_ID: Final = UUID(int=0)
Entity = tuple[str, str]
"""The type and the id of an entity: `("TASK", "req-123")`."""


class AppendResult(msgspec.Struct, frozen=True):
    """The result for one event.

    Attributes:
        event_id: The event.
        ok: Whether it is stored.
        duplicate: Whether it was stored before, and is unchanged.
        error: Why it was refused.
    """

    event_id: UUID
    ok: bool
    duplicate: bool = False
    error: PostroadError | None = None


def append_results(
    events: Sequence[JournalEvent], entries: Iterable[object], outcomes: Iterable[bool | PostroadError]
) -> list[AppendResult]:
    """Return the result of each event: its entry if that is an error, or else the next outcome.

    An outcome is True for a new event, False for a duplicate, or an error.
    """
    results, following = [], iter(outcomes)
    for event, entry in zip(events, entries, strict=True):
        outcome = entry if isinstance(entry, PostroadError) else next(following)
        error = None if isinstance(outcome, bool) else outcome
        event_id = getattr(event, "event_id", _NO_ID)
        results.append(AppendResult(event_id, error is None, outcome is False, error))
    return results


class Page(msgspec.Struct, frozen=True):
    """A page of events.

    Attributes:
        events: The events, in the order of the query.
        cursor: Pass it to get the next page; None on the last one.
    """

    events: list[JournalEvent]
    cursor: str | None


class Followed(msgspec.Struct, frozen=True):
    """The events after a position, the position after them, and whether there are more now."""

    events: list[JournalEvent]
    position: str
    has_more: bool = False


@runtime_checkable
class Appends(Protocol):
    """Where events go: a journal, or a sender on the way to one."""

    def append(self, events: Sequence[JournalEvent]) -> list[AppendResult]:
        """Store each of `events` once, durably. An event that is refused does not affect the others."""
        ...


@runtime_checkable
class Journal(Appends, Protocol):
    """An append-only journal. Every order is (timestamp, event id); a read returns events of one tenant only."""

    def init(self) -> None:
        """Create the storage if it is missing, or raise an error that says how it differs from what is needed."""
        ...

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
        """Return a page of one index: `PK`, or `GSI1` to `GSI7` with the arguments they need.

        Args:
            index: The index.
            tenant: The tenant of the events.
            entity: The type and id of the entity.
            app: The application.
            event_type: The type of the events.
            start: Only events from this moment on, in milliseconds since 1970.
            end: Only events before this moment, in milliseconds since 1970.
            descending: Newest first.
            limit: The size of the page.
            cursor: The `cursor` of the page before.
            raw: Do not read blobs. If they are read, an event whose blob is missing or altered has an `overflow_error`.
        """
        ...

    def latest(self, tenant: str, entity_type: str, entity_id: str) -> JournalEvent | None:
        """Return the last event of the entity `entity_id` of type `entity_type` under `tenant`, or None."""
        ...


MAX_LIMIT: Final = 1_000


def every_event(journal: Journal, index: str, *, limit: int = MAX_LIMIT, **asked: Any) -> Iterator[JournalEvent]:
    """Yield the events of all pages of a query, read `limit` at a time."""
    cursor = None
    while True:
        page = journal.query(index, **asked, limit=limit, cursor=cursor)
        yield from page.events
        if (cursor := page.cursor) is None:
            return


_TIME_BYTES = 6
PLACE_SIZE: Final = _TIME_BYTES + 16
FIRST_PLACE: Final = b""
"""Before every place."""
LAST_PLACE: Final = b"\xff" * PLACE_SIZE
"""After every place."""


def place_of(event: JournalEvent) -> bytes:
    """Return the place of an event: bytes that sort like (timestamp, event id)."""
    return (event.timestamp << 128 | event.event_id.int).to_bytes(PLACE_SIZE, "big")


def place_before(timestamp: int) -> bytes:
    """Return a place after all earlier events and before all events of this millisecond."""
    if timestamp <= 0:
        return FIRST_PLACE
    return LAST_PLACE if timestamp >> 8 * _TIME_BYTES else timestamp.to_bytes(_TIME_BYTES, "big")


def time_of(place: bytes) -> int:
    return int.from_bytes(place[:_TIME_BYTES], "big")


def event_id_of(place: bytes) -> UUID:
    # msgspec makes a UUID of 16 bytes in half the time of UUID(bytes=…).
    return msgspec.convert(place[_TIME_BYTES:], UUID)


NEEDS: Final[dict[str, frozenset[str]]] = {
    "PK": frozenset(),
    "GSI1": frozenset({"entity"}),
    "GSI2": frozenset({"app"}),
    "GSI3": frozenset({"app", "entity"}),
    "GSI4": frozenset({"event_type"}),
    "GSI5": frozenset({"event_type", "entity"}),
    "GSI6": frozenset({"event_type", "app"}),
    "GSI7": frozenset({"event_type", "app", "entity"}),
}
_SEAL_BYTES = 12
Time = Annotated[int, msgspec.Meta(description="a whole number of milliseconds since 1970")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A checked query: the events of an index between two times."""

    index: str
    tenant: str
    entity: Entity | None = None
    app: str | None = None
    event_type: str | None = None
    start: int | None = None
    end: int | None = None
    descending: bool = False

    def __post_init__(self) -> None:
        if self.index not in NEEDS:
            raise InvalidQuery(
                f"index: {self.index!r} is not an index", field="index", remedy=f"Use one of {', '.join(NEEDS)}."
            )
        for name in ("entity", "app", "event_type"):
            needed = name in NEEDS[self.index]
            if needed is (getattr(self, name) is None):
                wrong = "needs it" if needed else "does not accept it"
                raise InvalidQuery(f"{name}: index {self.index} {wrong}", field=name)
        check(self.tenant, Id, "tenant", InvalidQuery)
        check(self.app, Id | None, "app", InvalidQuery)
        _check_entity(self.entity)
        if self.event_type is not None and not is_event_type(self.event_type):
            raise InvalidQuery(f"event_type: {self.event_type!r} is not the type of an event", field="event_type")
        for name in ("start", "end"):
            check(getattr(self, name), Time | None, name, InvalidQuery)

    def bounds(self, cursor: str | None) -> tuple[bytes, bytes]:
        """Return the places between which the answer is; neither belongs to it."""
        low = FIRST_PLACE if self.start is None else place_before(self.start)
        high = LAST_PLACE if self.end is None else place_before(self.end + 1)
        if cursor is None:
            return low, high
        reached = self._place_of(cursor)
        return (low, min(high, reached)) if self.descending else (max(low, reached), high)

    def cursor(self, place: bytes) -> str:
        """Return the text that continues the same query after this place, on any store."""
        return base64.urlsafe_b64encode(self._seal(place) + place).rstrip(b"=").decode()

    def _seal(self, place: bytes) -> bytes:
        """Return a hash of the query and the place, which reveals a foreign or altered cursor."""
        return hashlib.sha256(msgspec.json.encode(astuple(self)) + place).digest()[:_SEAL_BYTES]

    def _place_of(self, cursor: Any) -> bytes:
        refused = InvalidCursor(
            "cursor: it belongs to another query",
            field="cursor",
            remedy="Pass the cursor of the previous page unchanged, with the same arguments, or none to start again.",
        )
        if not isinstance(cursor, str):
            raise refused
        try:
            opened = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise refused from None
        place = opened[_SEAL_BYTES:]
        if len(place) != PLACE_SIZE or opened[:_SEAL_BYTES] != self._seal(place):
            raise refused
        return place


def index_for(*, entity: Entity | None, app: str | None, event_type: str | None) -> str:
    """Return the index that answers a query with exactly these arguments."""
    given = {"entity": entity, "app": app, "event_type": event_type}
    asked = {name for name, value in given.items() if value is not None}
    return next(index for index, needs in NEEDS.items() if needs == asked)


def entity_of(text: str | None) -> Entity | None:
    """Return `TASK#req-123` as a type and an id."""
    if text is None:
        return None
    kind, mark, name = text.partition("#")
    if not mark:
        message = f"entity: {text[:100]!r} is not a type and an id"
        raise InvalidQuery(message, field="entity", remedy="Write TASK#req-123.")
    return kind, name


def milliseconds_of(text: str | None, field: str) -> int | None:
    """Return a time in milliseconds, given as that or as ISO 8601, in UTC unless it names its zone."""
    if text is None:
        return None
    if re.fullmatch(r"-?[0-9]{1,18}", text) is not None:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)
    except (ValueError, OverflowError):
        remedy = "Give milliseconds since 1970, or ISO 8601 such as 2030-01-01T00:00:00Z."
        raise InvalidQuery(f"{field}: {text[:100]!r} is not a time", field=field, remedy=remedy) from None


def _check_entity(entity: Any) -> None:
    if entity is None:
        return
    if not isinstance(entity, tuple | list) or len(entity) != 2:
        raise InvalidQuery("entity: is not a pair of type and id", field="entity", remedy='Write ("TASK", "req-123").')
    if not isinstance(entity[0], str) or not is_entity_type(entity[0]):
        raise InvalidQuery(f"entity: {entity[0]!r} is not the type of an entity", field="entity")
    check(entity[1], Id, "entity", InvalidQuery)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A checked event with its JSON body, and the bytes of its blob if it needs one."""

    event: JournalEvent
    body: bytes
    payload: bytes | None = None

    @classmethod
    def of(cls, event: JournalEvent, payload: bytes | None = None) -> Self:
        # The fields of a Body in their order: a tuple is made in half the time.
        body = (event.event_type, event.entity_type, event.entity_id, event.app, event.context, event.properties)
        return cls(event, _encode(body), payload)


_encode = msgspec.json.Encoder().encode


def checked_entry(event: JournalEvent) -> Entry:
    """Return the entry of an event, or raise `InvalidEvent`."""
    check_names(event)
    try:
        entry = Entry.of(event) if is_simple(event.context) and is_simple(event.properties) else None
    except (ValueError, TypeError):
        entry = None
    if entry is None:
        # Something in it is not JSON; the slower check finds what.
        check_event(event)
        return Entry.of(event)
    check_content(event)
    return entry


class Records(Protocol):
    """A store of entries."""

    def init(self) -> None:
        """Create the storage if it is missing, or raise an error that says how it differs from what is needed."""
        ...

    def add(self, entries: Sequence[Entry], received_at: int, ttl: int | None) -> list[bool | PostroadError]:
        """Store each entry: True if it is new, False if it was stored before, or why it could not be stored."""
        ...

    def has(self, event: JournalEvent) -> bool:
        """Return whether an event of this tenant, time and id is stored."""
        ...

    @property
    def expires_itself(self) -> bool:
        """Whether the store deletes entries by itself when their `ttl` has passed."""
        ...

    def remove(self, events: Sequence[JournalEvent]) -> None:
        """Delete these events; an event that is not stored changes nothing."""
        ...

    def read(self, query: Query, low: bytes, high: bytes, limit: int) -> list[JournalEvent]:
        """Return up to `limit` events between two places; neither place belongs to the answer."""
        ...

    def follow(self, tenant: str, event_types: Collection[str], position: str | None) -> Followed | None:
        """Return the next events in the order of their arrival; None if the store has no such order."""
        ...

    def watch(self, tenant: str, entity: Entity, call: Callable[[bool], None]) -> AbstractContextManager[object] | None:
        """Call `call` for the time of a block when the task ended (True) or may have; None if the store cannot."""
        ...

    def states(
        self, tenant: str, *, app: str | None, since: int | None, state: str | None = None
    ) -> Iterable[tuple[str, str]] | None:
        """Return the request id and state of each task with an event in the app at or after `since`, in this state.

        None if the store keeps no states beside the events.
        """
        ...
