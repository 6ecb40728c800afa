"""The inbox: which events a consumer has handled, kept in the database in which their effects are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, Self
from uuid import UUID

from msgspec import Meta

from postroad import failpoints
from postroad.arguments import check, refusal
from postroad.connections import (
    AsyncCaller,
    Caller,
    Database,
    Dialect,
    Row,
    check_identifier,
    dialect_of,
    file_database,
    in_async_transaction,
    in_transaction,
    is_deadlock,
    lacks_tables,
    marked,
    path_of,
    postgres_database,
)
from postroad.errors import (
    ConfigurationError,
    DeadlockDetected,
    InvalidInput,
    NotInTransaction,
    PostroadError,
    SchemaMismatch,
)
from postroad.events import as_uuid
from postroad.inbox.records import REMEDY, Effect, Key, Records
from postroad.inbox.statements import statements
from postroad.inbox.telemetry import tell_conflict
from postroad.receiving import completed, settled

RETENTION: Final = timedelta(days=30)
"""How long an inbox remembers when nobody says."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The longest times, in seconds, that an event may lie on its way to a consumer."""

    queue_retention: float = 345_600
    dead_letter_retention: float = 1_209_600
    outbox_horizon: float = 16_672
    redrive_delay: float = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigurationError(
                    f"{field.name}: {value!r} is not a number of seconds of 0 or more", field=field.name
                )

    @property
    def required(self) -> float:
        """How long after its first handling a copy of an event may arrive."""
        return self.queue_retention + self.dead_letter_retention + self.outbox_horizon + self.redrive_delay


def check_windows(retention: timedelta | None, windows: Windows) -> None:
    """Refuse a retention under which the inbox forgets events that may still come again; None forgets nothing."""
    if retention is None:
        return
    kept = retention.total_seconds()
    if kept < windows.required:
        raise ConfigurationError(
            f"retention: the inbox remembers for {kept:.0f} s, but copies may arrive for {windows.required:.0f} s",
            field="retention",
            remedy="Give the inbox a longer retention, or Windows the true figures of this queue.",
        )


_LONGEST_TABLE = 40
_LONGEST_CONSUMER = 200

_Retention = Annotated[timedelta | None, Meta(description="a timedelta above zero, nor None")]


class Inbox:
    """Remembers events by consumer and id. `first_time` writes on the caller's connection, all else on its own."""

    def __init__(
        self,
        dialect: Dialect,
        database: Database | None,
        *,
        table: str,
        schema: str | None,
        retention: timedelta | None,
    ) -> None:
        check_identifier(table, "table", most=_LONGEST_TABLE)
        if schema is not None:
            check_identifier(schema, "schema")
        check(retention, _Retention, "retention", ConfigurationError)
        if retention is not None and retention <= timedelta(0):
            raise refusal(retention, _Retention, "retention", ConfigurationError)
        self.retention = retention
        self._dialect = dialect
        self._database = database
        self._sql = statements(dialect, table=table, schema=schema)

    @classmethod
    def postgres(
        cls,
        dsn: str | None = None,
        *,
        table: str = "inbox",
        schema: str = "public",
        retention: timedelta | None = RETENTION,
    ) -> Self:
        """An inbox on PostgreSQL. Without a DSN it can only be used with connections that callers bring."""
        database = None if dsn is None else postgres_database(dsn, schema_remedy=REMEDY)
        return cls("postgresql", database, table=table, schema=schema, retention=retention)

    @classmethod
    def sqlite(
        cls,
        path: str | Path | None = None,
        *,
        table: str = "inbox",
        retention: timedelta | None = RETENTION,
    ) -> Self:
        """An inbox in a SQLite file. Without a path it can only be used with connections that callers bring."""
        database = None if path is None else file_database(path, schema_remedy=REMEDY)
        return cls("sqlite", database, table=table, schema=None, retention=retention)

    @classmethod
    def open(
        cls,
        dsn: str,
        *,
        table: str = "inbox",
        schema: str = "public",
        retention: timedelta | None = RETENTION,
    ) -> Self:
        """The inbox at a DSN: `postgresql://…` or `sqlite:///path`; SQLite has no schemas."""
        if dialect_of(dsn) == "sqlite":
            return cls.sqlite(path_of(dsn), table=table, retention=retention)
        return cls.postgres(dsn, table=table, schema=schema, retention=retention)

    def init(self) -> int:
        """Create or migrate the tables; the version they have then. Running it twice, or at once, is safe."""
        return self._records().init()

    def check(self) -> None:
        """Answer quietly when the tables are there, of this version and can be written, else raise why not."""
        self._records().check()

    @property
    def owns_connections(self) -> bool:
        """Whether it has connections of its own, for all that is more than `first_time`."""
        return self._database is not None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A psycopg or sqlite3 connection in a transaction that commits at the end; an exception rolls it back."""
        inner: BaseException | None = None
        try:
            with self._own().transaction() as session:
                caller = in_transaction(session.connection)
                try:
                    yield session.connection
                    refuse_ended(caller)
                except BaseException as error:
                    inner = error
                    raise
        except PostroadError:
            # What the caller's own statements raised stays what it was.
            if inner is not None:
                raise inner from None
            raise

    def first_time(
        self, connection: Any, consumer: str, event_id: UUID | str, *, fingerprint: str | None = None
    ) -> bool:
        """Remember the event in the caller's transaction; False when it was remembered before.

        A copy that is being handled elsewhere is waited for. A rollback makes it the first time again.
        """
        key = _key(consumer, event_id)
        return completed(self._first_time(in_transaction(connection), key, fingerprint))

    async def first_time_async(
        self, connection: Any, consumer: str, event_id: UUID | str, *, fingerprint: str | None = None
    ) -> bool:
        """Do what `first_time` does on a connection that is awaited.

        Args:
            connection: A psycopg AsyncConnection, an asyncpg or aiosqlite Connection, or SQLAlchemy's AsyncConnection
                or AsyncSession, in a transaction.
            consumer: Whose effects they are, in up to 200 printable characters.
            event_id: The event.
            fingerprint: Of the event's content: a copy with another one is reported in the log.
        """
        key = _key(consumer, event_id)
        return await self._first_time(await in_async_transaction(connection), key, fingerprint)

    async def _first_time(self, caller: Caller | AsyncCaller, key: Key, fingerprint: str | None) -> bool:
        self._check_dialect(caller)
        try:
            first = bool(await settled(caller.rows(marked(self._sql.first, caller), (*key, fingerprint))))
            failpoints.hit("inbox.after_insert")
            if not first and fingerprint is not None:
                stored: list[Row] = await settled(caller.rows(marked(self._sql.fingerprint, caller), key))
                if stored and stored[0][0] not in (None, fingerprint):
                    tell_conflict(*key)
        except Exception as error:
            if lacks_tables(error):
                raise SchemaMismatch("the tables of the inbox are missing", remedy=REMEDY) from error
            if is_deadlock(error):
                raise DeadlockDetected("another transaction waits for what this one handles") from error
            raise
        return first

    async def try_to_write_async(self, connection: Any) -> None:
        """Raise what keeps the caller's awaited transaction from remembering events; nothing is written."""
        caller = await in_async_transaction(connection)
        await caller.rows(marked(self._sql.try_to_write, caller), ())

    def try_to_write(self, connection: Any) -> None:
        """Raise what keeps the caller's transaction from remembering events; nothing is written."""
        caller = in_transaction(connection)
        caller.run(marked(self._sql.try_to_write, caller))

    def begin(self, consumer: str, event_id: UUID | str, *, lease: float = 60.0) -> Effect:
        """Write down that an effect outside is about to be made, before it is made."""
        return self._records().begin(_key(consumer, event_id), _checked_lease(lease))

    def renew(self, effect: Effect, *, lease: float = 60.0) -> bool:
        """Keep the effect for `lease` seconds from now; False when it is no longer this attempt's."""
        return self._records().change(self._sql.renew, effect, _checked_lease(lease))

    def finish(self, effect: Effect) -> bool:
        """Write down that the effect was made; False for a late attempt, whose token is no longer the newest."""
        return self._records().change(self._sql.finish, effect)

    def forget(self, effect: Effect) -> bool:
        """Write down that the effect surely was not made: the next `begin` is new. False for a late attempt."""
        return self._records().change(self._sql.forget, effect)

    def abandon(self, effect: Effect) -> bool:
        """End the lease and leave the outcome unknown, for `unknown` to list. False for a late attempt."""
        return self._records().change(self._sql.abandon, effect)

    def unknown(self, *, consumer: str | None = None, limit: int = 50) -> list[Effect]:
        """The effects that were begun and never finished, and that nobody is making now, oldest first."""
        return self._records().unknown(consumer, _checked_count(limit, "limit"))

    def resolve(self, consumer: str, event_id: UUID | str, *, done: bool, by: str, reason: str) -> bool:
        """Settle an unknown effect by hand and write down who did and why; False when there is none to settle."""
        for field, text in (("by", by), ("reason", reason)):
            if not text.strip():
                raise ValueError(f"{field}: is empty; say who settles the effect, and why")
        return self._records().resolve(_key(consumer, event_id), done=done, by=by, reason=reason)

    def processed(self, consumer: str, event_ids: Iterable[UUID | str]) -> set[UUID]:
        """Those of the events that the consumer has handled."""
        return self._records().processed(_checked_consumer(consumer), [str(as_uuid(each)) for each in event_ids])

    def event_ids(self, consumer: str, *, after: UUID | None = None, limit: int = 1_000) -> list[UUID]:
        """Events that the consumer has handled, in the order of their ids, behind `after`."""
        return self._records().event_ids(_checked_consumer(consumer), after, _checked_count(limit, "limit"))

    def prune(self, *, batch: int = 1_000) -> int:
        """Remove what was handled longer ago than the retention, in transactions of `batch`; how many there were."""
        pruned = 0
        while (removed := self.prune_batch(batch)) == batch:
            pruned += removed
        return pruned + removed

    def prune_batch(self, batch: int) -> int:
        """Remove one batch of it; how many there were. Without a retention nothing is ever removed."""
        if self.retention is None:
            return 0
        return self._records().prune(self.retention.total_seconds(), _checked_count(batch, "batch"))

    def close(self) -> None:
        """Close the inbox's own connections; it opens them again when it is used."""
        if self._database is not None:
            self._database.close()

    def _own(self) -> Database:
        if self._database is None:
            raise ConfigurationError(
                "dsn: this inbox has no connections of its own",
                field="dsn",
                remedy="Give Inbox.postgres a DSN or Inbox.sqlite a path.",
            )
        return self._database

    def _records(self) -> Records:
        return Records(self._own(), self._sql)

    def _check_dialect(self, caller: Caller | AsyncCaller) -> None:
        if caller.dialect != self._dialect:
            raise TypeError(f"connection: is one to {caller.dialect}, but the inbox is on {self._dialect}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def refuse_ended(caller: Caller | AsyncCaller) -> None:
    """Raise when the transaction was ended, or when an error in it was swallowed: a commit would keep nothing of it."""
    if not caller.is_open():
        raise NotInTransaction(
            "the transaction has ended, or failed on an error that was caught",
            remedy="Let errors of the database pass or catch them around a savepoint, and leave the end to the block.",
        )


def _key(consumer: object, event_id: UUID | str) -> Key:
    return _checked_consumer(consumer), str(as_uuid(event_id))


def _checked_consumer(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_CONSUMER or not name.isprintable():
        raise InvalidInput(f"consumer: {name!r} is not 1 to {_LONGEST_CONSUMER} printable characters", field="consumer")
    return name


def _checked_lease(seconds: object) -> float:
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 < float(seconds) < math.inf:  # type: ignore[arg-type]  # a number by now
        raise InvalidInput(f"lease: {seconds!r} is not a number of seconds above 0", field="lease")
    return float(seconds)  # type: ignore[arg-type]  # a number by now


def _checked_count(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{field}: {value!r} is not a whole number of 1 or more", field=field)
    return value


_INSERT = "INSERT INTO {table} ({columns}) VALUES ({marks}) ON CONFLICT ({key}) DO NOTHING RETURNING 1"


def insert_once(connection: Any, table: str, *, key: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with this key is there, in the caller's transaction; says whether it was inserted.

    The table has a primary key or unique index on exactly the columns of `key`.
    """
    check_identifier(table, "table")
    if not key:
        raise ConfigurationError("key: is empty; name at least one column", field="key")
    row = {**values, **key}
    for field, names in (("key", key), ("values", values)):
        for name in names:
            check_identifier(name, field)
    caller = in_transaction(connection)
    statement = _INSERT.format(
        table=f'"{table}"', columns=_listed(row), marks=", ".join("?" * len(row)), key=_listed(key)
    )
    return bool(caller.rows(marked(statement, caller), tuple(row.values())))


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(f'"{name}"' for name in names)
