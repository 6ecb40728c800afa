"""The limits of a stream and the shard of a key, the same on every adapter."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from postroad.errors import ConfigurationError, InvalidInput, InvalidName, StreamNotFound
from postroad.streams.port import LATEST, TRIM_HORIZON, Record

MAX_DATA_BYTES = 1_048_576
MAX_KEY_CHARACTERS = 256
MAX_SHARDS = 1_000
MAX_READ = 10_000
MAX_WAIT = 20.0
_HASHES = 1 << 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_SEQUENCE = re.compile(r"[0-9]{20}")


def check_name(name: object, *, field: str = "name") -> str:
    """Return the name of a stream, consumer or worker, or refuse it."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidName(
            f"{field}: {name!r} is not a name", field=field,
            remedy="Use 1 to 128 letters, digits, '_', '.' or '-'.",
        )  # fmt: skip
    return name


def check_settings(name: object, shards: object, retention: object) -> None:
    """Refuse a stream that cannot be made."""
    check_name(name)
    if not _is_whole(shards, 1, MAX_SHARDS):
        raise ConfigurationError(f"shards: {shards!r} is not a whole number from 1 to {MAX_SHARDS}", field="shards")
    if isinstance(retention, bool) or not isinstance(retention, int | float) or not 0 < retention <= 31_536_000:
        raise ConfigurationError(
            f"retention: {retention!r} is not a number of seconds up to 31,536,000 (a year)", field="retention"
        )


def other_shards(name: str, existing: int, wanted: int) -> ConfigurationError:
    """The error for a stream that exists with another number of shards."""
    return ConfigurationError(
        f"shards: stream {name!r} has {existing} shards, not {wanted}", field="shards",
        remedy=f"Open it with shards={existing}, or choose another name.",
    )  # fmt: skip


def check_records(records: object) -> None:
    """Refuse the whole batch naming the entry and the field at fault."""
    if isinstance(records, str | bytes) or not isinstance(records, Sequence):
        raise InvalidInput(
            f"records: {type(records).__name__} is not a list of records", field="records",
            remedy="Put a list of Record(key, data).",
        )  # fmt: skip
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


def check_shard(shard: object) -> None:
    """Refuse what cannot be the name of a shard."""
    if not isinstance(shard, str):
        raise InvalidInput(
            f"shard: {type(shard).__name__} is not the name of a shard", field="shard",
            remedy="Give one that shards() returned.",
        )  # fmt: skip


def shard_missing(stream: str, shard: str) -> StreamNotFound:
    """The error for a shard that the stream does not have."""
    return StreamNotFound(f"stream {stream!r} has no shard {shard!r}", field="shard")


def check_read(limit: object, wait: object) -> None:
    """Refuse arguments of `read` that are out of range."""
    if not _is_whole(limit, 1, MAX_READ):
        raise InvalidInput(f"limit: {limit!r} is not a whole number from 1 to {MAX_READ}", field="limit")
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= MAX_WAIT:
        raise InvalidInput(f"wait: {wait!r} is not a number of seconds from 0 to {MAX_WAIT:.0f}", field="wait")


def check_lease(consumer: object, worker: object, seconds: object) -> None:
    """Refuse arguments of `lease` that are out of range."""
    check_name(consumer, field="consumer")
    check_name(worker, field="worker")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 3_600:
        raise InvalidInput(f"seconds: {seconds!r} is not a number of seconds up to 3,600", field="seconds")


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
        f"{field}: {text!r} is not a sequence of this shard", field=field,
        remedy=f"Give the sequence of a record that was read from this shard, {TRIM_HORIZON!r} or {LATEST!r}.",
    )  # fmt: skip


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


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
