"""Records on connections that are awaited: those of psycopg and asyncpg, and SQLAlchemy's on either or on aiosqlite."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from postroad.connections.callers import in_transaction
from postroad.errors import NotInTransaction
from postroad.outbox.drafts import Draft
from postroad.outbox.recording import Recording, duplicate, telling_of_missing_tables, values

_ACCEPTED: Final = "psycopg AsyncConnection, asyncpg Connection, SQLAlchemy AsyncConnection or AsyncSession"
_IDLE: Final = 0


async def record_async(recording: Recording, connection: Any, draft: Callable[[], Draft]) -> UUID:
    """Insert the row in the connection's transaction."""
    if _is_psycopg(connection):
        return await _on_psycopg(recording, connection, draft)
    if _is_asyncpg(connection):
        return await _on_asyncpg(recording, connection, draft)
    if hasattr(connection, "run_sync"):
        # SQLAlchemy runs what is written for its synchronous connections on its asynchronous ones.
        added: UUID = await connection.run_sync(lambda inner: recording.add(in_transaction(inner), draft()))
        return added
    raise TypeError(f"connection: {type(connection).__qualname__} is none of {_ACCEPTED}")


def _is_psycopg(connection: object) -> bool:
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(connection, psycopg.AsyncConnection)


def _is_asyncpg(connection: object) -> bool:
    asyncpg = sys.modules.get("asyncpg")
    # A connection that is borrowed from a pool comes in a wrapper of the pool's.
    return asyncpg is not None and isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy)


async def _on_psycopg(recording: Recording, connection: Any, draft: Callable[[], Draft]) -> UUID:
    if connection.autocommit and connection.info.transaction_status == _IDLE:
        raise NotInTransaction("AsyncConnection commits every statement by itself")
    recording.check("postgresql")
    row = draft()
    # The caller's own row factory may give anything.
    async with connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row) as cursor:
        with telling_of_missing_tables:
            await cursor.execute(recording.on_psycopg, values(row))
        if await cursor.fetchone() is None:
            raise duplicate(row)
    return row.event_id


async def _on_asyncpg(recording: Recording, connection: Any, draft: Callable[[], Draft]) -> UUID:
    if not connection.is_in_transaction():
        raise NotInTransaction("asyncpg commits every statement outside of connection.transaction() by itself")
    recording.check("postgresql")
    row = draft()
    with telling_of_missing_tables:
        added = await connection.fetch(recording.on_asyncpg, *values(row))
    if not added:
        raise duplicate(row)
    return row.event_id
