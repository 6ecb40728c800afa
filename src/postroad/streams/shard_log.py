"""Records of streams on the embedded engine: appended, read as ranges, and removed after the retention."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import apsw

from postroad.engine import Schema, Transaction, moment, one
from postroad.errors import StorageDamaged
from postroad.streams.port import Record, StreamRecord, sequence_number, sequence_text

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
        """Return the name as Kinesis writes it."""
        return f"shardId-{self.place:012d}"

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
        """Return the rowid of a sequence of this shard; refuse any other."""
        return sequence_number(sequence, low=self.base, high=self.top, field=field)


_STATE = """
SELECT shard.last, shard.arrived_us, stream.retention_us
FROM stream_shards AS shard JOIN streams AS stream ON stream.id = shard.stream WHERE shard.id = ?
"""
_ADVANCE = "UPDATE stream_shards SET last = ?, arrived_us = ? WHERE id = ?"
_INSERT = "INSERT INTO stream_records (id, arrived_us, crc, key, data) VALUES (?, ?, ?, ?, ?)"
_ARRIVAL = "SELECT id, arrived_us FROM stream_records WHERE id BETWEEN ? AND ? ORDER BY id LIMIT 1"
_READ = """
SELECT id, arrived_us, crc, CAST(key AS BLOB), data FROM stream_records WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?
"""
_SWEEP = "DELETE FROM stream_records WHERE id BETWEEN ? AND ? AND arrived_us <= ?"
_SWEEP_STEP = 100
# As much as GetRecords of Kinesis returns: a read of many large records must not fill the memory.
_MAX_READ_BYTES = 10_485_760


def append(
    tx: Transaction, shards: Sequence[Shard], targets: Sequence[Shard], records: Sequence[Record], now_us: int
) -> list[int]:
    """Store each record at the end of its shard and return their rowids; remove some expired records."""
    states: dict[Shard, tuple[int, int]] = {}
    rows = []
    for shard, record in zip(targets, records, strict=True):
        # Arrivals never go back when the wall clock does.
        last, arrived_us = states.get(shard) or _state(tx.connection, shard)[:2]
        arrived_us = max(now_us, arrived_us)
        states[shard] = (last + 1, arrived_us)
        rows.append(
            (shard.base + last + 1, arrived_us, _crc(record.key.encode(), record.data), record.key, record.data)
        )
    tx.connection.executemany(_INSERT, rows)
    tx.connection.executemany(_ADVANCE, [(*state, shard.id) for shard, state in states.items()])
    # One more shard, another each time, so that shards without new records are swept too.
    in_turn = shards[sum(number for number, _ in states.values()) % len(shards)]
    step = max(_SWEEP_STEP, 2 * len(records))
    for shard in {*states, in_turn}:
        _, _, retention_us = _state(tx.connection, shard)
        oldest = _arrival(tx.connection, shard, shard.base)
        if oldest is not None and oldest[1] <= now_us - retention_us:
            tx.connection.execute(_SWEEP, (oldest[0], oldest[0] + step - 1, now_us - retention_us))
    for shard in states:
        tx.touch(shard.channel)
    return [row[0] for row in rows]


def last(connection: apsw.Connection, shard: Shard) -> int:
    """Return the rowid of the shard's newest record, even if it has expired."""
    return shard.base + _state(connection, shard)[0]


def behind(connection: apsw.Connection, shard: Shard, start: int, limit: int, now_us: int) -> list[StreamRecord]:
    """Return up to `limit` records behind the rowid `start` that have not expired."""
    _, _, retention_us = _state(connection, shard)
    first = _first_fresh(connection, shard, start + 1, now_us - retention_us)
    if first is None:
        return []
    records: list[StreamRecord] = []
    size = 0
    cursor = connection.execute(_READ, (first, shard.top, limit))
    try:
        for number, arrived_us, crc, key, data in cursor:
            size += len(data)
            if records and size > _MAX_READ_BYTES:
                break
            records.append(_record(shard, number, arrived_us, crc, key, data))
    finally:
        # A cursor left open would keep the log from starting again.
        cursor.close(True)
    return records


def _state(connection: apsw.Connection, shard: Shard) -> tuple[int, int, int]:
    """Return the shard's last number, the time of its last arrival, and the retention of its stream."""
    row: tuple[int, int, int] = one(connection, _STATE, (shard.id,))
    return row


def _first_fresh(connection: apsw.Connection, shard: Shard, start: int, horizon_us: int) -> int | None:
    """Return the first rowid from `start` on whose record arrived after the horizon, by bisection: arrivals grow."""
    found = _arrival(connection, shard, start)
    if found is None or found[1] > horizon_us:
        return None if found is None else found[0]
    low, high = found[0] + 1, last(connection, shard) + 1
    while low < high:
        middle = (low + high) // 2
        _, arrived_us = _arrival(connection, shard, middle) or (middle, horizon_us)
        low, high = (middle + 1, high) if arrived_us <= horizon_us else (low, middle)
    return low


def _arrival(connection: apsw.Connection, shard: Shard, start: int) -> tuple[int, int] | None:
    row: tuple[int, int] | None = one(connection, _ARRIVAL, (start, shard.top))
    return row


def _record(shard: Shard, number: int, arrived_us: int, crc: int, key: bytes, data: bytes) -> StreamRecord:
    if _crc(key, data) != crc:
        raise StorageDamaged(
            f"record {sequence_text(number)} of {shard.name} is not what was put",
            remedy="Restore the file from a backup, or read on behind this sequence.",
        )
    arrived_at = moment(arrived_us)
    return StreamRecord(
        shard=shard.name, sequence=sequence_text(number), key=key.decode(), data=data, arrived_at=arrived_at
    )


def _crc(key: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(key))
