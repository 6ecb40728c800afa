"""Deletes what is done a batch at a time, and compares what was sent with what a consumer has handled."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

import msgspec

from postroad.connections import Database
from postroad.outbox.dialects import Phrases, moment
from postroad.outbox.queries import event_id_of
from postroad.outbox.rows import Reconciliation

# Rows that somebody holds are left for the next time, so that nobody waits.
_PRUNE: Final = """
DELETE FROM {outbox} WHERE id IN (
  SELECT id FROM {outbox} WHERE state IN ('SENT', 'SKIPPED') AND updatedat < {ago}
   ORDER BY updatedat LIMIT ? {skip_locked})
"""
# The calendar of a database has a beginning.
_LONGEST: Final = timedelta(days=365_000)


def prune(database: Database, words: Phrases, *, older_than: timedelta, batch: int) -> int:
    """Delete rows that were sent or skipped longer ago, each batch in a transaction of its own; how many."""
    pruned = 0
    while True:
        deleted = prune_batch(database, words, older_than=older_than, batch=batch)
        pruned += deleted
        if deleted < batch:
            return pruned


def prune_batch(database: Database, words: Phrases, *, older_than: timedelta, batch: int) -> int:
    """Delete one batch of them; how many."""
    seconds = _seconds(older_than)
    with database.transaction() as session:
        return session.change(words(_PRUNE), (f"{seconds:.3f}", batch))


def _seconds(older_than: object) -> float:
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise ValueError(f"older_than: {older_than!r} is not a timedelta of 0 or more")
    return min(older_than, _LONGEST).total_seconds()


_PAGE: Final = 1_000
_SENT: Final = """
SELECT updatedat, id, event_id, eventtype FROM {outbox}
 WHERE state IN ('SENT', 'SKIPPED') AND state = 'SENT' AND updatedat <= {ago}
   AND (updatedat > {moment} OR (updatedat = {moment} AND id > {row_id}))
 ORDER BY updatedat, id LIMIT ?
"""
_KNOWN: Final = "SELECT event_id FROM {outbox} WHERE event_id IN {among}"
_OLDEST: Final = "SELECT min(createdat) FROM {outbox}"
_BEFORE_ALL: Final = ("0001-01-02T00:00:00.000Z", "00000000-0000-0000-0000-000000000000")


class Handled(Protocol):
    """What an inbox is asked."""

    def processed(self, consumer: str, event_ids: Iterable[UUID]) -> set[UUID]:
        """Those of the events that the consumer has handled."""
        ...

    def event_ids(self, consumer: str, *, after: UUID | None = None, limit: int = 1_000) -> list[UUID]:
        """Events that the consumer has handled, in the order of their ids."""
        ...


def reconcile(
    database: Database,
    words: Phrases,
    inbox: Handled,
    *,
    consumer: str,
    older_than: float,
    types: Collection[str] | None,
) -> Reconciliation:
    """Which sent events the consumer has handled and which it lacks; which it handled that were never recorded."""
    ok, missing = 0, []
    for sent in _sent(database, words, older_than, types):
        handled = inbox.processed(consumer, sent)
        ok += len(handled)
        missing += [event_id for event_id in sent if event_id not in handled]
    return Reconciliation(ok, missing, list(_unknown(database, words, inbox, consumer)))


def _sent(database: Database, words: Phrases, older_than: float, types: Collection[str] | None) -> Iterator[list[UUID]]:
    after: tuple[object, object] = _BEFORE_ALL
    while True:
        with database.reading() as session:
            page = session.rows(words(_SENT), (f"{older_than:.3f}", after[0], after[0], str(after[1]), _PAGE))
        if not page:
            return
        after = page[-1][0], page[-1][1]
        ids = (event_id_of(row[2]) for row in page if _is_of(row[3], types))
        yield [event_id for event_id in ids if isinstance(event_id, UUID)]


def _unknown(database: Database, words: Phrases, inbox: Handled, consumer: str) -> Iterator[UUID]:
    with database.reading() as session:
        oldest = session.rows(words(_OLDEST))[0][0]
    after = None
    while page := inbox.event_ids(consumer, after=after, limit=_PAGE):
        after = page[-1]
        with database.reading() as session:
            rows = session.rows(words(_KNOWN), (msgspec.json.encode([str(each) for each in page]).decode(),))
        known = {str(event_id) for (event_id,) in rows}
        yield from (each for each in page if str(each) not in known and not _was_pruned(each, oldest))


def _was_pruned(event_id: UUID, oldest: object) -> bool:
    """Whether the event is older than anything left here, as the time in a UUIDv7 tells; others are taken as newer."""
    if event_id.version != 7:
        return False
    made_ms = event_id.int >> 80
    return oldest is None or made_ms < moment(oldest).timestamp() * 1_000


def _is_of(event_type: str, types: Collection[str] | None) -> bool:
    if types is None:
        return True
    return any(event_type == each or (each.endswith(".*") and event_type.startswith(each[:-1])) for each in types)
