"""The keys of an item in the events table, exactly as every sender computes them."""

from __future__ import annotations

from itertools import chain
from typing import Final
from uuid import UUID

from postroad.journal.table import INDEX_KEYS, KEYS

TIMESTAMP: Final = "TIMESTAMP#"
KEY_NAMES: Final = (*KEYS, *chain.from_iterable(INDEX_KEYS.values()))


def partition(tenant: str) -> str:
    """The partition of all that belongs to a tenant: events, leases and jobs."""
    return f"TENANT#{tenant}"


def partition_key(index: str, *, tenant: str, entity: tuple[str, str] | None, app: str | None, kind: str | None) -> str:
    """The partition of one index in which the events asked for lie."""
    if index == "PK":
        return partition(tenant)
    if index == "GSI1" and entity is not None:
        return f"{entity[0]}#{entity[1]}"
    return f"APP#{app}" if index in ("GSI2", "GSI3") else f"EVENT#{kind}"


def sort_prefix(index: str, *, tenant: str, entity: tuple[str, str] | None, app: str | None) -> str:
    """What stands before the time in the sort key of one index; it ends in `TIMESTAMP#`."""
    parts = {
        "PK": "", "GSI1": "{type}#", "GSI2": "", "GSI3": "{type}#{id}#", "GSI4": "TENANT#{tenant}#",
        "GSI5": "TENANT#{tenant}#{type}#{id}#", "GSI6": "TENANT#{tenant}#APP#{app}#",
        "GSI7": "TENANT#{tenant}#APP#{app}#{type}#{id}#",
    }[index]  # fmt: skip
    entity_type, entity_id = entity or ("", "")
    return parts.format(tenant=tenant, app=app, type=entity_type, id=entity_id) + TIMESTAMP


def item_keys(
    *, tenant: str, app: str, event_type: str, entity_type: str, entity_id: str, timestamp: int, event_id: UUID
) -> dict[str, str]:
    """The sixteen keys of an event."""
    entity = f"{entity_type}#{entity_id}"
    time = f"{TIMESTAMP}{timestamp}"
    of_tenant, of_app, of_type = f"TENANT#{tenant}", f"APP#{app}", f"EVENT#{event_type}"
    return {
        "PK": of_tenant,
        "SK": f"{time}#EVENT#{event_id}",
        "GSI1PK": entity,
        "GSI1SK": f"{entity_type}#{time}",
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
