"""The stream: ordered shards that many consumers read at their own position, and the limits of all adapters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

from postroad.arguments import text
from postroad.errors import ConfigurationError, InvalidInput, StreamNotFound

TRIM_HORIZON = "trim_horizon"
LATEST = "latest"
MAX_DATA_BYTES = 1_048_576
MAX_KEY_CHARACTERS = 256
MAX_SHARDS = 1_000
MAX_READ = 10_000
MAX_WAIT = 20.0
_HASHES = 1 << 128
Name = text(r"[A-Za-z0-9_.-]{1,128}", "a name", remedy="Use 1 to 128 letters, digits, '_', '.' or '-'.")
ShardName = Annotated[
    str, Meta(description="the name of a shard", extra={"remedy": "Give one that shards() returned."})
]
ShardCount = Annotated[int, Meta(ge=1, le=MAX_SHARDS)]
_SEQUENCE = re.compile(r"[0-9]{20}")
_YEAR = "a number of seconds up to 31,536,000 (a year)"
Retention = Annotated[float, Meta(gt=0, le=31_536_000, description=_YEAR)]
LeaseSeconds = Annotated[float, Meta(gt=0, le=3_600, description="a number of seconds up to 3,600")]


class Record(msgspec.Struct, frozen=True):
    """A record to put.

    Args:
        key: 1 to 256 characters; records of one key keep their order.
        data: Up to 1 MiB.

    Example:
        stream.put([Record(key="u1", data=b"home")])
    """

    key: str
    data: bytes


class PutResult(msgspec.Struct, frozen=True):
    """Where a record was stored, or the error why it was not.

    Attributes:
        shard: The shard.
        sequence: Its place there.
        error: Why it was not stored.
    """

    shard: str | None
    sequence: str | None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


class StreamRecord(msgspec.Struct, frozen=True):
    """A record as it is read.

    Attributes:
        shard: The shard.
        sequence: Grows within the shard; sequences of different shards cannot be compared.
        key: What orders it.
        data: Its bytes.
        arrived_at: When the stream accepted it.
    """

    shard: str
    sequence: str
    key: str
    data: bytes
    arrived_at: datetime


class ShardLease(msgspec.Struct, frozen=True):
    """The right of one worker to read one shard for one consumer.

    Attributes:
        shard: The shard.
        worker: The worker.
        token: The fencing token; that of a later holder is larger.
    """

    shard: str
    worker: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTraits:
    """What a stream promises.

    Attributes:
        durable: Whether a record that was stored survives a power cut.
        max_record_bytes: The size of the largest record.
    """

    durable: bool
    joins_writes: bool
    """A checkpoint may share one commit with the caller's other writes (`backend.transaction()`)."""
    max_record_bytes: int
    poll_seconds: float = 0.02
    """Seconds to pause after a read of all shards that found nothing, so that others may read too."""


@runtime_checkable
class Stream(Protocol):
    """An ordered log in shards. Every rule of `StreamConformance` holds unless the traits say otherwise."""

    @property
    def name(self) -> str: ...
    @property
    def traits(self) -> StreamTraits: ...

    def shards(self) -> list[str]:
        """Return the names of the shards, parents before children."""
        ...

    def put(self, records: Sequence[Record]) -> list[PutResult]:
        """Store `records`; those of one key in their order. After a failure later ones of its key are `HeldBack`."""
        ...

    def read(self, shard: str, *, after: str, limit: int = 100, wait: float = 0.0) -> list[StreamRecord]:
        """Return records behind a position, or an empty list if none arrived within `wait` seconds.

        Args:
            shard: The name of a shard.
            after: The sequence of a record, 'trim_horizon' for the oldest, or 'latest' for what arrives from now on.
            limit: The most records to return, 1 to 10,000.
            wait: Seconds to wait for the first record, 0 to 20.
        """
        ...

    def latest(self, shard: str) -> str:
        """Return a position of `shard` behind which lies what arrives from now on, and nothing else."""
        ...

    def checkpoint(self, consumer: str, shard: str, sequence: str, *, lease: ShardLease | None = None) -> bool:
        """Store that `consumer` is done with `shard` up to `sequence`; a position never goes back.

        With a `lease` that is no longer held, change nothing and return False.
        """
        ...

    def position(self, consumer: str, shard: str) -> str | None:
        """Return the last checkpoint of `consumer` in `shard`, or None."""
        ...

    def lease(self, consumer: str, worker: str, *, seconds: float = 5.0) -> list[ShardLease]:
        """Take or renew the share of `worker` in the shards of `consumer` for `seconds`; leases of the dead expire."""
        ...


def other_shards(name: str, existing: int, wanted: int) -> ConfigurationError:
    return ConfigurationError(
        f"shards: stream {name!r} has {existing} shards, not {wanted}",
        field="shards",
        remedy=f"Open it with shards={existing}, or choose another name.",
    )


def check_records(records: object) -> None:
    """Refuse the whole batch if one record breaks a limit, naming the entry and the field."""
    if isinstance(records, str | bytes) or not isinstance(records, Sequence):
        raise InvalidInput(
            f"records: {type(records).__name__} is not a list of records",
            field="records",
            remedy="Put a list of Record(key, data).",
        )
    for index, record in enumerate(records):
        where = f"records[{index}]"
        if not isinstance(record, Record):
            raise InvalidInput(f"{where}: {type(record).__name__} is not a Record", field=where)
        if not isinstance(record.key, str):
            raise InvalidInput(f"{where}.key: {type(record.key).__name__} is not text", field=f"{where}.key")
        if not 1 <= len(record.key) <= MAX_KEY_CHARACTERS:
            raise InvalidInput(f"{where}.key: is not 1 to {MAX_KEY_CHARACTERS} characters long", field=f"{where}.key")
        try:
            record.key.encode()
        except UnicodeEncodeError:
            message = f"{where}.key: contains half a surrogate pair, which cannot be encoded"
            raise InvalidInput(message, field=f"{where}.key") from None
        if not isinstance(record.data, bytes):
            raise InvalidInput(f"{where}.data: {type(record.data).__name__} is not bytes", field=f"{where}.data")
        if len(record.data) > MAX_DATA_BYTES:
            message = f"{where}.data: {len(record.data)} bytes is above the limit of {MAX_DATA_BYTES}"
            raise InvalidInput(message, field=f"{where}.data")


def shard_missing(stream: str, shard: str) -> StreamNotFound:
    return StreamNotFound(f"stream {stream!r} has no shard {shard!r}", field="shard")


def hash_key(key: str) -> int:
    """Return the hash of a key, below 2**128, as Kinesis computes it."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")


def shard_of(key: str, shards: int) -> int:
    """Return which of `shards` equal ranges of hashes the key falls into."""
    return hash_key(key) * shards // _HASHES


def sequence_text(number: int) -> str:
    """Return a sequence number as text that sorts like the number."""
    return f"{number:020d}"


def sequence_number(text: object, *, low: int, high: int, field: str) -> int:
    """Return the number of a sequence; refuse it if it is not from `low` to `high`, the numbers of the shard."""
    if isinstance(text, str) and _SEQUENCE.fullmatch(text) is not None and low <= int(text) <= high:
        return int(text)
    raise InvalidInput(
        f"{field}: {text!r} is not a sequence of this shard",
        field=field,
        remedy=f"Give the sequence of a record that was read from this shard, {TRIM_HORIZON!r} or {LATEST!r}.",
    )
