"""What a store does for the journal: keep entries once, and answer queries in the order of their places."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol, Self

import msgspec

from postroad.arguments import check, whole_number
from postroad.errors import InvalidCursor, InvalidQuery, PostroadError
from postroad.journal.checks import Id, is_entity_type, is_event_type, is_simple
from postroad.journal.event import JournalEvent, check_content, check_event, check_names
from postroad.journal.keys import FIRST_PLACE, LAST_PLACE, PLACE_SIZE, event_id_of, place_before, time_of
from postroad.journal.port import Entity

MAX_LIMIT: Final = 1_000
LIMIT: Final = whole_number(1, MAX_LIMIT)
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
_Time = Annotated[int, msgspec.Meta(description="a whole number of milliseconds since 1970")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One query: the events of an index between two times."""

    index: str
    tenant: str
    entity: Entity | None = None
    app: str | None = None
    event_type: str | None = None
    start: int | None = None
    end: int | None = None
    descending: bool = False

    def __post_init__(self) -> None:
        _check(self)

    def bounds(self, cursor: str | None) -> tuple[bytes, bytes]:
        """The places between which the answer lies, both of them outside it."""
        low = FIRST_PLACE if self.start is None else place_before(self.start)
        high = LAST_PLACE if self.end is None else place_before(self.end + 1)
        if cursor is None:
            return low, high
        reached = _opened(self, cursor)
        return (low, min(high, reached)) if self.descending else (max(low, reached), high)

    def cursor(self, place: bytes) -> str:
        """The text with which the same question goes on behind this place, on any adapter."""
        return base64.urlsafe_b64encode(_seal(self, place) + place).rstrip(b"=").decode()


def index_for(*, entity: Entity | None, app: str | None, event_type: str | None) -> str:
    """The index that answers a question with exactly these arguments."""
    given = {"entity": entity, "app": app, "event_type": event_type}
    asked = {name for name, value in given.items() if value is not None}
    return next(index for index, needs in NEEDS.items() if needs == asked)


def _check(question: Question) -> None:
    if question.index not in NEEDS:
        raise InvalidQuery(
            f"index: {question.index!r} is not an index", field="index", remedy=f"Use one of {', '.join(NEEDS)}."
        )
    for name in ("entity", "app", "event_type"):
        _check_needed(question.index, name, getattr(question, name))
    check(question.tenant, Id, "tenant", InvalidQuery)
    check(question.app, Id | None, "app", InvalidQuery)
    _check_entity(question.entity)
    if question.event_type is not None and not is_event_type(question.event_type):
        raise InvalidQuery(f"event_type: {question.event_type!r} is not the type of an event", field="event_type")
    for name in ("start", "end"):
        check(getattr(question, name), _Time | None, name, InvalidQuery)


def _check_needed(index: str, name: str, value: object) -> None:
    needed = name in NEEDS[index]
    if needed is (value is None):
        raise InvalidQuery(f"{name}: index {index} {'needs it' if needed else 'does not take it'}", field=name)


def _check_entity(entity: Any) -> None:
    if entity is None:
        return
    if not isinstance(entity, tuple | list) or len(entity) != 2:
        raise InvalidQuery("entity: is not a pair of type and id", field="entity", remedy='Write ("TASK", "req-123").')
    if not isinstance(entity[0], str) or not is_entity_type(entity[0]):
        raise InvalidQuery(f"entity: {entity[0]!r} is not the type of an entity", field="entity")
    check(entity[1], Id, "entity", InvalidQuery)


def _seal(question: Question, place: bytes) -> bytes:
    """A hash of the question and the place, by which a foreign or altered cursor is known."""
    asked = (
        question.index,
        question.tenant,
        question.entity,
        question.app,
        question.event_type,
        question.start,
        question.end,
        question.descending,
    )
    return hashlib.sha256(msgspec.json.encode(asked) + place).digest()[:_SEAL_BYTES]


def _opened(question: Question, cursor: Any) -> bytes:
    refused = InvalidCursor(
        "cursor: it is not of this query",
        field="cursor",
        remedy="Pass the cursor of the page before unchanged, with the same arguments, or none to begin again.",
    )
    if not isinstance(cursor, str):
        raise refused
    try:
        opened = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise refused from None
    place = opened[_SEAL_BYTES:]
    if len(place) != PLACE_SIZE or opened[:_SEAL_BYTES] != _seal(question, place):
        raise refused
    return place


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a row holds of an event besides its tenant and place."""

    event_type: str
    entity_type: str
    entity_id: str
    app: str
    context: dict[str, Any]
    properties: dict[str, Any]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event that was checked and fits, written down, with the bytes of its blob where it needs one."""

    event: JournalEvent
    body: bytes
    payload: bytes | None = None

    @classmethod
    def of(cls, event: JournalEvent, payload: bytes | None = None) -> Self:
        """The event, written down."""
        # The fields of a Body in their order: a tuple is made in half the time.
        body = (event.event_type, event.entity_type, event.entity_id, event.app, event.context, event.properties)
        return cls(event, _ENCODER.encode(body), payload)


def checked_entry(event: JournalEvent) -> Entry:
    """The event written down, or why it is refused."""
    check_names(event)
    try:
        entry = Entry.of(event) if is_simple(event.context) and is_simple(event.properties) else None
    except (ValueError, TypeError):
        entry = None
    if entry is None:
        # Something in it is no JSON: the slow look finds where.
        check_event(event)
        return Entry.of(event)
    check_content(event)
    return entry


class Records(Protocol):
    """One store of entries."""

    def init(self) -> None:
        """Make the storage where it is missing, or say how it differs from what is needed."""
        ...

    def add(self, entries: Sequence[Entry], received_at: int, ttl: int | None) -> list[bool | PostroadError]:
        """Keep each entry: True when it is new, False when it was there, or why it could not be kept."""
        ...

    def has(self, event: JournalEvent) -> bool:
        """Whether an event of this tenant, time and id is there."""
        ...

    @property
    def expires_itself(self) -> bool:
        """Whether the store removes entries when their `ttl` is over."""
        ...

    def remove(self, events: Sequence[JournalEvent]) -> None:
        """Forget these events; one that is not there changes nothing."""
        ...

    def read(self, question: Question, low: bytes, high: bytes, limit: int) -> list[JournalEvent]:
        """Up to `limit` events between two places, both of them outside."""
        ...


def event_of(tenant: str, place: bytes, body: bytes, received_at: int, ttl: int | None) -> JournalEvent:
    """The event of a row."""
    read = read_body(body)
    return JournalEvent(
        event_type=read.event_type,
        entity_type=read.entity_type,
        entity_id=read.entity_id,
        tenant_id=tenant,
        app=read.app,
        timestamp=time_of(place),
        event_id=event_id_of(place),
        context=read.context,
        properties=read.properties,
        received_at=received_at,
        ttl=ttl,
    )


def read_body(body: bytes) -> Body:
    """What a row holds."""
    return _DECODER.decode(body)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Body)
