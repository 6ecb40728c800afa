"""Questions to the journal: which index, of whom, from when to when; and the cursor that goes on with one."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from postroad.arguments import check, whole_number
from postroad.errors import InvalidCursor, InvalidQuery
from postroad.journal import places
from postroad.journal.checks import Id, is_entity_type, is_event_type
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
        low = places.FIRST if self.start is None else places.before(self.start)
        high = places.LAST if self.end is None else places.before(self.end + 1)
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
        question.index, question.tenant, question.entity, question.app, question.event_type,
        question.start, question.end, question.descending,
    )  # fmt: skip
    return hashlib.sha256(msgspec.json.encode(asked) + place).digest()[:_SEAL_BYTES]


def _opened(question: Question, cursor: Any) -> bytes:
    refused = InvalidCursor(
        "cursor: it is not of this query", field="cursor",
        remedy="Pass the cursor of the page before unchanged, with the same arguments, or none to begin again.",
    )  # fmt: skip
    if not isinstance(cursor, str):
        raise refused
    try:
        opened = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise refused from None
    place = opened[_SEAL_BYTES:]
    if len(place) != places.SIZE or opened[:_SEAL_BYTES] != _seal(question, place):
        raise refused
    return place
