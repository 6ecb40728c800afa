"""The events table on DynamoDB: its keys, its seven indexes, and when items expire."""

from __future__ import annotations

from typing import Final

from postroad.connections.aws_resources import TableIndex, TableShape

KEYS: Final = ("PK", "SK")
INDEX_KEYS: Final = {f"GSI{number}-index": (f"GSI{number}PK", f"GSI{number}SK") for number in range(1, 8)}
"""The partition and sort key of each index, by the index's name; every index holds all attributes."""
EVENTS: Final = TableShape(
    keys=KEYS, indexes={name: TableIndex(keys=keys) for name, keys in INDEX_KEYS.items()}, ttl_attribute="ttl"
)


def table_name(stage: str) -> str:
    """The name of the table that holds the events of a stage."""
    return f"events-{stage}"
