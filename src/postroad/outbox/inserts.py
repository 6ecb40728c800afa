"""Inserts events on the caller's connection, in the caller's transaction. Nothing here commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from postroad import failpoints
from postroad.connections import Caller, Dialect, Translation, in_async_transaction, marked
from postroad.errors import DuplicateEvent
from postroad.outbox.drafts import Draft
from postroad.outbox.schema import Tables

# Without a conflict target or returned columns, a producer needs no privilege but INSERT.
_ADD: Final = """
INSERT INTO {outbox} (id, eventtype, payload, event_id, tenant, lane) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
# Values are sent as text, since a connection may have its own codecs for uuid and jsonb.
_ADD_ASYNCPG: Final = """
INSERT INTO {outbox} (id, eventtype, payload, event_id, tenant, lane)
VALUES (CAST($1::text AS uuid), $2, CAST($3::text AS jsonb), $4, $5, $6) ON CONFLICT DO NOTHING
"""
_ADD_MANY_POSTGRES: Final = """
INSERT INTO {outbox} (id, eventtype, payload, event_id, tenant, lane)
SELECT (d ->> 0)::uuid, d ->> 1, (d ->> 2)::jsonb, d ->> 0, d ->> 3, d ->> 4
  FROM jsonb_array_elements(CAST(? AS jsonb)) WITH ORDINALITY AS given (d, place) ORDER BY place
ON CONFLICT DO NOTHING
"""
_ADD_MANY_SQLITE: Final = """
INSERT INTO {outbox} (id, eventtype, payload, event_id, tenant, lane)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[0]'), json_extract(value, '$[3]'), json_extract(value, '$[4]')
  FROM json_each(?) WHERE true ORDER BY key
ON CONFLICT DO NOTHING RETURNING id
"""
_TAKE_BACK_SQLITE: Final = "DELETE FROM {outbox} WHERE id IN (SELECT value FROM json_each(?)) RETURNING 1"
# All transactions lock slots in the order of their numbers, so that they do not deadlock.
_LOCK_SLOTS: Final = """
SELECT pg_advisory_xact_lock({space}, slot) FROM (
  SELECT DISTINCT hashtext((k ->> 0) || ':' || CASE WHEN octet_length(k ->> 1) <= 2000 THEN k ->> 1
           ELSE 'h:' || encode(sha256(convert_to(k ->> 1, 'UTF8')), 'hex') END) & 2047 AS slot
    FROM jsonb_array_elements(CAST(? AS jsonb)) AS given (k) ORDER BY slot
) AS slots
"""
_SAVEPOINT: Final = "SAVEPOINT postroad_add_many"
_ROLLBACK: Final = "ROLLBACK TO SAVEPOINT postroad_add_many"
_RELEASE: Final = "RELEASE SAVEPOINT postroad_add_many"
_CHUNK_BYTES: Final = 16_777_216
_ACCEPTED: Final = "psycopg AsyncConnection, asyncpg Connection, SQLAlchemy AsyncConnection or AsyncSession"
_INIT: Final = "Run `postroad outbox init`, then begin the transaction again."
_translated: Final = Translation("outbox", locked="keys", remedy=_INIT)


class Inserts:
    """The inserts of one outbox, for each kind of connection."""

    def __init__(self, tables: Tables) -> None:
        self._dialect = tables.dialect
        self._add_many = tables(_ADD_MANY_POSTGRES if tables.dialect == "postgresql" else _ADD_MANY_SQLITE)
        self._lock = tables(_LOCK_SLOTS)
        self._take_back = tables(_TAKE_BACK_SQLITE)
        add = tables(_ADD)
        self._adds = {"?": add, "%s": add.replace("?", "%s"), "$": tables(_ADD_ASYNCPG)}
        """The insert of one row, by the placeholders of the driver."""

    def add(self, caller: Caller, draft: Draft) -> UUID:
        """Insert one row; after a DuplicateEvent the transaction is still usable."""
        self._check(caller.dialect)
        with _translated:
            added = caller.insert(self._adds[caller.mark], _values(draft))
        return _added(draft, added)

    def add_many(self, caller: Caller, drafts: Sequence[Draft]) -> list[UUID]:
        """Insert all rows or none, in their order."""
        self._check(caller.dialect)
        seen: set[UUID] = set()
        for draft in drafts:
            if draft.event_id in seen:
                raise DuplicateEvent(f"event {draft.event_id} is given twice; none was added")
            seen.add(draft.event_id)
        insert = self._insert_on_postgres if self._dialect == "postgresql" else self._insert_on_sqlite
        with _translated:
            missing = len(drafts) - insert(caller, drafts) if drafts else 0
        if missing:
            raise DuplicateEvent(f"{missing} of {len(drafts)} events are recorded already; none was added")
        failpoints.hit("outbox.add.after_insert")
        return [draft.event_id for draft in drafts]

    def _insert_on_postgres(self, caller: Caller, drafts: Sequence[Draft]) -> int:
        caller.run(_SAVEPOINT)
        keys = sorted({(draft.tenant or "", draft.lane) for draft in drafts})
        caller.rows(marked(self._lock, caller), (_json(keys),))
        insert = marked(self._add_many, caller)
        added = sum(caller.insert(insert, (chunk,)) for chunk in _chunks(drafts))
        if added < len(drafts):
            caller.run(_ROLLBACK)
        caller.run(_RELEASE)
        return added

    def _insert_on_sqlite(self, caller: Caller, drafts: Sequence[Draft]) -> int:
        # No savepoint: if sqlite3 has not begun the transaction yet, releasing one would commit.
        insert = marked(self._add_many, caller)
        added = [row[0] for chunk in _chunks(drafts) for row in caller.rows(insert, (chunk,))]
        if len(added) < len(drafts):
            caller.rows(marked(self._take_back, caller), (_json(added),))
        return len(added)

    async def add_async(self, connection: Any, draft: Callable[[], Draft]) -> UUID:
        """Insert one row as `add` does, on a connection that is awaited."""
        # aiosqlite itself is not supported, only SQLAlchemy on it.
        if type(connection).__module__.partition(".")[0] == "aiosqlite":
            raise TypeError(f"connection: {type(connection).__qualname__} is not one of {_ACCEPTED}")
        caller = await in_async_transaction(connection)
        self._check(caller.dialect)
        row = draft()
        with _translated:
            added = await caller.insert(self._adds[caller.mark], _values(row))
        return _added(row, added)

    def _check(self, dialect: Dialect) -> None:
        if dialect != self._dialect:
            raise TypeError(f"connection: is to {dialect}, and this outbox is on {self._dialect}")


def _values(draft: Draft) -> tuple[Any, ...]:
    # msgspec writes a UUID in a third of the time of str().
    event_id = msgspec.to_builtins(draft.event_id)
    return event_id, draft.event_type, draft.body, event_id, draft.tenant, draft.lane


def _added(draft: Draft, added: int) -> UUID:
    if not added:
        raise DuplicateEvent(f"event {draft.event_id} is recorded already")
    failpoints.hit("outbox.add.after_insert")
    return draft.event_id


def _chunks(drafts: Sequence[Draft]) -> Iterator[str]:
    """Yield the rows as JSON arrays that are small enough for any database."""
    chunk: list[tuple[str | None, ...]] = []
    size = 0
    for draft in drafts:
        chunk.append((str(draft.event_id), draft.event_type, draft.body, draft.tenant, draft.lane))
        size += len(draft.body)
        if size > _CHUNK_BYTES:
            yield _json(chunk)
            chunk, size = [], 0
    if chunk:
        yield _json(chunk)


def _json(values: object) -> str:
    return msgspec.json.encode(values).decode()
