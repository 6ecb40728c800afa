"""The journal on the embedded engine."""

from postroad.journal.sqlite.records import SQLiteRecords

__all__ = ["SQLiteRecords"]
