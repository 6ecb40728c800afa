"""Positions and leases of streams on the embedded engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from postroad.engine import Transaction
from postroad.streams.leases import share
from postroad.streams.port import ShardLease
from postroad.streams.sqlite.log import Shard

_POSITION = "SELECT number FROM stream_positions WHERE shard = ? AND consumer = ?"
_CHECKPOINT = """
INSERT INTO stream_positions (shard, consumer, number) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET number = max(number, excluded.number)
"""
_HELD = """
SELECT 1 FROM stream_leases WHERE shard = ? AND consumer = ? AND worker = ? AND token = ? AND until_us > ?
"""
_LEASES = """
SELECT shard, worker, token FROM stream_leases
WHERE consumer = ? AND until_us > ? AND shard IN (SELECT id FROM stream_shards WHERE stream = ?)
"""
_RENEW = "UPDATE stream_leases SET until_us = ? WHERE shard = ? AND consumer = ?"
_GRANT = """
INSERT INTO stream_leases (shard, consumer, worker, token, until_us) VALUES (?, ?, ?, 1, ?)
ON CONFLICT DO UPDATE SET worker = excluded.worker, token = token + 1, until_us = excluded.until_us
RETURNING token
"""
_SEEN = """
INSERT INTO stream_workers (stream, consumer, worker, until_us) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET until_us = excluded.until_us
"""
_FORGET = "DELETE FROM stream_workers WHERE stream = ? AND consumer = ? AND until_us <= ?"
_WORKERS = "SELECT worker FROM stream_workers WHERE stream = ? AND consumer = ?"
_END_ALL = "UPDATE stream_leases SET until_us = 0; DELETE FROM stream_workers;"


@dataclass(frozen=True, slots=True)
class Group:
    """The workers of one consumer on one stream."""

    stream: int
    consumer: str
    shards: Sequence[Shard]


def end_all(tx: Transaction) -> None:
    """After a reboot no lease holds: its times were those of another run of the machine."""
    tx.connection.execute(_END_ALL)


def position(connection: apsw.Connection, consumer: str, shard: Shard) -> int | None:
    """The rowid of the last checkpoint, or None."""
    row: Any = connection.execute(_POSITION, (shard.id, consumer)).fetchone()
    return None if row is None else int(row[0])


def checkpoint(
    tx: Transaction, consumer: str, shard: Shard, number: int, *, lease: ShardLease | None, now_us: int
) -> bool:
    """Move the position forward unless the lease is no longer held."""
    if lease is not None:
        held = (shard.id, consumer, lease.worker, lease.token, now_us)
        if tx.connection.execute(_HELD, held).fetchone() is None:
            return False
    tx.connection.execute(_CHECKPOINT, (shard.id, consumer, number))
    return True


def lease(tx: Transaction, group: Group, worker: str, *, now_us: int, until_us: int) -> list[ShardLease]:
    """Renew, take and give back shards, so that the worker holds its share."""
    workers = _report(tx, group, worker, now_us, until_us)
    rows: list[Any] = tx.connection.execute(_LEASES, (group.consumer, now_us, group.stream)).fetchall()
    by_id = {shard.id: shard for shard in group.shards}
    held = {by_id[row[0]].name: row[1] for row in rows}
    tokens = {by_id[row[0]].name: row[2] for row in rows if row[1] == worker}
    chosen = share([shard.name for shard in group.shards], held, worker=worker, workers=workers)
    leases = []
    for shard in group.shards:
        if shard.name in chosen:
            token = tokens.get(shard.name)
            leases.append(_take(tx, group, shard, worker, token, until_us))
        elif shard.name in tokens:
            tx.connection.execute(_RENEW, (now_us, shard.id, group.consumer))
    return leases


def _report(tx: Transaction, group: Group, worker: str, now_us: int, until_us: int) -> list[str]:
    """Say that this worker lives, and return all that do."""
    tx.connection.execute(_SEEN, (group.stream, group.consumer, worker, until_us))
    tx.connection.execute(_FORGET, (group.stream, group.consumer, now_us))
    rows: list[Any] = tx.connection.execute(_WORKERS, (group.stream, group.consumer)).fetchall()
    return [row[0] for row in rows]


def _take(tx: Transaction, group: Group, shard: Shard, worker: str, token: int | None, until_us: int) -> ShardLease:
    if token is not None:
        tx.connection.execute(_RENEW, (until_us, shard.id, group.consumer))
    else:
        # A token must not be given twice, not even across a power cut.
        tx.must_be_durable()
        grant = (shard.id, group.consumer, worker, until_us)
        rows: list[Any] = tx.connection.execute(_GRANT, grant).fetchall()
        token = int(rows[0][0])
    return ShardLease(shard=shard.name, worker=worker, token=token)
