"""The outbox: records events in the caller's transaction, and answers and obeys its operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.connections import (
    Database,
    Dialect,
    dialect_of,
    file_database,
    in_transaction,
    path_of,
    postgres_database,
)
from postroad.errors import ConfigurationError, Undecryptable
from postroad.events import DomainEvent, EventRegistry, default_registry
from postroad.outbox import migrations
from postroad.outbox.cipher import AesGcmCipher, is_sealed
from postroad.outbox.dialects import Phrases
from postroad.outbox.dispatching.messages import Renderer
from postroad.outbox.dispatching.publisher import Outlet, Publisher, Sender
from postroad.outbox.drafts import Drafting, Overrides
from postroad.outbox.inserts import Recording, record_async
from postroad.outbox.migrations import Role, grants
from postroad.outbox.queries import Looking, stored_id
from postroad.outbox.redrive import Redriving, Selection, group_of, lane_named, redrive_behind_canaries
from postroad.outbox.replay import Replay, Sendings, selected
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
from postroad.outbox.schema import Names
from postroad.outbox.upkeep import Handled, prune, reconcile

MAX_BYTES: Final = 262_144
_ALL: Final = 2**31 - 1
_NOTHING: Final = (None,) * 6


class Outbox:
    """Events that are recorded with the data they tell about. Made by `postgres`, `sqlite` or `open`."""

    def __init__(
        self,
        names: Names,
        dialect: Dialect,
        database: Database | None,
        *,
        cipher: AesGcmCipher | None = None,
        max_bytes: int = MAX_BYTES,
        registry: EventRegistry = default_registry,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.names = names
        self.dialect: Dialect = dialect
        self.cipher = cipher
        self.max_bytes = max_bytes
        self.clock = clock
        self._database = database
        self._words = Phrases(names, dialect)
        self._drafting = Drafting(registry=registry, clock=clock, cipher=cipher, max_bytes=max_bytes)
        self._recording = Recording(names, dialect)

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
        """An outbox on PostgreSQL. Without a DSN it records on callers' connections and does nothing else."""
        names = Names(table, schema)
        database = None if dsn is None else postgres_database(dsn, schema_remedy=migrations.INIT_REMEDY)
        return cls(names, "postgresql", database, cipher=cipher, max_bytes=max_bytes, registry=registry, clock=clock)

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
        """An outbox in a SQLite file. Without a path it records on callers' connections and does nothing else."""
        names = Names(table, None)
        database = None if path is None else file_database(path, schema_remedy=migrations.INIT_REMEDY)
        return cls(names, "sqlite", database, cipher=cipher, max_bytes=max_bytes, registry=registry, clock=clock)

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
        """The outbox at `postgresql://…` or `sqlite:///path`; SQLite has no schemas."""
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
                "dsn: none was given, so this outbox only records on callers' connections",
                field="dsn",
                remedy="Make it with Outbox.postgres(dsn) or Outbox.sqlite(path).",
            )
        return self._database

    def init(self) -> int:
        """Create or migrate the tables, as often as you like and by as many as like; the version of the tables."""
        return migrations.init(self.database, self._words)

    def init_sql(self) -> str:
        """The SQL that `init` runs on a database that has never seen it."""
        return migrations.script(self._words)

    def require_schema(self) -> None:
        """Raise SchemaMismatch, naming the remedy, unless the tables are there in the version that is needed."""
        migrations.require(self.database, self._words)

    def grants(self, role: Role, *, to: str) -> str:
        """The SQL that gives a database role what a producer, a dispatcher or an operator needs on PostgreSQL."""
        return grants(self.names, role, to)

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
        """Record the event in the connection's transaction, which stays open and usable whatever happens; its id."""
        caller = in_transaction(connection)
        if (key, tenant_id, type, traceparent, event_id, occurred_at) == _NOTHING:
            return self._recording.add(caller, self._drafting.draft(event))
        overrides = Overrides(
            key=key, tenant_id=tenant_id, type=type, traceparent=traceparent, event_id=event_id, occurred_at=occurred_at
        )
        return self._recording.add(caller, self._drafting.draft(event, overrides))

    def add_many(self, connection: object, events: Iterable[DomainEvent]) -> list[UUID]:
        """Record all of the events or none, in their order; their ids."""
        caller = in_transaction(connection)
        return self._recording.add_many(caller, [self._drafting.draft(event) for event in events])

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
        """Record the event as `add` does, on a connection that is awaited."""
        overrides = Overrides(
            key=key, tenant_id=tenant_id, type=type, traceparent=traceparent, event_id=event_id, occurred_at=occurred_at
        )
        return await record_async(self._recording, connection, lambda: self._drafting.draft(event, overrides))

    def opened(self, event: DomainEvent) -> DomainEvent:
        """The event with a readable payload; Undecryptable when nobody here can read it."""
        if self.cipher is not None:
            return self.cipher.opened(event)
        if is_sealed(event):
            raise Undecryptable("the payload is encrypted, and no key file was given")
        return event

    def get(self, event_id: EventId) -> OutboxRow | None:
        """The event's row; None when it was never recorded or is pruned."""
        return self._looking().get(event_id)

    def failed(self, *, limit: int = 50, after: EventId | int | None = None) -> list[OutboxRow]:
        """Failed rows, oldest first, behind the event (or the seq) `after`."""
        return self._looking().failed(limit=_positive("limit", limit), after=after)

    def failed_groups(self) -> list[FailureGroup]:
        """Failed rows counted by type and kind of error, the most frequent first."""
        groups: dict[str, list[OutboxRow]] = {}
        for row in self._looking().failed(limit=_ALL, after=None):
            groups.setdefault(group_of(row), []).append(row)
        counted = [
            FailureGroup(group, rows[0].event_type, len(rows), rows[0].last_error, rows[0].event_id)
            for group, rows in groups.items()
        ]
        return sorted(counted, key=lambda group: -group.count)

    def status(self) -> OutboxStatus:
        """How much the outbox holds, how old it is and what stands in its way."""
        return self._looking().status()

    def keys(self, *, blocked: bool = True, limit: int = 50) -> list[KeyState]:
        """Keys that are held back, or with blocked=False all that have rows to send, the oldest first."""
        return self._looking().keys(blocked=blocked, limit=_positive("limit", limit))

    def why(self, event_id: EventId) -> str:
        """One sentence on what the event waits for."""
        return self._looking().why(event_id)

    def audit(self, *, limit: int = 100) -> list[AuditEntry]:
        """What was done by hand, the newest first."""
        return self._looking().audit(limit=_positive("limit", limit))

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
        """Send failed or parked events again, under their ids and in their order; which ones."""
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
        redriving = Redriving(self.database, self._words)
        if dry_run:
            rows = redriving.selected(selection)
        elif canary is None:
            rows = redriving.redrive(selection, by=by, reason=reason)
        else:
            rows = redrive_behind_canaries(
                redriving,
                selection,
                canaries=_positive("canary", canary),
                by=by,
                reason=reason,
                look=self.get,
                clock=self.clock,
                sleep=time.sleep,
            )
        return [row.event_id for row in rows]

    def skip(self, event_id: EventId, *, by: str, reason: str) -> None:
        """Give a failed or parked event up; its key goes on, and the next message of the key names it."""
        _require(by=by, reason=reason)
        Redriving(self.database, self._words).skip(event_id, by=by, reason=reason)

    def replay(
        self,
        publisher: Publisher | Sender,
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
        """Publish events that were sent already again, under their ids and per key in their order.

        The rows stay SENT; each event that was published again gets an entry in the audit. A topic that deduplicates
        drops an event that it has seen in the last five minutes.

        Args:
            publisher: A topic, a queue, or anything with `publish(messages)`.
            by: Who does it, for the audit.
            reason: Why, for the audit.
            since: Only events sent at this time or later; aware.
            until: Only events sent before this time; aware.
            type: Only events of this type.
            key: Only events of this key, as for `redrive`.
            dry_run: Count the events, publish nothing.
            progress: Called now and then with the number of events published so far.

        Raises:
            TargetUnavailable: The topic does not take anything; what was published before is in the audit.
            ValueError: Nothing says which events, or `by` or `reason` is blank.
        """
        _require(by=by, reason=reason)
        wanted = Sendings(since=since, until=until, type=type, lane=lane_named(key))
        if wanted == Sendings():
            raise ValueError("replay: give since, until, a type or a key")
        event_ids = selected(self.database, self._words, wanted)
        if dry_run:
            return ReplayReport(len(event_ids))
        renderer = Renderer(max_bytes=self.max_bytes, decrypt=self.opened)
        replay = Replay(self.database, self._words, renderer, Outlet(publisher), by=by, reason=reason)
        return replay.run(event_ids, progress)

    def prune(self, *, older_than: timedelta = timedelta(days=7), batch: int = 1_000) -> int:
        """Delete events that were sent or skipped longer ago; how many."""
        return prune(self.database, self._words, older_than=older_than, batch=_positive("batch", batch))

    def reconcile(
        self, inbox: Handled, *, consumer: str, older_than: float = 60.0, types: Collection[str] | None = None
    ) -> Reconciliation:
        """Compare what was sent more than `older_than` seconds ago with what the consumer has handled."""
        return reconcile(self.database, self._words, inbox, consumer=consumer, older_than=older_than, types=types)

    def close(self) -> None:
        """Close the outbox's own connections; it opens them again when they are needed."""
        if self._database is not None:
            self._database.close()

    def _looking(self) -> Looking:
        return Looking(self.database, self._words)


def _require(**texts: str) -> None:
    for name, text in texts.items():
        if not str(text or "").strip() or "\0" in str(text):
            raise ValueError(f"{name}: is blank or holds NUL; the audit needs it")


def _positive(name: str, number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name}: {number!r} is not a whole number of 1 or more")
    return number
