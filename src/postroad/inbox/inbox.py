"""The inbox: which events a consumer has handled, stored in the database that holds their effects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Self
from uuid import UUID

import msgspec
from msgspec import Meta

from postroad import failpoints
from postroad.arguments import Count, Seconds, SecondsAboveZero, check, check_settings, refusal
from postroad.connections import (
    AsyncCaller,
    Caller,
    Database,
    Dialect,
    Row,
    Session,
    Translation,
    check_identifier,
    dialect_of,
    file_database,
    in_async_transaction,
    in_transaction,
    marked,
    path_of,
    postgres_database,
)
from postroad.errors import (
    ConfigurationError,
    InvalidInput,
    NotInTransaction,
    PostroadError,
    SchemaMismatch,
)
from postroad.events import as_uuid
from postroad.inbox.external import Effect
from postroad.inbox.statements import SCHEMA_VERSION, statements
from postroad.receiving import settled
from postroad.telemetry import counter, get_logger

RETENTION: Final = timedelta(days=30)
"""The default retention of an inbox."""
_REMEDY: Final = "Run `postroad inbox init`."
_translated: Final = Translation("inbox", locked="events", remedy=_REMEDY)
_CHUNK: Final = 5_000
_LONGEST_TABLE = 40
_LONGEST_CONSUMER = 200
_Retention = Annotated[timedelta | None, Meta(description="a timedelta above zero, or None")]
_Key = tuple[str, str]
"""Consumer and event id."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The longest times, in seconds, that an event may take to reach a consumer.

    Their sum is how long after its first handling a copy of an event may arrive: the inbox must remember it for longer.

    Raises:
        ConfigurationError: A value is not a number of seconds of 0 or more.
    """

    queue_retention: Seconds = 345_600
    """How long the queue keeps a message: 4 days, as SQS does by default."""
    dead_letter_retention: Seconds = 1_209_600
    """How long the queue of dead letters keeps a message: 14 days, the longest that SQS allows."""
    outbox_horizon: Seconds = 16_672
    """How long the dispatcher of the publisher retries: `DispatcherConfig.horizon`."""
    redrive_delay: Seconds = 0
    """How long after its failure an event may be redriven or replayed from the outbox."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def required(self) -> float:
        """How long after its first handling a copy of an event may arrive, in seconds."""
        return self.queue_retention + self.dead_letter_retention + self.outbox_horizon + self.redrive_delay


def check_windows(retention: timedelta | None, windows: Windows) -> None:
    """Raise ConfigurationError if the inbox forgets events that may still arrive again; None forgets nothing."""
    if retention is None:
        return
    kept = retention.total_seconds()
    if kept < windows.required:
        raise ConfigurationError(
            f"retention: the inbox remembers for {kept:.0f} s, but copies may arrive for {windows.required:.0f} s",
            field="retention",
            remedy="Give the inbox a longer retention, or give Windows the actual times of this queue.",
        )


class Inbox:
    """Remembers which events each consumer has handled. Make one with `open`.

    `first_time` writes on the caller's connection, all other methods on the inbox's own. `postgres` and `sqlite` do the
    same as `open` for one kind of database, and can make an inbox without connections of its own.

    Args:
        dsn: The database: `postgresql://…`, or `sqlite:///path` for `open`. It must be the one that holds the effects.
            Without one (or `path` for `sqlite`), the inbox only works on connections of its callers.
        table: The name of the table; change it to have several inboxes in one database.
        schema: The schema of the table on PostgreSQL; SQLite has none.
        retention: How long events are remembered after they were handled, 30 days by default; None: for ever. Give it
            more if copies may arrive later, as `Windows` computes.
        dialect: "postgresql" or "sqlite".
        database: Its own connections; None for an inbox that uses only those of its callers.

    Raises:
        ConfigurationError: The DSN, `table`, `schema` or `retention` cannot be used.

    Example:
        inbox = Inbox.open("postgresql://app@db/shop")
        inbox.init()
        with inbox.transaction() as connection:
            if inbox.first_time(connection, "ledger", event.event_id):
                connection.execute("UPDATE accounts …")
    """

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
        """Return an inbox on PostgreSQL."""
        database = None if dsn is None else postgres_database(dsn, schema_remedy=_REMEDY)
        return cls("postgresql", database, table=table, schema=schema, retention=retention)

    @classmethod
    def sqlite(
        cls, path: str | Path | None = None, *, table: str = "inbox", retention: timedelta | None = RETENTION
    ) -> Self:
        """Return an inbox in the SQLite file `path`."""
        database = None if path is None else file_database(path, schema_remedy=_REMEDY)
        return cls("sqlite", database, table=table, schema=None, retention=retention)

    @classmethod
    def open(
        cls, dsn: str, *, table: str = "inbox", schema: str = "public", retention: timedelta | None = RETENTION
    ) -> Self:
        """Return the inbox at `postgresql://…` or `sqlite:///path`."""
        if dialect_of(dsn) == "sqlite":
            return cls.sqlite(path_of(dsn), table=table, retention=retention)
        return cls.postgres(dsn, table=table, schema=schema, retention=retention)

    def init(self) -> int:
        """Create the tables and return their version; safe to repeat, and from several processes."""
        database = self._own()
        database.create()
        with database.transaction() as session:
            session.rows(self._sql.lock)
            session.script(self._sql.tables)
            if self._version(session) is None:
                session.change(self._sql.set_version, (SCHEMA_VERSION,))
        return SCHEMA_VERSION

    def check(self) -> None:
        """Raise unless the tables exist in the version that is needed and can be written."""
        with self._own().transaction() as session:
            if self._version(session) is None:
                raise SchemaMismatch("the tables of the inbox are not complete", remedy=_REMEDY)
            session.change(self._sql.try_to_write)

    @property
    def owns_connections(self) -> bool:
        """Whether it has connections of its own, which all methods but `first_time` need."""
        return self._database is not None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Open a psycopg or sqlite3 connection in a transaction that commits at the end; an exception rolls it back."""
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
            # What the caller's own statements raise is not translated.
            if inner is not None:
                raise inner from None
            raise

    def first_time(
        self, connection: Any, consumer: str, event_id: UUID | str, *, fingerprint: str | None = None
    ) -> bool:
        """Remember the event in the caller's transaction, and return False if it was remembered before.

        If a copy is being handled elsewhere, this waits for its end. After a rollback it is the first time again.

        Args:
            connection: A psycopg, sqlite3, Django or SQLAlchemy connection or session, in a transaction.
            consumer: The name of the consumer, in up to 200 printable characters.
            event_id: The id of the event.
            fingerprint: A hash of the event's content. If a copy has another one, a warning is logged.
        """
        caller, key = in_transaction(connection), _key(consumer, event_id)
        self._refuse_other(caller.dialect)
        with _translated:
            first = bool(caller.insert(marked(self._sql.first, caller), (*key, fingerprint)))
            failpoints.hit("inbox.after_insert")
            if not first and fingerprint is not None:
                _compare(key, fingerprint, caller.rows(marked(self._sql.fingerprint, caller), key))
        return first

    async def first_time_async(
        self, connection: Any, consumer: str, event_id: UUID | str, *, fingerprint: str | None = None
    ) -> bool:
        """Do what `first_time` does on a connection that is awaited.

        The connection is a psycopg AsyncConnection, an asyncpg or aiosqlite Connection, or SQLAlchemy's AsyncConnection
        or AsyncSession, in a transaction.
        """
        key = _key(consumer, event_id)
        caller = await in_async_transaction(connection)
        self._refuse_other(caller.dialect)
        with _translated:
            first = bool(await caller.insert(marked(self._sql.first, caller), (*key, fingerprint)))
            failpoints.hit("inbox.after_insert")
            if not first and fingerprint is not None:
                _compare(key, fingerprint, await caller.rows(marked(self._sql.fingerprint, caller), key))
        return first

    def _refuse_other(self, dialect: Dialect) -> None:
        if dialect != self._dialect:
            raise TypeError(f"connection: is to {dialect}, but the inbox is on {self._dialect}")

    async def try_to_write(self, connection: Any, *, is_async: bool) -> None:
        """Raise what keeps a transaction of `connection`, async if `is_async`, from writing; nothing is written."""
        caller = await in_async_transaction(connection) if is_async else in_transaction(connection)
        await settled(caller.rows(marked(self._sql.try_to_write, caller), ()))

    def begin(self, consumer: str, event_id: UUID | str, *, lease: float = 60.0) -> Effect:
        """Write that an external effect is about to be made; the effect's status says whether this attempt may make it.

        Args:
            consumer: The name of the consumer.
            event_id: The id of the event.
            lease: Seconds for which other attempts find it "busy"; longer than making it takes, or call `renew`.
        """
        key = _key(consumer, event_id)
        check(lease, SecondsAboveZero, "lease")
        while True:
            with self._own().transaction() as session:
                if begun := session.rows(self._sql.begin, (*key, float(lease), *self._sql.clock())):
                    attempt, token = begun[0]
                    return Effect("new" if attempt == 1 else "unknown", attempt, token, ":".join(key))
                found = session.rows(self._sql.look, key)
            # Nothing is found if the other attempt forgot its effect in between.
            if found:
                status, attempt, token, left = found[0]
                return Effect(
                    "done" if status == "done" else "busy", attempt, token, ":".join(key), max(0.0, left or 0.0)
                )

    def renew(self, effect: Effect, *, lease: float = 60.0) -> bool:
        """Extend the lease of `effect` to `lease` seconds from now; return False if a later attempt has taken it."""
        check(lease, SecondsAboveZero, "lease")
        return self._change(self._sql.renew, effect, float(lease))

    def finish(self, effect: Effect) -> bool:
        """Write that `effect` was made; return False if a later attempt has taken it over."""
        return self._change(self._sql.finish, effect)

    def forget(self, effect: Effect) -> bool:
        """Write that `effect` was certainly not made: the next `begin` is new. Returns as `finish` does."""
        return self._change(self._sql.forget, effect)

    def abandon(self, effect: Effect) -> bool:
        """End the lease of `effect` and leave the outcome unknown, for `unknown` to list. Returns as `finish` does."""
        return self._change(self._sql.abandon, effect)

    def unknown(self, *, consumer: str | None = None, limit: int = 50) -> list[Effect]:
        """Return up to `limit` effects (of `consumer`, if given) that were begun, not finished and are not leased."""
        check(limit, Count, "limit")
        rows = self._rows(self._sql.unknown, (consumer, consumer, limit))
        return [Effect("unknown", attempt, token, f"{name}:{event_id}") for name, event_id, attempt, token in rows]

    def resolve(self, consumer: str, event_id: UUID | str, *, done: bool, by: str, reason: str) -> bool:
        """Settle an unknown effect, and write who did it and why to the audit; return False if there is none.

        Args:
            consumer: The consumer.
            event_id: The event.
            done: Whether the effect was made.
            by: The operator, for the audit.
            reason: Why, for the audit.
        """
        for field, text in (("by", by), ("reason", reason)):
            if not text.strip():
                raise ValueError(f"{field}: is empty; say who settles the effect, and why")
        key = _key(consumer, event_id)
        with self._own().transaction() as session:
            changed = session.change(self._sql.resolve_done if done else self._sql.resolve_not_done, key) == 1
            if changed:
                session.change(self._sql.audit, (by, "done" if done else "not done", *key, reason))
        return changed

    def processed(self, consumer: str, event_ids: Iterable[UUID | str]) -> set[UUID]:
        """Return those of `event_ids` that `consumer` has handled."""
        name, wanted, found = _checked_consumer(consumer), [str(as_uuid(each)) for each in event_ids], set[UUID]()
        for first in range(0, len(wanted), _CHUNK):
            chunk = msgspec.json.encode(wanted[first : first + _CHUNK]).decode()
            found.update(UUID(row[0]) for row in self._rows(self._sql.processed, (name, chunk)))
        return found

    def event_ids(self, consumer: str, *, after: UUID | None = None, limit: int = 1_000) -> list[UUID]:
        """Return up to `limit` events that `consumer` has handled, in the order of their ids, behind `after`."""
        check(limit, Count, "limit")
        rows = self._rows(self._sql.event_ids, (_checked_consumer(consumer), str(after or ""), limit))
        return [UUID(event_id) for (event_id,) in rows]

    def prune(self, *, batch: int = 1_000) -> int:
        """Delete what was handled longer ago than the retention, `batch` in a transaction; return how many."""
        pruned = 0
        while (removed := self.prune_batch(batch)) == batch:
            pruned += removed
        return pruned + removed

    def prune_batch(self, batch: int) -> int:
        """Delete up to `batch` old rows and return how many; without a retention nothing is ever deleted."""
        check(batch, Count, "batch")
        if self.retention is None:
            return 0
        with self._own().transaction() as session:
            return session.change(self._sql.prune, (-self.retention.total_seconds(), batch))

    def close(self) -> None:
        """Close the inbox's own connections; it opens them again when it needs them."""
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

    def _rows(self, statement: str, values: Sequence[Any]) -> Sequence[Row]:
        with self._own().reading() as session:
            return session.rows(statement, values)

    def _change(self, statement: str, effect: Effect, *values: float) -> bool:
        """Return whether the statement changed the effect of exactly this attempt."""
        with self._own().transaction() as session:
            return session.change(statement, (*values, effect.consumer, str(effect.event_id), effect.token)) == 1

    def _version(self, session: Session) -> int | None:
        found = max((int(row[0]) for row in session.rows(self._sql.version)), default=None)
        if found is not None and found > SCHEMA_VERSION:
            raise SchemaMismatch(
                f"the tables of the inbox have version {found}, this program knows {SCHEMA_VERSION}",
                remedy="Upgrade Postroad here.",
            )
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_ended(caller: Caller | AsyncCaller) -> None:
    """Raise NotInTransaction if the transaction has ended or failed: a commit would then keep nothing of it."""
    if not caller.is_open():
        raise NotInTransaction(
            "the transaction has ended, or failed on an error that was caught",
            remedy="Let errors of the database pass or catch them around a savepoint, and leave the end to the block.",
        )


def _compare(key: _Key, fingerprint: str, stored: list[Row]) -> None:
    """Count and log an event that is known with another content."""
    if stored and stored[0][0] not in (None, fingerprint):
        counter("event_inbox_conflicts").labels(key[0]).inc()
        get_logger("inbox").warning("inbox_conflict", consumer=key[0], event_id=key[1])


def _key(consumer: object, event_id: UUID | str) -> _Key:
    # msgspec writes a UUID in a quarter of the time of str().
    return _checked_consumer(consumer), msgspec.to_builtins(as_uuid(event_id))


def _checked_consumer(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_CONSUMER or not name.isprintable():
        raise InvalidInput(f"consumer: {name!r} is not 1 to {_LONGEST_CONSUMER} printable characters", field="consumer")
    return name


_INSERT = "INSERT INTO {table} ({columns}) VALUES ({marks}) ON CONFLICT ({key}) DO NOTHING"


def insert_once(connection: Any, table: str, *, key: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Insert a row in the caller's transaction unless one with this key exists; return whether it was inserted.

    Args:
        connection: A connection as for `Inbox.first_time`, in a transaction.
        table: The table, which has a primary key or unique index on exactly the columns of `key`.
        key: The values of these columns.
        values: The values of the other columns.

    Example:
        insert_once(connection, "payments", key={"event_id": str(event.event_id)}, values={"amount": 25})
    """
    check_identifier(table, "table")
    if not key:
        raise ConfigurationError("key: is empty; name at least one column", field="key")
    row = {**values, **key}
    for field, names in (("key", key), ("values", values)):
        for name in names:
            check_identifier(name, field)
    caller = in_transaction(connection)
    columns, conflict = (", ".join(f'"{name}"' for name in names) for names in (row, key))
    marks = ", ".join("?" * len(row))
    statement = _INSERT.format(table=f'"{table}"', columns=columns, marks=marks, key=conflict)
    return bool(caller.insert(marked(statement, caller), tuple(row.values())))
