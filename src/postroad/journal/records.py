"""What a store does for the journal: keep entries once, and give them back in the order of their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

import msgspec

from postroad.errors import PostroadError
from postroad.journal.asking import Question
from postroad.journal.checks import is_simple
from postroad.journal.event import JournalEvent, check_content, check_event, check_names
from postroad.journal.places import event_id_of, time_of


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
