"""What the inbox reads and writes on its own connections, each verb in a short transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import msgspec

from postroad.connections import Database, Session
from postroad.errors import SchemaMismatch
from postroad.inbox.statements import SCHEMA_VERSION, Statements

EffectStatus = Literal["new", "done", "busy", "unknown"]


class EffectNotDone(Exception):
    """A handler raises it when its effect surely did not happen: the event is forgotten and comes again as new."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One attempt at an effect outside. Give `idempotency_key` and `token` to whoever can refuse a repeated call."""

    status: EffectStatus
    attempt: int
    token: int
    idempotency_key: str
    retry_after: float = 0.0
    """When busy: the seconds until the other one's lease ends, unless it is renewed."""

    @property
    def consumer(self) -> str:
        """Whose effect it is."""
        return self.idempotency_key.rpartition(":")[0]

    @property
    def event_id(self) -> UUID:
        """The event whose effect it is."""
        return UUID(self.idempotency_key.rpartition(":")[2])


def key_of(consumer: str, event_id: str) -> str:
    """The name of an effect, the same in every attempt."""
    return f"{consumer}:{event_id}"


REMEDY = "Run `postroad inbox init`, or inbox.init()."
Key = tuple[str, str]
"""Consumer and event id."""
_CHUNK = 5_000


@dataclass(frozen=True, slots=True)
class Records:
    """The rows of one inbox."""

    database: Database
    sql: Statements

    def init(self) -> int:
        """Make or migrate the tables; their version."""
        self.database.create()
        with self.database.transaction() as session:
            session.rows(self.sql.lock)
            session.script(self.sql.tables)
            if self._version(session) is None:
                session.change(self.sql.set_version, (SCHEMA_VERSION,))
        return SCHEMA_VERSION

    def check(self) -> None:
        """Raise when the tables are missing, newer than this program, or cannot be written now."""
        with self.database.transaction() as session:
            if self._version(session) is None:
                raise SchemaMismatch("the tables of the inbox are not complete", remedy=REMEDY)
            session.change(self.sql.try_to_write)

    def begin(self, key: Key, lease: float) -> Effect:
        """The effect as this attempt finds it; where it may be made, this attempt holds it."""
        while True:
            with self.database.transaction() as session:
                if taken := session.rows(self.sql.begin, (*key, lease, *self.sql.clock())):
                    attempt, token = taken[0]
                    return Effect("new" if attempt == 1 else "unknown", attempt, token, key_of(*key))
                found = session.rows(self.sql.look, key)
            # None is found when the other one forgot its effect in between.
            if found:
                return _held_elsewhere(key, *found[0])

    def change(self, statement: str, effect: Effect, *values: float) -> bool:
        """Whether the statement changed the effect of exactly this attempt."""
        with self.database.transaction() as session:
            return session.change(statement, (*values, effect.consumer, str(effect.event_id), effect.token)) == 1

    def unknown(self, consumer: str | None, limit: int) -> list[Effect]:
        """Effects that were begun and never finished, and that nobody holds."""
        with self.database.reading() as session:
            rows = session.rows(self.sql.unknown, (consumer, consumer, limit))
        return [Effect("unknown", attempt, token, key_of(name, event_id)) for name, event_id, attempt, token in rows]

    def resolve(self, key: Key, *, done: bool, by: str, reason: str) -> bool:
        """Settle an unknown effect and write down who did, together."""
        with self.database.transaction() as session:
            changed = session.change(self.sql.resolve_done if done else self.sql.resolve_not_done, key) == 1
            if changed:
                session.change(self.sql.audit, (by, "done" if done else "not done", *key, reason))
        return changed

    def event_ids(self, consumer: str, after: UUID | None, limit: int) -> list[UUID]:
        """A page of those that are done."""
        with self.database.reading() as session:
            rows = session.rows(self.sql.event_ids, (consumer, str(after or ""), limit))
        return [UUID(event_id) for (event_id,) in rows]

    def processed(self, consumer: str, event_ids: Sequence[str]) -> set[UUID]:
        """Those that are done."""
        found: set[UUID] = set()
        for first in range(0, len(event_ids), _CHUNK):
            wanted = msgspec.json.encode(event_ids[first : first + _CHUNK]).decode()
            with self.database.reading() as session:
                found.update(UUID(row[0]) for row in session.rows(self.sql.processed, (consumer, wanted)))
        return found

    def prune(self, seconds: float, batch: int) -> int:
        """Remove up to `batch` rows that were done so long ago; how many."""
        with self.database.transaction() as session:
            return session.change(self.sql.prune, (-seconds, batch))

    def _version(self, session: Session) -> int | None:
        versions = session.rows(self.sql.version)
        found = max((int(row[0]) for row in versions), default=None)
        if found is not None and found > SCHEMA_VERSION:
            raise SchemaMismatch(
                f"the tables of the inbox have version {found}, this program knows {SCHEMA_VERSION}",
                remedy="Upgrade Postroad here.",
            )
        return found


def _held_elsewhere(key: Key, status: str, attempt: int, token: int, left: float | None) -> Effect:
    told: EffectStatus = "done" if status == "done" else "busy"
    return Effect(told, attempt, token, key_of(*key), max(0.0, left or 0.0))
