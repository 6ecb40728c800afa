"""Queues on the embedded engine: one SQLite file, every verb O(log n) in the backlog."""

from postroad.queues.sqlite.queue import SQLiteQueue, embedded_traits
from postroad.queues.sqlite.state import Content, QueueState, content_of
from postroad.queues.sqlite.store import SQLiteQueues

__all__ = ["Content", "QueueState", "SQLiteQueue", "SQLiteQueues", "content_of", "embedded_traits"]
