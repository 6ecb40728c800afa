"""Streams: ordered shards read at one's own position, on memory, on the embedded engine and on Kinesis."""

from postroad.streams.port import (
    LATEST,
    TRIM_HORIZON,
    PutResult,
    Record,
    ShardLease,
    Stream,
    StreamRecord,
    StreamTraits,
)

__all__ = ["LATEST", "TRIM_HORIZON", "PutResult", "Record", "ShardLease", "Stream", "StreamRecord", "StreamTraits"]
