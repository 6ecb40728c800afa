"""Streams on Kinesis; positions and leases are stored as items, since Kinesis has none."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from postroad.arguments import check, seconds_between, text, whole_number
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.connections import THROTTLED, Again, AwsConnection, Entry, Make, deliver, make_stream, translated
from postroad.errors import ConfigurationError, InvalidInput, InvalidName, PostroadError, StreamNotFound, Unavailable
from postroad.items import Items
from postroad.streams import port
from postroad.streams.leases import ItemLeases, check_own
from postroad.streams.port import LATEST, TRIM_HORIZON, PutResult, Record, ShardLease, StreamRecord, StreamTraits

MAX_PUT_RECORDS = 500
# Kinesis takes 5 MiB in one call, keys included; this leaves room for base64 and the rest of the request.
MAX_PUT_BYTES = 4_194_304
_MIN_RETENTION_HOURS = 24
# Kinesis allows five reads a second on each shard, for all consumers together.
_POLL_SECONDS = 0.25
_Sequence = text("[0-9]{1,128}", "a sequence of this shard")
_Place = text(r"[0-9]{1,128}|at-[0-9]{1,12}\.[0-9]{1,6}", "a sequence of this shard")
_SEQUENCE_REMEDY = f"Give the sequence of a record that was read from this shard, {TRIM_HORIZON!r} or {LATEST!r}."
# Kinesis has no number for the end of a shard: its position is an iterator, and later the time it was taken at.
_PLACE = "at-"
_MAX_ITERATORS = 1_000


class KinesisStreams:
    """The streams of one AWS account and region."""

    def __init__(self, connection: AwsConnection, items: Items, clock: Clock = SYSTEM_CLOCK) -> None:
        self._connection = connection
        self._items = items
        self._clock = clock

    def stream(self, name: str, *, shards: int = 4, retention: float = 86_400) -> KinesisStream:
        """Return the stream of this name; create it if it does not exist. Retention is in hours, at least 24."""
        check(name, port.Name, "name", InvalidName)
        check(shards, port.ShardCount, "shards", ConfigurationError)
        check(retention, port.Retention, "retention", ConfigurationError)
        client = self._connection.kinesis
        with translated(f"Kinesis stream {name!r}"):
            summary = make_stream(client, name, shards)
            if summary["OpenShardCount"] != shards:
                raise port.other_shards(name, summary["OpenShardCount"], shards)
            hours = max(_MIN_RETENTION_HOURS, -int(-retention // 3600))
            if summary["RetentionPeriodHours"] < hours:
                client.increase_stream_retention_period(StreamName=name, RetentionPeriodHours=hours)
        return self.open(name)

    def open(self, name: str) -> KinesisStream:
        """Return a stream that exists; no call is made."""
        return KinesisStream(self._connection, self._items, self._clock, name)


class KinesisStream:
    """One stream on Kinesis."""

    traits = StreamTraits(
        durable=True, joins_writes=False, max_record_bytes=port.MAX_DATA_BYTES, poll_seconds=_POLL_SECONDS
    )

    def __init__(self, connection: AwsConnection, items: Items, clock: Clock, name: str) -> None:
        self.name = name
        self._connection = connection
        self._clock = clock
        self._leases = ItemLeases(items, clock, name)
        self._lock = threading.Lock()
        self._iterators: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._parents: dict[str, tuple[str, ...]] = {}

    def shards(self) -> list[str]:
        """Return the names of the shards, parents before children: Kinesis numbers them in the order of creation."""
        return sorted(self._list_shards())

    def put(self, records: Sequence[Record]) -> list[PutResult]:
        """Store the records; those of one key in their order, each in a call of its own."""
        port.check_records(records)
        entries = [
            Entry(record, size=len(record.data) + len(record.key.encode()), key=record.key) for record in records
        ]
        outcomes = deliver(entries, self._put, most=MAX_PUT_RECORDS, most_bytes=MAX_PUT_BYTES)
        return [
            PutResult(None, None, outcome) if isinstance(outcome, PostroadError) else outcome for outcome in outcomes
        ]

    def read(self, shard: str, *, after: str, limit: int = 100, wait: float = 0.0) -> list[StreamRecord]:
        check(limit, whole_number(1, port.MAX_READ), "limit")
        check(wait, seconds_between(0, port.MAX_WAIT), "wait")
        if after not in (TRIM_HORIZON, LATEST):
            check(after, _Place, "after", remedy=_SEQUENCE_REMEDY)
        self._check_shard(shard)
        deadline = time.monotonic() + wait
        with self._lock:
            known = self._iterators.pop((shard, after), None)
        iterator: str | None = known or self._iterator(shard, after)
        while iterator is not None:
            records, iterator, behind = self._get(shard, after, iterator, limit)
            left = deadline - time.monotonic()
            if records or (left <= 0 and not behind):
                return records
            # In a gap of the shard Kinesis returns empty pages until it reaches the next record.
            if not behind:
                time.sleep(min(left, _POLL_SECONDS))
        return []

    def latest(self, shard: str) -> str:
        """Return a position behind which lies what arrives from now on, and nothing else.

        It is meant for this object: if no read uses it for five minutes, reading starts at the time it was taken.
        """
        self._check_shard(shard)
        place = f"{_PLACE}{self._clock.now().timestamp():.6f}"
        self._remember(shard, place, self._iterator(shard, LATEST))
        return place

    def checkpoint(self, consumer: str, shard: str, sequence: str, *, lease: ShardLease | None = None) -> bool:
        check(consumer, port.Name, "consumer", InvalidName)
        check_own(lease, shard)
        check(sequence, _Sequence, "sequence", remedy=_SEQUENCE_REMEDY)
        self._check_shard(shard)
        return self._leases.checkpoint(consumer, shard, sequence, lease)

    def position(self, consumer: str, shard: str) -> str | None:
        check(consumer, port.Name, "consumer", InvalidName)
        self._check_shard(shard)
        return self._leases.state(consumer, shard).sequence

    def lease(self, consumer: str, worker: str, *, seconds: float = 5.0) -> list[ShardLease]:
        """Take or renew this worker's share of the shards; a child is leased when its parents are read to the end."""
        check(consumer, port.Name, "consumer", InvalidName)
        check(worker, port.Name, "worker", InvalidName)
        check(seconds, port.LeaseSeconds, "seconds")
        return self._leases.lease(consumer, worker, self._readable(consumer), seconds)

    def workers(self, consumer: str) -> list[str]:
        """Return the workers that asked for shards lately."""
        return self._leases.workers(consumer)

    def _readable(self, consumer: str) -> list[str]:
        """Return the shards to read now: not those read to their end, nor the children of unread ones."""
        parents = self._list_shards()
        ancestors = {parent for above in parents.values() for parent in above}
        drained = {shard for shard in ancestors if self._is_drained(consumer, shard)}
        waiting = {shard for shard, above in parents.items() if any(parent not in drained for parent in above)}
        return [shard for shard in sorted(parents) if shard not in drained and shard not in waiting]

    def _is_drained(self, consumer: str, shard: str) -> bool:
        state = self._leases.state(consumer, shard)
        if state.drained:
            return True
        after = state.sequence or TRIM_HORIZON
        iterator: str | None = self._iterator(shard, after)
        behind = True
        while iterator is not None and behind:
            records, iterator, behind = self._get(shard, after, iterator, 1)
            if records:
                return False
        if iterator is None:
            self._leases.mark_drained(consumer, shard)
        return iterator is None

    def _list_shards(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        with translated(f"Kinesis stream {self.name!r}", self._known()):
            for page in self._connection.kinesis.get_paginator("list_shards").paginate(StreamName=self.name):
                for shard in page["Shards"]:
                    above = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
                    found[shard["ShardId"]] = [parent for parent in above if parent]
        self._parents = {shard: tuple(parent for parent in above if parent in found) for shard, above in found.items()}
        return self._parents

    def _check_shard(self, shard: str) -> None:
        check(shard, port.ShardName, "shard")
        if shard not in self._parents and shard not in self._list_shards():
            raise port.shard_missing(self.name, shard)

    def _put(self, records: list[Record]) -> list[PutResult | Again | PostroadError]:
        entries: list[Any] = [{"PartitionKey": record.key, "Data": record.data} for record in records]
        with translated(f"Kinesis put to {self.name!r}", self._known()):
            answer = self._connection.kinesis.put_records(StreamName=self.name, Records=entries)
        return [self._put_result(entry) for entry in answer["Records"]]

    def _put_result(self, entry: Any) -> PutResult | Again | PostroadError:
        if not entry.get("ErrorCode"):
            return PutResult(entry["ShardId"], entry["SequenceNumber"])
        code = entry["ErrorCode"]
        error = Unavailable(f"Kinesis put to {self.name!r}: {code}: {entry.get('ErrorMessage', '')}")
        return Again(error) if code in THROTTLED or code == "InternalFailure" else error

    def _iterator(self, shard: str, after: str) -> str:
        kinds = {TRIM_HORIZON: "TRIM_HORIZON", LATEST: "LATEST"}
        parameters: dict[str, Any] = {"ShardIteratorType": kinds.get(after, "AFTER_SEQUENCE_NUMBER")}
        if after.startswith(_PLACE):
            moment = datetime.fromtimestamp(float(after.removeprefix(_PLACE)), UTC)
            parameters = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": moment}
        elif after not in kinds:
            parameters["StartingSequenceNumber"] = after
        with translated(f"Kinesis shard {shard!r}", self._known()):
            answer = self._connection.kinesis.get_shard_iterator(StreamName=self.name, ShardId=shard, **parameters)
        return answer["ShardIterator"]

    def _get(self, shard: str, after: str, iterator: str, limit: int) -> tuple[list[StreamRecord], str | None, bool]:
        """Return records, the iterator behind them (None at the end of a closed shard), and whether there are more."""
        with translated(f"Kinesis shard {shard!r}", self._known()):
            try:
                answer: Any = self._connection.kinesis.get_records(ShardIterator=iterator, Limit=limit)
            except self._connection.kinesis.exceptions.ExpiredIteratorException:
                return [], self._iterator(shard, after), True
            except self._connection.kinesis.exceptions.ProvisionedThroughputExceededException:
                return [], iterator, False
        records = [
            StreamRecord(
                shard=shard,
                sequence=raw["SequenceNumber"],
                key=raw["PartitionKey"],
                data=bytes(raw["Data"]),
                arrived_at=raw["ApproximateArrivalTimestamp"].astimezone(UTC),
            )
            for raw in answer["Records"]
        ]
        following = answer.get("NextShardIterator")
        self._remember(shard, records[-1].sequence if records else after, following)
        return records, following, bool(answer.get("MillisBehindLatest"))

    def _remember(self, shard: str, after: str, iterator: str | None) -> None:
        # 'latest' and 'trim_horizon' move on, so an old iterator would be wrong.
        if iterator is None or after in (LATEST, TRIM_HORIZON):
            return
        with self._lock:
            self._iterators[(shard, after)] = iterator
            if len(self._iterators) > _MAX_ITERATORS:
                self._iterators.popitem(last=False)

    def _known(self) -> dict[str, Make]:
        return {
            "ResourceNotFoundException": lambda words: StreamNotFound(f"stream {self.name!r}: {words}"),
            "InvalidArgumentException": lambda words: InvalidInput(f"stream {self.name!r}: {words}", field="after"),
        }
