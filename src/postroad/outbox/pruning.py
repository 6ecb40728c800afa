"""Deletes what is done, a batch at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from postroad.connections.database import Database
from postroad.outbox.dialects import Words

# Rows that somebody holds are left for the next time, so that nobody waits.
_PRUNE: Final = """
DELETE FROM {outbox} WHERE id IN (
  SELECT id FROM {outbox} WHERE state IN ('SENT', 'SKIPPED') AND updatedat < {ago}
   ORDER BY updatedat LIMIT ? {skip_locked})
"""
# The calendar of a database has a beginning.
_LONGEST: Final = timedelta(days=365_000)


def prune(database: Database, words: Words, *, older_than: timedelta, batch: int) -> int:
    """Delete rows that were sent or skipped longer ago, each batch in a transaction of its own; how many."""
    pruned = 0
    while True:
        deleted = prune_batch(database, words, older_than=older_than, batch=batch)
        pruned += deleted
        if deleted < batch:
            return pruned


def prune_batch(database: Database, words: Words, *, older_than: timedelta, batch: int) -> int:
    """Delete one batch of them; how many."""
    seconds = _seconds(older_than)
    with database.transaction() as session:
        return session.change(words(_PRUNE), (f"{seconds:.3f}", batch))


def _seconds(older_than: object) -> float:
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise ValueError(f"older_than: {older_than!r} is not a timedelta of 0 or more")
    return min(older_than, _LONGEST).total_seconds()
