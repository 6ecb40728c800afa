"""The outbox: records events in the caller's transaction, and offers operators what they need to repair it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.connections import Database, dialect_of, file_database, in_transaction, path_of, postgres_database
from postroad.errors import ConfigurationError, Undecryptable
from postroad.events import DomainEvent, EventRegistry, default_registry
from postroad.outbox.cipher import SEAL, AesGcmCipher
from postroad.outbox.dispatching.publisher import Outlet, Publisher, Renderer, SubmitTasks
from postroad.outbox.drafts import Drafts
from postroad.outbox.inserts import Inserts
from postroad.outbox.queries import HandledEvents, Queries, stored_id
from postroad.outbox.redrive import Repairs, Replay, Selection, SentSelection, lane_named
from postroad.outbox.rows import (
    AuditEntry,
    EventId,
    FailureGroup,
    KeyState,
    OutboxRow,
    OutboxStatus,
    Reconciliation,
    ReplayReport,
)
from postroad.outbox.schema import INIT_REMEDY, Role, Tables, grants, init, prune_batch, require, script
from postroad.queues import Queue

MAX_BYTES: Final = 262_144
_FIELDS: Final = ("key", "tenant_id", "type", "traceparent", "event_id", "occurred_at")
"""The fields of an event that arguments of `add` replace."""
_NOTHING: Final = (None,) * len(_FIELDS)


class Outbox:
    """Records events in the same transaction as the data that they are about. Make one with `open`.

    `postgres` and `sqlite` do the same for one kind of database, and can make an outbox without connections of its own,
    which only records events.

    Args:
        dsn: The database: `postgresql://…`, or `sqlite:///path` for `open`. Without one (or `path` for `sqlite`), the
            outbox only records events on the connections of its callers.
        table: The name of the table; change it to have several outboxes in one database.
        schema: The schema of the table on PostgreSQL; SQLite has none.
        cipher: Encrypts payloads; by default they are stored as JSON that everybody with access can read.
        max_bytes: The size of the largest event that is recorded, by default 262,144 bytes, the limit of SNS and SQS.
        registry: Finds the names and versions of event classes; by default those made by `@event`.
        clock: The time of events that come without one; for tests.
        tables: The names of its tables.
        database: Its own connections; None for an outbox that only records events.

    Raises:
        ConfigurationError: The DSN, `table` or `schema` cannot be used.

    Example:
        outbox = Outbox.open("postgresql://app@db/shop")
        outbox.init()
        with psycopg.connect(dsn) as connection:
            connection.execute("INSERT INTO transfers …")
            outbox.add(connection, DomainEvent(type="transfers.submitted", key={"transferId": "tr_1"}, payload={}))
    """

    def __init__(
        self,
        tables: Tables,
        database: Database | None,
        *,
        cipher: AesGcmCipher | None = None,
        max_bytes: int = MAX_BYTES,
        registry: EventRegistry = default_registry,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.tables = tables
        self.dialect = tables.dialect
        self.cipher = cipher
        self.max_bytes = max_bytes
        self.clock = clock
        self._database = database
        self._drafts = Drafts(registry=registry, clock=clock, cipher=cipher, max_bytes=max_bytes)
        self._inserts = Inserts(tables)
        self.submit_tasks: SubmitTasks | None = None
        """Submits rows of type `postroad.task`; `TaskProducer(backend, outbox=outbox)` sets it."""

    @classmethod
    def postgres(
        cls,
        dsn: str | None = None,
        *,
        table: str = "outbox",
        schema: str = "public",
        cipher: AesGcmCipher | None = None,
        max_bytes: int = MAX_BYTES,
        registry: EventRegistry = default_registry,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Outbox:
        """Return an outbox on PostgreSQL."""
        tables = Tables("postgresql", table, schema)
        database = None if dsn is None else postgres_database(dsn, schema_remedy=INIT_REMEDY)
        return cls(tables, database, cipher=cipher, max_bytes=max_bytes, registry=registry, clock=clock)

    @classmethod
    def sqlite(
        cls,
        path: str | Path | None = None,
        *,
        table: str = "outbox",
        cipher: AesGcmCipher | None = None,
        max_bytes: int = MAX_BYTES,
        registry: EventRegistry = default_registry,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Outbox:
        """Return an outbox in the SQLite file `path`."""
        database = None if path is None else file_database(path, schema_remedy=INIT_REMEDY)
        tables = Tables("sqlite", table)
        return cls(tables, database, cipher=cipher, max_bytes=max_bytes, registry=registry, clock=clock)

    @classmethod
    def open(
        cls,
        dsn: str,
        *,
        table: str = "outbox",
        schema: str = "public",
        cipher: AesGcmCipher | None = None,
        max_bytes: int = MAX_BYTES,
        registry: EventRegistry = default_registry,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Outbox:
        """Return the outbox at `postgresql://…` or `sqlite:///path`."""
        if dialect_of(dsn) == "postgresql":
            return cls.postgres(
                dsn, table=table, schema=schema, cipher=cipher, max_bytes=max_bytes, registry=registry, clock=clock
            )
        return cls.sqlite(path_of(dsn), table=table, cipher=cipher, max_bytes=max_bytes, registry=registry, clock=clock)

    @property
    def database(self) -> Database:
        """The outbox's own connections."""
        if self._database is None:
            raise ConfigurationError(
                "dsn: none was given, so this outbox only records events on its callers' connections",
                field="dsn",
                remedy="Make it with Outbox.postgres(dsn) or Outbox.sqlite(path).",
            )
        return self._database

    def init(self) -> int:
        """Create or migrate the tables and return their version; safe to repeat, and from several processes."""
        return init(self.database, self.tables)

    def init_sql(self) -> str:
        """Return the SQL that `init` runs on a new database."""
        return script(self.tables)

    def require_schema(self) -> None:
        """Raise SchemaMismatch unless the tables exist in the version that is needed."""
        require(self.database, self.tables)

    def grants(self, role: Role, *, to: str) -> str:
        """Return the SQL that grants the PostgreSQL role `to` what a `role` (producer, dispatcher, operator) needs."""
        return grants(self.tables, role, to)

    def add(
        self,
        connection: object,
        event: object,
        *,
        key: Mapping[str, str] | str | None = None,
        tenant_id: str | None = None,
        type: str | None = None,
        traceparent: str | None = None,
        event_id: UUID | str | None = None,
        occurred_at: datetime | None = None,
    ) -> UUID:
        """Record the event in the connection's transaction, which stays open and usable, and return the event's id.

        Args:
            connection: A psycopg, sqlite3 or SQLAlchemy connection or session in a transaction.
            event: A DomainEvent, or an instance of an event class; the latter needs a `key`.
            key: What orders the event, as a mapping such as `{"transferId": "tr_1"}` or a text. This and the arguments
                below replace the field of the event.
            tenant_id: The tenant, of up to 64 letters, digits and `_ . -`.
            type: The type, of up to 200 letters, digits and `. _ : -`.
            traceparent: The W3C trace to continue; by default that of the current span.
            event_id: The id under which receivers recognise the event; by default a new UUIDv7.
            occurred_at: When it happened, with a time zone; by default now.

        Raises:
            InvalidMessage: A field of the event is missing or wrong; `field` names it.
            MessageTooLarge: The event has more than `max_bytes`.
            DuplicateEvent: An event with this id is recorded already.
            NotInTransaction: The connection commits every statement by itself.
            SchemaMismatch: The tables are missing.
        """
        caller = in_transaction(connection)
        fields = _given(key, tenant_id, type, traceparent, event_id, occurred_at)
        return self._inserts.add(caller, self._drafts.draft(event, fields))

    def add_many(self, connection: object, events: Iterable[DomainEvent]) -> list[UUID]:
        """Record all of `events` or none on `connection`, in their order, and return their ids; raise as `add` does."""
        caller = in_transaction(connection)
        return self._inserts.add_many(caller, [self._drafts.draft(event) for event in events])

    async def add_async(
        self,
        connection: object,
        event: object,
        *,
        key: Mapping[str, str] | str | None = None,
        tenant_id: str | None = None,
        type: str | None = None,
        traceparent: str | None = None,
        event_id: UUID | str | None = None,
        occurred_at: datetime | None = None,
    ) -> UUID:
        """Record `event` as `add` does, on a `connection` that is awaited."""
        fields = _given(key, tenant_id, type, traceparent, event_id, occurred_at)
        return await self._inserts.add_async(connection, lambda: self._drafts.draft(event, fields))

    def opened(self, event: DomainEvent) -> DomainEvent:
        """Return `event` with its payload decrypted; raise Undecryptable if there is no key for it."""
        if self.cipher is not None:
            return self.cipher.opened(event)
        if event.payload.keys() == {SEAL}:
            raise Undecryptable("the payload is encrypted, and no key file was given")
        return event

    def get(self, event_id: EventId) -> OutboxRow | None:
        """Return the row of `event_id`; None if it was never recorded or has been pruned."""
        return self._queries().get(event_id)

    def failed(self, *, limit: int = 50, after: EventId | int | None = None) -> list[OutboxRow]:
        """Return up to `limit` failed rows, oldest first; only those behind the event or `seq` that `after` names."""
        return self._queries().failed(limit=_positive("limit", limit), after=after)

    def failed_groups(self) -> list[FailureGroup]:
        """Count the failed rows by type and kind of error, the most frequent first."""
        return self._queries().failed_groups()

    def status(self) -> OutboxStatus:
        """Return how many rows the outbox holds in each state, how old they are and what blocks them."""
        return self._queries().status()

    def keys(self, *, blocked: bool = True, limit: int = 50) -> list[KeyState]:
        """Return up to `limit` keys that are `blocked`, or without it all that have rows to send, oldest first."""
        return self._queries().keys(blocked=blocked, limit=_positive("limit", limit))

    def why(self, event_id: EventId) -> str:
        """Say in one sentence what `event_id` waits for."""
        return self._queries().why(event_id)

    def audit(self, *, limit: int = 100) -> list[AuditEntry]:
        """Return the last `limit` things that operators did, the newest first."""
        return self._queries().audit(_positive("limit", limit))

    def redrive(
        self,
        event_ids: Iterable[EventId] | EventId = (),
        *,
        by: str,
        reason: str,
        key: Mapping[str, str] | str | None = None,
        tenant_id: str | None = None,
        type: str | None = None,
        group: str | None = None,
        limit: int | None = None,
        canary: int | None = None,
        dry_run: bool = False,
    ) -> list[EventId]:
        """Make failed or parked events pending again, and return their ids in order. Their messages keep their ids.

        Args:
            event_ids: The events; without any, all failed and parked ones that fit the filters below.
            by: The operator, for the audit.
            reason: Why, for the audit.
            key: Only events of this key, as a mapping or as the text in `OutboxRow.lane`.
            tenant_id: Only events of this tenant.
            type: Only events of this type.
            group: Only events of this group of `failed_groups`.
            limit: Redrive at most this many, the oldest first; other events of their parked keys come with them.
            canary: Redrive this many first, and the others only once those were sent.
            dry_run: Return the ids, and change nothing.

        Raises:
            NotRedrivable: One of `event_ids` is neither failed nor parked.
            ValueError: Neither ids nor filters are given, or `by` or `reason` is blank.
        """
        _require(by=by, reason=reason)
        named = (event_ids,) if isinstance(event_ids, str | UUID) else event_ids
        selection = Selection(
            event_ids=tuple(stored_id(event_id) for event_id in named),
            lane=lane_named(key),
            tenant_id=tenant_id,
            type=type,
            group=group,
            limit=None if limit is None else _positive("limit", limit),
        )
        if selection == Selection(limit=limit):
            raise ValueError("redrive: name event ids, a key, a tenant, a type or a group")
        repairs = Repairs(self.database, self.tables)
        if dry_run:
            rows = repairs.selected(selection)
        elif canary is None:
            rows = repairs.redrive(selection, by=by, reason=reason)
        else:
            rows = repairs.redrive_canaries_first(selection, canaries=_positive("canary", canary), by=by, reason=reason)
        return [row.event_id for row in rows]

    def skip(self, event_id: EventId, *, by: str, reason: str) -> None:
        """Give up a failed or parked event. Its key goes on, and the key's next message names the event as a gap.

        Args:
            event_id: The event.
            by: The operator, for the audit.
            reason: Why, for the audit.
        """
        _require(by=by, reason=reason)
        Repairs(self.database, self.tables).skip(event_id, by=by, reason=reason)

    def replay(
        self,
        publisher: Publisher | Queue,
        *,
        by: str,
        reason: str,
        since: datetime | None = None,
        until: datetime | None = None,
        type: str | None = None,
        key: Mapping[str, str] | str | None = None,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> ReplayReport:
        """Publish sent events again, under their ids and in the order of each key.

        The rows stay SENT, and the audit lists each event that was published again. A topic that deduplicates drops
        events that it has seen within the last five minutes. Tasks are not events, and are not submitted again.

        Args:
            publisher: A topic, a queue, or anything with `publish(messages)`.
            by: The operator, for the audit.
            reason: Why, for the audit.
            since: Only events sent at this time or later; aware.
            until: Only events sent before this time; aware.
            type: Only events of this type.
            key: Only events of this key, as for `redrive`.
            dry_run: Count the events, publish nothing.
            progress: Called after each page with the number of events published so far.

        Raises:
            TargetUnavailable: The topic refuses everything; the audit lists what was published before.
            ValueError: No filter is given, or `by` or `reason` is blank.
        """
        _require(by=by, reason=reason)
        wanted = SentSelection(since=since, until=until, type=type, lane=lane_named(key))
        if wanted == SentSelection():
            raise ValueError("replay: give since, until, a type or a key")
        event_ids = wanted.event_ids(self.database, self.tables)
        if dry_run:
            return ReplayReport(len(event_ids))
        renderer = Renderer(max_bytes=self.max_bytes, decrypt=self.opened)
        replay = Replay(self.database, self.tables, renderer, Outlet(publisher), by=by, reason=reason)
        return replay.run(event_ids, progress)

    def prune(self, *, older_than: timedelta = timedelta(days=7), batch: int = 1_000) -> int:
        """Delete events sent or skipped at least `older_than` ago, `batch` in a transaction; return how many."""
        pruned, size = 0, _positive("batch", batch)
        while (deleted := prune_batch(self.database, self.tables, older_than=older_than, batch=size)) == size:
            pruned += deleted
        return pruned + deleted

    def reconcile(
        self, inbox: HandledEvents, *, consumer: str, older_than: float = 60.0, types: Collection[str] | None = None
    ) -> Reconciliation:
        """Compare the events sent more than `older_than` seconds ago with those that the consumer has handled.

        Args:
            inbox: The consumer's Inbox.
            consumer: The name of the consumer.
            older_than: Leave out events sent within this many seconds, which may still be on their way.
            types: Only events of these types; `orders.*` means all that begin with `orders.`.
        """
        return self._queries().reconcile(inbox, consumer=consumer, older_than=older_than, types=types)

    def close(self) -> None:
        """Close the outbox's own connections; it opens them again when it needs them."""
        if self._database is not None:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _queries(self) -> Queries:
        return Queries(self.database, self.tables)


def _given(*values: object) -> dict[str, Any]:
    if values == _NOTHING:
        return {}
    return {name: value for name, value in zip(_FIELDS, values, strict=True) if value is not None}


def _require(**texts: str) -> None:
    for name, text in texts.items():
        if not str(text or "").strip() or "\0" in str(text):
            raise ValueError(f"{name}: is blank or holds NUL; the audit needs it")


def _positive(name: str, number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name}: {number!r} is not a whole number of 1 or more")
    return number
