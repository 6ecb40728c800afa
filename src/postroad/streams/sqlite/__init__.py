"""Streams on the embedded engine."""

from postroad.streams.sqlite.streams import SQLiteStream, SQLiteStreams

__all__ = ["SQLiteStream", "SQLiteStreams"]
