"""The tables of streams on the embedded engine."""

from __future__ import annotations

from dataclasses import dataclass

from postroad.engine.schema import Schema
from postroad.streams import rules

NUMBER_BITS = 40

SCHEMA = Schema(
    "streams",
    (
        """
        CREATE TABLE streams (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            name TEXT NOT NULL UNIQUE,
            retention_us INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE stream_shards (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            stream INTEGER NOT NULL REFERENCES streams (id),
            place INTEGER NOT NULL,
            last INTEGER NOT NULL DEFAULT 0,
            arrived_us INTEGER NOT NULL DEFAULT 0,
            UNIQUE (stream, place)
        ) STRICT;
        CREATE TABLE stream_records (
            id INTEGER PRIMARY KEY,
            arrived_us INTEGER NOT NULL,
            crc INTEGER NOT NULL,
            key TEXT NOT NULL,
            data BLOB NOT NULL
        ) STRICT;
        CREATE TABLE stream_positions (
            shard INTEGER NOT NULL,
            consumer TEXT NOT NULL,
            number INTEGER NOT NULL,
            PRIMARY KEY (shard, consumer)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE stream_leases (
            shard INTEGER NOT NULL,
            consumer TEXT NOT NULL,
            worker TEXT NOT NULL,
            token INTEGER NOT NULL,
            until_us INTEGER NOT NULL,
            PRIMARY KEY (shard, consumer)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE stream_workers (
            stream INTEGER NOT NULL,
            consumer TEXT NOT NULL,
            worker TEXT NOT NULL,
            until_us INTEGER NOT NULL,
            PRIMARY KEY (stream, consumer, worker)
        ) STRICT, WITHOUT ROWID;
        """,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One shard: the rowids of its records lie between `base` and `top`, in the order of their arrival."""

    id: int
    place: int

    @property
    def name(self) -> str:
        return rules.shard_name(self.place)

    @property
    def base(self) -> int:
        return self.id << NUMBER_BITS

    @property
    def top(self) -> int:
        return self.base + (1 << NUMBER_BITS) - 1

    @property
    def channel(self) -> str:
        return f"stream.{self.id}"

    def number(self, sequence: str, field: str) -> int:
        """The rowid behind a sequence of this shard, or the refusal of another one."""
        return rules.sequence_number(sequence, low=self.base, high=self.top, field=field)
