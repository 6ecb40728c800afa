"""The limits of a stream and the shard of a key, the same on every adapter."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from postroad.arguments import text
from postroad.errors import ConfigurationError, InvalidInput, StreamNotFound
from postroad.streams.port import LATEST, TRIM_HORIZON, Record

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


def other_shards(name: str, existing: int, wanted: int) -> ConfigurationError:
    """The error for a stream that exists with another number of shards."""
    return ConfigurationError(
        f"shards: stream {name!r} has {existing} shards, not {wanted}",
        field="shards",
        remedy=f"Open it with shards={existing}, or choose another name.",
    )


def check_records(records: object) -> None:
    """Refuse the whole batch naming the entry and the field at fault."""
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
        if not 1 <= len(_text(record.key, f"{where}.key")) <= MAX_KEY_CHARACTERS:
            raise InvalidInput(f"{where}.key: is not 1 to {MAX_KEY_CHARACTERS} characters long", field=f"{where}.key")
        size = _size(record.data, f"{where}.data")
        if size > MAX_DATA_BYTES:
            raise InvalidInput(
                f"{where}.data: {size} bytes is above the limit of {MAX_DATA_BYTES}", field=f"{where}.data"
            )


def shard_missing(stream: str, shard: str) -> StreamNotFound:
    """The error for a shard that the stream does not have."""
    return StreamNotFound(f"stream {stream!r} has no shard {shard!r}", field="shard")


def hash_key(key: str) -> int:
    """The place of a key among 2**128 hashes, as Kinesis computes it."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")


def shard_of(key: str, shards: int) -> int:
    """Which of `shards` equal ranges of hashes the key falls into."""
    return hash_key(key) * shards // _HASHES


def shard_name(index: int) -> str:
    """The name of a stream's shard, as Kinesis writes it."""
    return f"shardId-{index:012d}"


def sequence_text(number: int) -> str:
    """A sequence number as text that sorts like the number."""
    return f"{number:020d}"


def sequence_number(text: object, *, low: int, high: int, field: str) -> int:
    """The number of a sequence of the shard whose numbers lie from `low` to `high`."""
    if isinstance(text, str) and _SEQUENCE.fullmatch(text) is not None and low <= int(text) <= high:
        return int(text)
    raise InvalidInput(
        f"{field}: {text!r} is not a sequence of this shard",
        field=field,
        remedy=f"Give the sequence of a record that was read from this shard, {TRIM_HORIZON!r} or {LATEST!r}.",
    )


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{field}: {type(value).__name__} is not text", field=field)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{field}: holds half a surrogate pair, which no encoding can carry", field=field) from None
    return value


def _size(value: object, field: str) -> int:
    if not isinstance(value, bytes):
        raise InvalidInput(f"{field}: {type(value).__name__} is not bytes", field=field)
    return len(value)
