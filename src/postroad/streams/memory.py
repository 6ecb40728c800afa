"""Streams in this process's memory, for tests and trials."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from postroad.clock import Clock
from postroad.connections.own_memory import OwnMemory
from postroad.streams import rules
from postroad.streams.leases import check_own, share
from postroad.streams.port import LATEST, TRIM_HORIZON, PutResult, Record, ShardLease, StreamRecord, StreamTraits

_TRAITS = StreamTraits(durable=False, joins_writes=False, max_record_bytes=rules.MAX_DATA_BYTES)


class MemoryStreams:
    """Streams that end with the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = OwnMemory()
        self._streams: dict[str, MemoryStream] = {}

    def stream(self, name: str, *, shards: int, retention: float) -> MemoryStream:
        """The stream of this name, made when missing. A longer retention than before holds from now on."""
        rules.check_settings(name, shards, retention)
        with self._lock:
            stream = self._streams.setdefault(name, MemoryStream(name, shards, retention, self._clock))
        if (existing := len(stream.shards())) != shards:
            raise rules.other_shards(name, existing, shards)
        stream.keep_for(max(retention, stream.retention))
        return stream

    def settings(self, name: str) -> tuple[int, float] | None:
        """The stream's number of shards and its retention in seconds; None when there is none."""
        with self._lock:
            stream = self._streams.get(name)
        return None if stream is None else (len(stream.shards()), stream.retention)

    def keep_for(self, name: str, retention: float) -> None:
        """Keep the records of an existing stream for this long from now on."""
        with self._lock:
            self._streams[name].keep_for(retention)

    def delete_stream(self, name: str) -> None:
        """Remove the stream with its records; deleting twice changes nothing."""
        with self._lock:
            self._streams.pop(name, None)

    def close(self) -> None:
        """Refuse every use of the streams from now on."""
        self._lock.close()
        for stream in list(self._streams.values()):
            stream.close()


class MemoryStream:
    """One stream of this process."""

    def __init__(self, name: str, shards: int, retention: float, clock: Clock) -> None:
        self.name = name
        self.retention = retention
        self._clock = clock
        self._changed = OwnMemory()
        self._shards = {rules.shard_name(n): _Shard(rules.shard_name(n), (n + 1) << 40) for n in range(shards)}
        self._order = list(self._shards.values())
        self._consumers: defaultdict[str, _Consumer] = defaultdict(_Consumer)

    @property
    def traits(self) -> StreamTraits:
        return _TRAITS

    def keep_for(self, retention: float) -> None:
        """Keep records for this long from now on."""
        with self._changed:
            self.retention = retention

    def shards(self) -> list[str]:
        """The names of the shards, parents before children."""
        return list(self._shards)

    def put(self, records: Sequence[Record]) -> list[PutResult]:
        """Store the records; those of one key in their order."""
        rules.check_records(records)
        with self._changed:
            results = [self._append(record) for record in records]
            self._changed.notify_all()
        return results

    def read(self, shard: str, *, after: str, limit: int = 100, wait: float = 0.0) -> list[StreamRecord]:
        """Records behind the sequence `after`, or from 'trim_horizon', or 'latest': what comes from now on."""
        rules.check_read(limit, wait)
        source = self._shard(shard)
        deadline = time.monotonic() + wait
        with self._changed:
            start = source.start(after)
            while True:
                self._forget_expired(source)
                found = source.behind(start, limit)
                left = deadline - time.monotonic()
                if found or left <= 0:
                    return found
                self._changed.wait(left)

    def latest(self, shard: str) -> str:
        """A place to read on from: behind it lies what comes from now on, and nothing else."""
        with self._changed:
            return rules.sequence_text(self._shard(shard).start(LATEST))

    def checkpoint(self, consumer: str, shard: str, sequence: str, *, lease: ShardLease | None = None) -> bool:
        """Remember that `consumer` is done up to `sequence`. With a lease that is no longer held: False, no change."""
        rules.check_name(consumer, field="consumer")
        check_own(lease, shard)
        self._shard(shard).number(sequence, "sequence")
        with self._changed:
            state = self._consumers[consumer]
            if lease is not None and not state.holds(lease, self._clock.monotonic()):
                return False
            state.positions[shard] = max(state.positions.get(shard, ""), sequence)
        return True

    def position(self, consumer: str, shard: str) -> str | None:
        """The last checkpoint, or None."""
        rules.check_name(consumer, field="consumer")
        self._shard(shard)
        with self._changed:
            return self._consumers[consumer].positions.get(shard)

    def lease(self, consumer: str, worker: str, *, seconds: float = 5.0) -> list[ShardLease]:
        """Take or renew this worker's share of the shards; a dead worker's are taken over when its time is over."""
        rules.check_lease(consumer, worker, seconds)
        with self._changed:
            now = self._clock.monotonic()
            return self._consumers[consumer].lease(list(self._shards), worker, now, now + seconds)

    def close(self) -> None:
        """Refuse every use from now on, also to those who wait for records."""
        self._changed.close()

    def _append(self, record: Record) -> PutResult:
        shard = self._order[rules.shard_of(record.key, len(self._order))]
        self._forget_expired(shard)
        shard.count += 1
        sequence = rules.sequence_text(shard.base + shard.count)
        now = self._clock.now()
        arrived_at = max(now, shard.records[-1].arrived_at) if shard.records else now
        shard.records.append(
            StreamRecord(shard=shard.name, sequence=sequence, key=record.key, data=record.data, arrived_at=arrived_at)
        )
        return PutResult(shard=shard.name, sequence=sequence)

    def _forget_expired(self, shard: _Shard) -> None:
        horizon = self._clock.now() - timedelta(seconds=self.retention)
        expired = 0
        while expired < len(shard.records) and shard.records[expired].arrived_at <= horizon:
            expired += 1
        del shard.records[:expired]

    def _shard(self, name: str) -> _Shard:
        rules.check_shard(name)
        try:
            return self._shards[name]
        except KeyError:
            raise rules.shard_missing(self.name, name) from None


@dataclass(slots=True)
class _Shard:
    name: str
    base: int
    count: int = 0
    records: list[StreamRecord] = field(default_factory=list)

    def number(self, sequence: str, where: str) -> int:
        return rules.sequence_number(sequence, low=self.base, high=self.base + (1 << 40) - 1, field=where)

    def start(self, after: str) -> int:
        if after == TRIM_HORIZON:
            return self.base
        return self.base + self.count if after == LATEST else self.number(after, "after")

    def behind(self, start: int, limit: int) -> list[StreamRecord]:
        first = self.base + self.count - len(self.records) + 1
        index = max(0, start - first + 1)
        return self.records[index : index + limit]


@dataclass(slots=True)
class _Consumer:
    positions: dict[str, str] = field(default_factory=dict)
    leases: dict[str, tuple[ShardLease, float]] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    last_token: int = 0

    def holds(self, lease: ShardLease, now: float) -> bool:
        held, until = self.leases.get(lease.shard, (None, 0.0))
        return held == lease and until > now

    def lease(self, shards: list[str], worker: str, now: float, until: float) -> list[ShardLease]:
        self.seen = {name: alive for name, alive in self.seen.items() if alive > now} | {worker: until}
        self.leases = {shard: held for shard, held in self.leases.items() if held[1] > now}
        holders = {shard: held.worker for shard, (held, _) in self.leases.items()}
        chosen = share(shards, holders, worker=worker, workers=self.seen)
        for shard in [shard for shard, holder in holders.items() if holder == worker and shard not in chosen]:
            del self.leases[shard]
        return [self._grant(shard, worker, until) for shard in chosen]

    def _grant(self, shard: str, worker: str, until: float) -> ShardLease:
        if shard in self.leases:
            lease = self.leases[shard][0]
        else:
            self.last_token += 1
            lease = ShardLease(shard=shard, worker=worker, token=self.last_token)
        self.leases[shard] = (lease, until)
        return lease
