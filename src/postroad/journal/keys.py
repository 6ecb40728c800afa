"""Where an event stands: its id, its place in every order of the journal, and the keys of its item on DynamoDB."""

from __future__ import annotations

import itertools
import os
from itertools import chain
from typing import Final
from uuid import UUID

import msgspec

from postroad.connections import TableIndex, TableShape
from postroad.events import uuid7_of

KEYS: Final = ("PK", "SK")
INDEX_KEYS: Final = {f"GSI{number}-index": (f"GSI{number}PK", f"GSI{number}SK") for number in range(1, 8)}
"""The partition and sort key of each index, by the index's name; every index holds all attributes."""
EVENTS: Final = TableShape(
    keys=KEYS, indexes={name: TableIndex(keys=keys) for name, keys in INDEX_KEYS.items()}, ttl_attribute="ttl"
)


def table_name(stage: str) -> str:
    """The name of the table that holds the events of a stage."""
    return f"events-{stage}"


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
        "PK": "",
        "GSI1": "{type}#",
        "GSI2": "",
        "GSI3": "{type}#{id}#",
        "GSI4": "TENANT#{tenant}#",
        "GSI5": "TENANT#{tenant}#{type}#{id}#",
        "GSI6": "TENANT#{tenant}#APP#{app}#",
        "GSI7": "TENANT#{tenant}#APP#{app}#{type}#{id}#",
    }[index]
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


_TIME_BYTES = 6
PLACE_SIZE = _TIME_BYTES + 16
FIRST_PLACE = b""
"""Before every place."""
LAST_PLACE = b"\xff" * PLACE_SIZE
"""Behind every place."""
_MAX_TIME = (1 << 8 * _TIME_BYTES) - 1


def place_of(timestamp: int, event_id: UUID) -> bytes:
    """The place of an event, as bytes that sort like (timestamp, event id)."""
    return (timestamp << 128 | event_id.int).to_bytes(PLACE_SIZE, "big")


def place_before(timestamp: int) -> bytes:
    """A place behind everything earlier than this millisecond and before everything in it."""
    if timestamp <= 0:
        return FIRST_PLACE
    return LAST_PLACE if timestamp > _MAX_TIME else timestamp.to_bytes(_TIME_BYTES, "big")


def time_of(place: bytes) -> int:
    """The millisecond of a place."""
    return int.from_bytes(place[:_TIME_BYTES], "big")


def event_id_of(place: bytes) -> UUID:
    """The event id of a place."""
    # msgspec makes a UUID of 16 bytes in half the time of UUID(bytes=…).
    return msgspec.convert(place[_TIME_BYTES:], UUID)


_made = itertools.count()
_COUNTER_MASK = (1 << 32) - 1
_RANDOM_BYTES = 5


def new_event_id(timestamp: int) -> UUID:
    """A new id of this millisecond, greater than every id this process made for it before."""
    # The counter goes on through all milliseconds: a sender may come back to one that it had left.
    counter = next(_made) & _COUNTER_MASK
    return uuid7_of(timestamp, counter << 42 | int.from_bytes(os.urandom(_RANDOM_BYTES), "big"))
