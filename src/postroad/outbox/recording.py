"""Inserts rows on the caller's connection, in the caller's transaction, and never commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from postroad.connections.callers import Caller, Dialect
from postroad.errors import DuplicateEvent
from postroad.outbox.drafts import Draft
from postroad.outbox.schema import Names

# No conflict target and nothing of the row returned, so that a producer needs the right to INSERT and no other.
ADD: Final = """
INSERT INTO {outbox} (id, eventtype, payload, event_id, tenant, lane) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING 1
"""
_ADD_MANY_POSTGRES: Final = """
INSERT INTO {outbox} (id, eventtype, payload, event_id, tenant, lane)
SELECT (d ->> 0)::uuid, d ->> 1, (d ->> 2)::jsonb, d ->> 0, d ->> 3, d ->> 4
  FROM jsonb_array_elements(CAST(? AS jsonb)) WITH ORDINALITY AS given (d, place) ORDER BY place
ON CONFLICT DO NOTHING RETURNING 1
"""
_ADD_MANY_SQLITE: Final = """
INSERT INTO {outbox} (id, eventtype, payload, event_id, tenant, lane)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[0]'), json_extract(value, '$[3]'), json_extract(value, '$[4]')
  FROM json_each(?) WHERE true ORDER BY key
ON CONFLICT DO NOTHING RETURNING id
"""
_TAKE_BACK_SQLITE: Final = "DELETE FROM {outbox} WHERE id IN (SELECT value FROM json_each(?)) RETURNING 1"
# Everybody who locks several slots does so in the order of their numbers, so that none waits for another in a circle.
_LOCK_SLOTS: Final = """
SELECT pg_advisory_xact_lock({space}, slot) FROM (
  SELECT DISTINCT hashtext(coalesce(d ->> 3, '') || ':' || (d ->> 4)) & 2047 AS slot
    FROM jsonb_array_elements(CAST(? AS jsonb)) AS given (d) ORDER BY slot
) AS slots
"""
_SAVEPOINT: Final = "SAVEPOINT postroad_add_many"
_ROLLBACK: Final = "ROLLBACK TO SAVEPOINT postroad_add_many"
_RELEASE: Final = "RELEASE SAVEPOINT postroad_add_many"


class Recording:
    """The statements of one outbox, ready for each kind of connection."""

    def __init__(self, names: Names, dialect: Dialect) -> None:
        self._dialect = dialect
        add_many = _ADD_MANY_POSTGRES if dialect == "postgresql" else _ADD_MANY_SQLITE
        texts = {"add": ADD, "add_many": add_many, "lock": _LOCK_SLOTS, "take_back": _TAKE_BACK_SQLITE}
        filled = {verb: names.fill(text) for verb, text in texts.items()}
        self._statements = {mark: {v: t.replace("?", mark) for v, t in filled.items()} for mark in ("?", "%s")}

    def statement(self, mark: str) -> str:
        """The insert of one row, with this mark for each value."""
        return self._statements[mark]["add"]

    def add(self, caller: Caller, draft: Draft) -> UUID:
        """Insert one row; DuplicateEvent leaves the transaction as it was."""
        self.check(caller)
        if not caller.rows(self.statement(caller.mark), values(draft)):
            raise duplicate(draft)
        return draft.event_id

    def add_many(self, caller: Caller, drafts: Sequence[Draft]) -> list[UUID]:
        """Insert all rows or none, in their order."""
        self.check(caller)
        _refuse_repeated(drafts)
        if drafts:
            insert = self._add_many_on_postgres if self._dialect == "postgresql" else self._add_many_on_sqlite
            missing = len(drafts) - insert(caller, _as_json(drafts), len(drafts))
            if missing:
                raise DuplicateEvent(f"{missing} of {len(drafts)} events are recorded already; none was added")
        return [draft.event_id for draft in drafts]

    def _add_many_on_postgres(self, caller: Caller, data: str, wanted: int) -> int:
        statements = self._statements[caller.mark]
        caller.rows(_SAVEPOINT, ())
        caller.rows(statements["lock"], (data,))
        added = len(caller.rows(statements["add_many"], (data,)))
        if added < wanted:
            caller.rows(_ROLLBACK, ())
        caller.rows(_RELEASE, ())
        return added

    def _add_many_on_sqlite(self, caller: Caller, data: str, wanted: int) -> int:
        # No savepoint: where sqlite3 has not begun the transaction yet, releasing it would commit.
        statements = self._statements[caller.mark]
        added = caller.rows(statements["add_many"], (data,))
        if len(added) < wanted:
            caller.rows(statements["take_back"], (msgspec.json.encode([row[0] for row in added]).decode(),))
        return len(added)

    def check(self, caller: Caller) -> None:
        """Refuse a connection to another kind of database than the outbox is on."""
        if caller.dialect != self._dialect:
            raise TypeError(f"connection: is to {caller.dialect}, and this outbox is on {self._dialect}")


def values(draft: Draft) -> tuple[Any, ...]:
    """The values of the insert, in its order."""
    event_id = str(draft.event_id)
    return event_id, draft.event_type, draft.body, event_id, draft.tenant, draft.lane


def duplicate(draft: Draft) -> DuplicateEvent:
    """The error of an event id that is in the table."""
    return DuplicateEvent(f"event {draft.event_id} is recorded already")


def _refuse_repeated(drafts: Sequence[Draft]) -> None:
    seen: set[UUID] = set()
    for draft in drafts:
        if draft.event_id in seen:
            raise DuplicateEvent(f"event {draft.event_id} is given twice; none was added")
        seen.add(draft.event_id)


def _as_json(drafts: Sequence[Draft]) -> str:
    rows = [(str(d.event_id), d.event_type, d.body, d.tenant, d.lane) for d in drafts]
    return msgspec.json.encode(rows).decode()
