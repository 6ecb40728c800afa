"""Queues on the embedded engine: one SQLite file, every verb O(log n) in the backlog."""

from postroad.queues.sqlite.queue import SQLiteQueue
from postroad.queues.sqlite.store import SQLiteQueues

__all__ = ["SQLiteQueue", "SQLiteQueues"]
