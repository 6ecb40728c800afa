"""Streams on the embedded engine: a record's rowid is its shard and its number, so that a read is a range of rowids."""

from __future__ import annotations

import time
from collections.abc import Sequence

from postroad.arguments import check, seconds_between, whole_number
from postroad.engine import Engine, Transaction, every, one
from postroad.errors import ConfigurationError, InvalidName, StreamNotFound
from postroad.streams import port, shard_log
from postroad.streams.leases import check_own, share
from postroad.streams.port import LATEST, TRIM_HORIZON, PutResult, Record, ShardLease, StreamRecord, StreamTraits
from postroad.streams.shard_log import SCHEMA, Shard

_NAMES = "SELECT name FROM streams ORDER BY name"
_FIND = "SELECT id, retention_us FROM streams WHERE name = ?"
_SHARDS = "SELECT id, place FROM stream_shards WHERE stream = ? ORDER BY place"
_MAKE = "INSERT INTO streams (name, retention_us) VALUES (?, ?)"
_MAKE_SHARD = "INSERT INTO stream_shards (stream, place) VALUES (?, ?)"
_KEEP_LONGER = "UPDATE streams SET retention_us = ? WHERE id = ?"
_FORGET = (
    "DELETE FROM stream_records WHERE id BETWEEN ? AND ?",
    "DELETE FROM stream_positions WHERE shard = ?",
    "DELETE FROM stream_leases WHERE shard = ?",
)
_FORGET_STREAM = (
    "DELETE FROM stream_shards WHERE stream = ?",
    "DELETE FROM stream_workers WHERE stream = ?",
    "DELETE FROM streams WHERE id = ?",
)
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
_FORGET_WORKERS = "DELETE FROM stream_workers WHERE stream = ? AND consumer = ? AND until_us <= ?"
_WORKERS = "SELECT worker FROM stream_workers WHERE stream = ? AND consumer = ?"
_END_ALL = "UPDATE stream_leases SET until_us = 0; DELETE FROM stream_workers;"


class SQLiteStreams:
    """The streams of the engine's file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.prepare(SCHEMA, after_reboot=_end_leases)

    def stream(self, name: str, *, shards: int, retention: float) -> SQLiteStream:
        """Return the stream of this name; create it if it does not exist. A longer retention than before is kept."""
        check(name, port.Name, "name", InvalidName)
        check(shards, port.ShardCount, "shards", ConfigurationError)
        check(retention, port.Retention, "retention", ConfigurationError)
        retention_us = int(retention * 1_000_000)
        stream, found = self._engine.write(lambda tx: _find_or_make(tx, name, shards, retention_us), relieves=True)
        if len(found) != shards:
            raise port.other_shards(name, len(found), shards)
        return SQLiteStream(self._engine, name, stream, found)

    def streams(self) -> list[str]:
        return self._engine.read(lambda connection: [str(name) for (name,) in every(connection, _NAMES)])

    def settings(self, name: str) -> tuple[int, float] | None:
        """Return the stream's number of shards and its retention in seconds; None if it does not exist."""
        row = self._engine.read(lambda connection: one(connection, _FIND, (name,)))
        if row is None:
            return None
        shards = self._engine.read(lambda connection: every(connection, _SHARDS, (row[0],)))
        return len(shards), row[1] / 1_000_000

    def keep_for(self, name: str, retention: float) -> None:
        """Set the retention of an existing stream, in seconds."""
        retention_us = int(retention * 1_000_000)

        def work(tx: Transaction) -> None:
            row = one(tx.connection, _FIND, (name,))
            if row is None:
                raise StreamNotFound(f"there is no stream {name!r}")
            tx.connection.execute(_KEEP_LONGER, (retention_us, row[0]))

        self._engine.write(work)

    def delete_stream(self, name: str) -> None:
        """Remove the stream with its records; deleting twice changes nothing."""
        self._engine.write(lambda tx: _delete(tx, name), removes=True)


class SQLiteStream:
    """One stream; writes inside `engine.transaction()` commit with the others."""

    def __init__(self, engine: Engine, name: str, stream: int, shards: Sequence[Shard]) -> None:
        self.name = name
        self._engine = engine
        self._stream = stream
        self._order = tuple(shards)
        self._shards = {shard.name: shard for shard in shards}
        self.traits = StreamTraits(durable=engine.durable, joins_writes=True, max_record_bytes=port.MAX_DATA_BYTES)

    def shards(self) -> list[str]:
        return list(self._shards)

    def put(self, records: Sequence[Record]) -> list[PutResult]:
        """Store the records, all or none; those of one key in their order."""
        port.check_records(records)
        if not records:
            return []
        targets = [self._order[port.shard_of(record.key, len(self._order))] for record in records]

        def work(tx: Transaction) -> list[int]:
            return shard_log.append(tx, self._order, targets, records, self._engine.now_us())

        numbers = self._engine.write(work)
        return [
            PutResult(shard=shard.name, sequence=port.sequence_text(number))
            for shard, number in zip(targets, numbers, strict=True)
        ]

    def read(self, shard: str, *, after: str, limit: int = 100, wait: float = 0.0) -> list[StreamRecord]:
        check(limit, whole_number(1, port.MAX_READ), "limit")
        check(wait, seconds_between(0, port.MAX_WAIT), "wait")
        source = self._shard(shard)
        start = self._start(source, after)
        found = self._behind(source, start, limit)
        if found or wait <= 0:
            return found
        deadline = time.monotonic() + wait
        with self._engine.listen(source.channel) as listener:
            while True:
                found = self._behind(source, start, limit)
                left = deadline - time.monotonic()
                if found or left <= 0:
                    return found
                listener.wait(left)

    def latest(self, shard: str) -> str:
        return port.sequence_text(self._start(self._shard(shard), LATEST))

    def checkpoint(self, consumer: str, shard: str, sequence: str, *, lease: ShardLease | None = None) -> bool:
        check(consumer, port.Name, "consumer", InvalidName)
        check_own(lease, shard)
        source = self._shard(shard)
        number = source.number(sequence, "sequence")

        def work(tx: Transaction) -> bool:
            if lease is not None:
                held = (source.id, consumer, lease.worker, lease.token, self._engine.monotonic_us())
                if one(tx.connection, _HELD, held) is None:
                    return False
            tx.connection.execute(_CHECKPOINT, (source.id, consumer, number))
            return True

        # A position lost to a power cut only means that records are read again.
        return self._engine.write(work, durable=False)

    def position(self, consumer: str, shard: str) -> str | None:
        check(consumer, port.Name, "consumer", InvalidName)
        source = self._shard(shard)
        row = self._engine.read(lambda connection: one(connection, _POSITION, (source.id, consumer)))
        return None if row is None else port.sequence_text(row[0])

    def lease(self, consumer: str, worker: str, *, seconds: float = 5.0) -> list[ShardLease]:
        check(consumer, port.Name, "consumer", InvalidName)
        check(worker, port.Name, "worker", InvalidName)
        check(seconds, port.LeaseSeconds, "seconds")
        return self._engine.write(lambda tx: self._lease(tx, consumer, worker, int(seconds * 1_000_000)), durable=False)

    def _lease(self, tx: Transaction, consumer: str, worker: str, lasting_us: int) -> list[ShardLease]:
        """Renew, take and give back shards, so that the worker holds its share."""
        now_us = self._engine.monotonic_us()
        until_us = now_us + lasting_us
        tx.connection.execute(_SEEN, (self._stream, consumer, worker, until_us))
        tx.connection.execute(_FORGET_WORKERS, (self._stream, consumer, now_us))
        workers = [name for (name,) in every(tx.connection, _WORKERS, (self._stream, consumer))]
        rows = every(tx.connection, _LEASES, (consumer, now_us, self._stream))
        names = {shard.id: shard.name for shard in self._order}
        held = {names[shard]: holder for shard, holder, _ in rows}
        tokens = {names[shard]: token for shard, holder, token in rows if holder == worker}
        chosen = share(list(self._shards), held, worker=worker, workers=workers)
        leases = []
        for name, shard in self._shards.items():
            if name in tokens:
                tx.connection.execute(_RENEW, (until_us if name in chosen else now_us, shard.id, consumer))
            elif name in chosen:
                # A token must not be given twice, not even across a power cut.
                tx.must_be_durable()
                tokens[name] = one(tx.connection, _GRANT, (shard.id, consumer, worker, until_us))[0]
            if name in chosen:
                leases.append(ShardLease(shard=name, worker=worker, token=int(tokens[name])))
        return leases

    def _start(self, shard: Shard, after: str) -> int:
        if after == TRIM_HORIZON:
            return shard.base
        if after == LATEST:
            return self._engine.read(lambda connection: shard_log.last(connection, shard))
        return shard.number(after, "after")

    def _behind(self, shard: Shard, start: int, limit: int) -> list[StreamRecord]:
        now_us = self._engine.now_us()
        return self._engine.read(lambda connection: shard_log.behind(connection, shard, start, limit, now_us))

    def _shard(self, name: str) -> Shard:
        check(name, port.ShardName, "shard")
        try:
            return self._shards[name]
        except KeyError:
            raise port.shard_missing(self.name, name) from None


def _end_leases(tx: Transaction) -> None:
    """After a reboot no lease holds: its times were those of another run of the machine."""
    tx.connection.execute(_END_ALL)


def _delete(tx: Transaction, name: str) -> None:
    row = one(tx.connection, _FIND, (name,))
    if row is None:
        return
    for shard in [Shard(id=each, place=place) for each, place in every(tx.connection, _SHARDS, (row[0],))]:
        for statement, arguments in zip(_FORGET, ((shard.base, shard.top), (shard.id,), (shard.id,)), strict=True):
            tx.connection.execute(statement, arguments)
    for statement in _FORGET_STREAM:
        tx.connection.execute(statement, (row[0],))


def _find_or_make(tx: Transaction, name: str, shards: int, retention_us: int) -> tuple[int, list[Shard]]:
    row = one(tx.connection, _FIND, (name,))
    if row is None:
        tx.connection.execute(_MAKE, (name, retention_us))
        stream = tx.connection.last_insert_rowid()
        tx.connection.executemany(_MAKE_SHARD, [(stream, place) for place in range(shards)])
    else:
        stream, existing_us = row
        if retention_us > existing_us:
            tx.connection.execute(_KEEP_LONGER, (retention_us, stream))
    return stream, [Shard(id=shard, place=place) for shard, place in every(tx.connection, _SHARDS, (stream,))]
