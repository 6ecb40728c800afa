"""One entry of the journal: what happened to an entity of a tenant, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self
from uuid import UUID

import msgspec

from postroad.arguments import check
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import InvalidEvent
from postroad.journal import checks
from postroad.journal.events import check_properties, entity_type_of
from postroad.journal.keys import KEY_NAMES, item_keys, new_event_id
from postroad.settings import Settings

DEFAULT_APP: Final = Settings().app
OVERFLOW: Final = "_s3Overflow"
"""The property that points to a blob with the other properties."""
ATTRIBUTES: Final = (
    *KEY_NAMES,
    "entityId",
    "entityType",
    "tenantId",
    "eventType",
    "timestamp",
    "context",
    "properties",
)


class JournalEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened; it is never changed."""

    event_type: str
    entity_type: str
    entity_id: str
    tenant_id: str
    app: str
    timestamp: int
    """Milliseconds since 1970."""
    event_id: UUID
    context: dict[str, Any]
    properties: dict[str, Any]
    received_at: int | None = None
    """When the journal stored it, in milliseconds; None before."""
    ttl: int | None = None
    """When the store may forget it, in seconds since 1970."""
    overflow_error: str | None = None
    """Why the properties that lie in a blob could not be read; the others and the pointer to the blob are there."""

    @classmethod
    def create(
        cls,
        event_type: str,
        *,
        tenant_id: str,
        entity_id: str,
        properties: Mapping[str, Any] | msgspec.Struct,
        entity_type: str | None = None,
        app: str | None = None,
        context: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        event_id: UUID | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """A new event of now, or why it is refused. `properties` may be one of the classes of `journal.events`."""
        moment = int(clock.now().timestamp() * 1000) if timestamp is None else timestamp
        checks.check_timestamp(moment)
        checks.check_event_type(event_type)
        event = cls(
            event_type=event_type,
            entity_type=_entity_type(event_type) if entity_type is None else entity_type,
            entity_id=entity_id,
            tenant_id=tenant_id,
            app=DEFAULT_APP if app is None else app,
            timestamp=moment,
            event_id=new_event_id(moment) if event_id is None else event_id,
            context=checks.json_copy({"source": "system"} if context is None else context, "context"),
            properties=checks.json_copy(properties, "properties"),
        )
        check_names(event)
        check_content(event)
        return event

    def to_item(self) -> dict[str, Any]:
        """The item of the events table, with its keys; once stored, with the time of storing."""
        item: dict[str, Any] = {
            **keys_of(self),
            "entityId": self.entity_id,
            "entityType": self.entity_type,
            "tenantId": self.tenant_id,
            "eventType": self.event_type,
            "timestamp": self.timestamp,
            "context": self.context,
            "properties": self.properties,
        }
        if self.received_at is not None:
            item["receivedAt"] = self.received_at
        if self.ttl is not None:
            item["ttl"] = self.ttl
        return item

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> Self:
        """The event of an item; its id and app are read out of the keys."""
        try:
            return cls(
                event_type=item["eventType"],
                entity_type=item["entityType"],
                entity_id=item["entityId"],
                tenant_id=item["tenantId"],
                app=item["GSI2PK"].removeprefix("APP#"),
                timestamp=item["timestamp"],
                event_id=UUID(item["SK"].rpartition("#")[2]),
                context=item["context"],
                properties=item["properties"],
                received_at=item.get("receivedAt"),
                ttl=item.get("ttl"),
            )
        except KeyError as error:
            raise InvalidEvent(f"{error.args[0]}: is missing", field=error.args[0]) from None
        except (AttributeError, TypeError, ValueError):
            raise InvalidEvent("SK: holds no event id, or GSI2PK no app", field="SK") from None


def keys_of(event: JournalEvent) -> dict[str, str]:
    """The keys of the event's item."""
    return item_keys(
        tenant=event.tenant_id,
        app=event.app,
        event_type=event.event_type,
        entity_type=event.entity_type,
        entity_id=event.entity_id,
        timestamp=event.timestamp,
        event_id=event.event_id,
    )


def check_event(event: JournalEvent, *, packed: bool = False) -> None:
    """Refuse an event that is not whole and sound. `packed`: part of its properties may be in a blob."""
    check_names(event)
    checks.check_json(event.context, "context")
    checks.check_json(event.properties, "properties")
    check_content(event, packed=packed)


def check_names(event: JournalEvent) -> None:
    """Refuse what cannot be the time, type or ids of an event."""
    checks.check_timestamp(event.timestamp)
    if not isinstance(event.event_id, UUID):
        raise InvalidEvent(f"event_id: {event.event_id!r} is not a UUID", field="event_id")
    try:
        # Most events are of a task that was seen a moment ago.
        known = checks.are_names(event.event_type, event.entity_type, event.tenant_id, event.entity_id, event.app)
    except TypeError:
        known = False
    if not known:
        checks.check_event_type(event.event_type)
        check(event.entity_type, checks.EntityType, "entity_type", InvalidEvent)
        for name in ("tenant_id", "entity_id", "app"):
            check(getattr(event, name), checks.Id, name, InvalidEvent)


def check_content(event: JournalEvent, *, packed: bool = False) -> None:
    """Refuse wrong or missing properties, which are JSON, and a pointer to a blob that is not the journal's own."""
    overflowed = OVERFLOW in event.properties
    if overflowed and not packed:
        raise InvalidEvent(
            f"properties.{OVERFLOW}: is the journal's own",
            field=f"properties.{OVERFLOW}",
            remedy="Leave it out; the journal moves large properties to blobs by itself.",
        )
    check_properties(event.event_type, event.properties, entity_id=event.entity_id, partial=overflowed)


def _entity_type(event_type: str) -> str:
    known = entity_type_of(event_type)
    if known is None:
        raise InvalidEvent(
            f"entity_type: {event_type!r} does not tell it",
            field="entity_type",
            remedy="Name the type of the entity, such as entity_type='STORE'.",
        )
    return known
