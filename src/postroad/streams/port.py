"""The stream: ordered shards that many consumers read at their own position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

import msgspec

TRIM_HORIZON = "trim_horizon"
LATEST = "latest"


class Record(msgspec.Struct, frozen=True):
    """Data to put; records of one key keep their order."""

    key: str
    data: bytes


class PutResult(msgspec.Struct, frozen=True):
    """Where a record landed, or why it did not."""

    shard: str | None
    sequence: str | None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


class StreamRecord(msgspec.Struct, frozen=True):
    """A record as it is read. `sequence` grows within the shard; compare it with `after`, never across shards."""

    shard: str
    sequence: str
    key: str
    data: bytes
    arrived_at: datetime


class ShardLease(msgspec.Struct, frozen=True):
    """The right of one worker to read one shard for one consumer. A later holder's `token` is larger."""

    shard: str
    worker: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTraits:
    """What a stream promises."""

    durable: bool
    joins_writes: bool
    """A checkpoint may share one commit with the caller's other writes (`backend.transaction()`)."""
    max_record_bytes: int
    poll_seconds: float = 0.02
    """How long to pause between reads of all shards that find nothing, so that others may read too."""


@runtime_checkable
class Stream(Protocol):
    """An ordered log in shards. Every rule of `StreamConformance` holds unless the traits say otherwise."""

    @property
    def name(self) -> str: ...

    @property
    def traits(self) -> StreamTraits: ...

    def shards(self) -> list[str]:
        """The names of the shards, parents before children."""
        ...

    def put(self, records: Sequence[Record]) -> list[PutResult]:
        """Store the records; those of one key in their order. After a failure later ones of its key are `HeldBack`."""
        ...

    def read(self, shard: str, *, after: str, limit: int = 100, wait: float = 0.0) -> list[StreamRecord]:
        """Records behind the sequence `after`, or from 'trim_horizon', or 'latest': what comes from now on."""
        ...

    def latest(self, shard: str) -> str:
        """A place to read on from: behind it lies what comes from now on, and nothing else."""
        ...

    def checkpoint(self, consumer: str, shard: str, sequence: str, *, lease: ShardLease | None = None) -> bool:
        """Remember that `consumer` is done up to `sequence`. With a lease that is no longer held: False, no change.

        A position never goes back."""
        ...

    def position(self, consumer: str, shard: str) -> str | None:
        """The last checkpoint, or None."""
        ...

    def lease(self, consumer: str, worker: str, *, seconds: float = 5.0) -> list[ShardLease]:
        """Take or renew this worker's share of the shards; a dead worker's are taken over when its time is over."""
        ...
