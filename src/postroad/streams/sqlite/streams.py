"""Streams on the embedded engine: a record's rowid is its shard and its number, so that a read is a range of rowids."""

from __future__ import annotations

import time
from collections.abc import Sequence

from postroad.arguments import check, seconds_between, whole_number
from postroad.engine import Engine, Transaction, every, one
from postroad.errors import ConfigurationError, InvalidName, StreamNotFound
from postroad.streams import rules
from postroad.streams.leases import check_own
from postroad.streams.port import LATEST, TRIM_HORIZON, PutResult, Record, ShardLease, StreamRecord, StreamTraits
from postroad.streams.sqlite import leases, log
from postroad.streams.sqlite.log import SCHEMA, Shard

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


class SQLiteStreams:
    """The streams of the engine's file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.prepare(SCHEMA, after_reboot=leases.end_all)

    def stream(self, name: str, *, shards: int, retention: float) -> SQLiteStream:
        """The stream of this name, made when missing. A longer retention than before holds from now on."""
        check(name, rules.Name, "name", InvalidName)
        check(shards, rules.ShardCount, "shards", ConfigurationError)
        check(retention, rules.Retention, "retention", ConfigurationError)
        retention_us = int(retention * 1_000_000)
        stream, found = self._engine.write(lambda tx: _find_or_make(tx, name, shards, retention_us), relieves=True)
        if len(found) != shards:
            raise rules.other_shards(name, len(found), shards)
        return SQLiteStream(self._engine, name, stream, found)

    def settings(self, name: str) -> tuple[int, float] | None:
        """The stream's number of shards and its retention in seconds; None when there is none."""
        row = self._engine.read(lambda connection: one(connection, _FIND, (name,)))
        if row is None:
            return None
        shards = self._engine.read(lambda connection: every(connection, _SHARDS, (row[0],)))
        return len(shards), row[1] / 1_000_000

    def keep_for(self, name: str, retention: float) -> None:
        """Keep the records of an existing stream for this long from now on."""
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

    @property
    def traits(self) -> StreamTraits:
        return StreamTraits(durable=self._engine.durable, joins_writes=True, max_record_bytes=rules.MAX_DATA_BYTES)

    def shards(self) -> list[str]:
        """The names of the shards, parents before children."""
        return list(self._shards)

    def put(self, records: Sequence[Record]) -> list[PutResult]:
        """Store the records, all or none; those of one key in their order."""
        rules.check_records(records)
        if not records:
            return []
        targets = [self._order[rules.shard_of(record.key, len(self._order))] for record in records]

        def work(tx: Transaction) -> list[int]:
            return log.append(tx, self._order, targets, records, self._engine.now_us())

        numbers = self._engine.write(work)
        return [
            PutResult(shard=shard.name, sequence=rules.sequence_text(number))
            for shard, number in zip(targets, numbers, strict=True)
        ]

    def read(self, shard: str, *, after: str, limit: int = 100, wait: float = 0.0) -> list[StreamRecord]:
        """Records behind the sequence `after`, or from 'trim_horizon', or 'latest': what comes from now on."""
        check(limit, whole_number(1, rules.MAX_READ), "limit")
        check(wait, seconds_between(0, rules.MAX_WAIT), "wait")
        source = self._shard(shard)
        start = self._start(source, after)
        found = self._behind(source, start, limit)
        if found or wait <= 0:
            return found
        deadline = time.monotonic() + wait
        with self._engine.listen(source.channel) as ear:
            while True:
                found = self._behind(source, start, limit)
                left = deadline - time.monotonic()
                if found or left <= 0:
                    return found
                ear.wait(left)

    def latest(self, shard: str) -> str:
        """A place to read on from: behind it lies what comes from now on, and nothing else."""
        return rules.sequence_text(self._start(self._shard(shard), LATEST))

    def checkpoint(self, consumer: str, shard: str, sequence: str, *, lease: ShardLease | None = None) -> bool:
        """Remember that `consumer` is done up to `sequence`. With a lease that is no longer held: False, no change."""
        check(consumer, rules.Name, "consumer", InvalidName)
        check_own(lease, shard)
        source = self._shard(shard)
        number = source.number(sequence, "sequence")

        def work(tx: Transaction) -> bool:
            now_us = self._engine.monotonic_us()
            return leases.checkpoint(tx, consumer, source, number, lease=lease, now_us=now_us)

        # A position lost to a power cut only means that records are read again.
        return self._engine.write(work, durable=False)

    def position(self, consumer: str, shard: str) -> str | None:
        """The last checkpoint, or None."""
        check(consumer, rules.Name, "consumer", InvalidName)
        source = self._shard(shard)
        number = self._engine.read(lambda connection: leases.position(connection, consumer, source))
        return None if number is None else rules.sequence_text(number)

    def lease(self, consumer: str, worker: str, *, seconds: float = 5.0) -> list[ShardLease]:
        """Take or renew this worker's share of the shards; a dead worker's are taken over when its time is over."""
        check(consumer, rules.Name, "consumer", InvalidName)
        check(worker, rules.Name, "worker", InvalidName)
        check(seconds, rules.LeaseSeconds, "seconds")
        lasting_us = int(seconds * 1_000_000)

        def work(tx: Transaction) -> list[ShardLease]:
            now_us = self._engine.monotonic_us()
            group = leases.Group(self._stream, consumer, self._order)
            return leases.lease(tx, group, worker, now_us=now_us, until_us=now_us + lasting_us)

        return self._engine.write(work, durable=False)

    def _start(self, shard: Shard, after: str) -> int:
        if after == TRIM_HORIZON:
            return shard.base
        if after == LATEST:
            return self._engine.read(lambda connection: log.last(connection, shard))
        return shard.number(after, "after")

    def _behind(self, shard: Shard, start: int, limit: int) -> list[StreamRecord]:
        now_us = self._engine.now_us()
        return self._engine.read(lambda connection: log.behind(connection, shard, start, limit, now_us))

    def _shard(self, name: str) -> Shard:
        check(name, rules.ShardName, "shard")
        try:
            return self._shards[name]
        except KeyError:
            raise rules.shard_missing(self.name, name) from None


def _delete(tx: Transaction, name: str) -> None:
    row = one(tx.connection, _FIND, (name,))
    if row is None:
        return
    for shard in [Shard(id=found[0], place=found[1]) for found in every(tx.connection, _SHARDS, (row[0],))]:
        for statement, arguments in zip(_FORGET, ((shard.base, shard.top), (shard.id,), (shard.id,)), strict=True):
            tx.connection.execute(statement, arguments)
    for statement in _FORGET_STREAM:
        tx.connection.execute(statement, (row[0],))


def _find_or_make(tx: Transaction, name: str, shards: int, retention_us: int) -> tuple[int, list[Shard]]:
    row = tx.connection.execute(_FIND, (name,)).fetchone()
    if row is None:
        tx.connection.execute(_MAKE, (name, retention_us))
        stream = tx.connection.last_insert_rowid()
        tx.connection.executemany(_MAKE_SHARD, [(stream, place) for place in range(shards)])
    else:
        stream, existing_us = row
        if retention_us > existing_us:
            tx.connection.execute(_KEEP_LONGER, (retention_us, stream))
    return stream, [Shard(id=row[0], place=row[1]) for row in tx.connection.execute(_SHARDS, (stream,))]
