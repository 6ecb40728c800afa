"""The events table of DynamoDB: its shape, and the keys of an event's item."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from postroad.connections import TableIndex, TableShape

if TYPE_CHECKING:
    from postroad.journal.event import JournalEvent

KEYS: Final = ("PK", "SK")
INDEX_KEYS: Final = {f"GSI{number}-index": (f"GSI{number}PK", f"GSI{number}SK") for number in range(1, 8)}
"""The partition and sort key of each index, by the index's name; every index holds all attributes."""
KEY_NAMES: Final = (*KEYS, *chain.from_iterable(INDEX_KEYS.values()))
EVENTS: Final = TableShape(
    keys=KEYS, indexes={name: TableIndex(keys=keys) for name, keys in INDEX_KEYS.items()}, ttl_attribute="ttl"
)
TIMESTAMP: Final = "TIMESTAMP#"
"""What precedes the time in a sort key."""


def table_name(stage: str) -> str:
    return f"events-{stage}"


def keys_of(event: JournalEvent) -> dict[str, str]:
    """Return the sixteen keys of the event's item."""
    entity = f"{event.entity_type}#{event.entity_id}"
    time = f"{TIMESTAMP}{event.timestamp}"
    of_tenant, of_app, of_type = f"TENANT#{event.tenant_id}", f"APP#{event.app}", f"EVENT#{event.event_type}"
    return {
        "PK": of_tenant,
        "SK": f"{time}#EVENT#{event.event_id}",
        "GSI1PK": entity,
        "GSI1SK": f"{event.entity_type}#{time}",
        "GSI2PK": of_app,
        "GSI2SK": time,
        "GSI3PK": of_app,
        "GSI3SK": f"{entity}#{time}",
        "GSI4PK": of_type,
        "GSI4SK": f"{of_tenant}#{time}",
        "GSI5PK": of_type,
        "GSI5SK": f"{of_tenant}#{entity}#{time}",
        "GSI6PK": of_type,
        "GSI6SK": f"{of_tenant}#{of_app}#{time}",
        "GSI7PK": of_type,
        "GSI7SK": f"{of_tenant}#{of_app}#{entity}#{time}",
    }
