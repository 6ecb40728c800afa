"""Streams: ordered shards read at one's own position, on memory, on the embedded engine and on Kinesis."""

from typing import TYPE_CHECKING

from postroad.lazy import lazy_names
from postroad.streams.port import (
    LATEST,
    TRIM_HORIZON,
    Name as Name,
    PutResult,
    Record,
    ShardLease,
    Stream,
    StreamRecord,
    StreamTraits,
    shard_of as shard_of,
)
from postroad.streams.shard_log import Shard as Shard
from postroad.streams.sqlite import SQLiteStreams as SQLiteStreams

if TYPE_CHECKING:
    from postroad.streams.kinesis import KinesisStreams as KinesisStreams
else:
    __getattr__ = lazy_names(__name__, {"postroad.streams.kinesis": "KinesisStreams"})

__all__ = ["LATEST", "TRIM_HORIZON", "PutResult", "Record", "ShardLease", "Stream", "StreamRecord", "StreamTraits"]
