"""The tables of an outbox: their names in SQL statements, and how they are created, migrated, granted and pruned."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, get_args

from postroad.connections import Database, Dialect, Session, check_identifier
from postroad.errors import ConfigurationError, SchemaMismatch
from postroad.outbox import schema_postgres as postgres, schema_sqlite as sqlite

SCHEMA_VERSION = 2
CHANNEL: Final = "postroad_outbox"
INIT_REMEDY: Final = "Run `postroad outbox init`."
_SLOTS: Final = 2_048
_MAX_NAME: Final = 40
_PARTS: Final = ("audit", "meta", "gaps", "parked", "seq", "token", "wake", "read", "fill", "tell", "times", "release")
_SHARED: Final = {
    "columns": "id, event_id, eventtype, tenant, lane, state, attempts, lasterror, {next}, createdat, updatedat, seq,"
    " redrives",
    "place": "o.event_id, o.state, o.lasterror, o.next_attempt <= {now}, {next},"
    " CASE WHEN o.lease_until > {now} THEN o.lease_owner END, {until}",
    # With the policy "skip", dispatchers go on past the failed rows of a key.
    "holds": "(state = 'PENDING' OR NOT (SELECT policy = 'skip' FROM {meta}))",
}
# Times that drivers cannot read, such as PostgreSQL's 'infinity', are read as the last day of the calendar.
_DIALECTS: Final[dict[Dialect, dict[str, str]]] = {
    "postgresql": {
        "now": "now()",
        "next": "greatest(least(next_attempt, '9999-12-31 00:00+00'), '0001-01-02 00:00+00')",
        "until": "least(o.lease_until, '9999-12-31 00:00+00')",
        "ago": "now() - make_interval(secs => CAST(? AS double precision))",
        "among": "(SELECT jsonb_array_elements_text(CAST(? AS jsonb)))",
        "keys": "(SELECT k ->> 0, k ->> 1 FROM jsonb_array_elements(CAST(? AS jsonb)) AS given (k))",
        "moment": "CAST(? AS timestamptz)",
        "row_id": "CAST(? AS uuid)",
        "age": "coalesce(extract(epoch FROM now() - min(createdat)), 0)",
        "for_update": "FOR UPDATE",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
    },
    "sqlite": {
        "now": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
        "next": "min(next_attempt, '9999-12-31T00:00:00.000Z')",
        "until": "min(o.lease_until, '9999-12-31T00:00:00.000Z')",
        "ago": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-' || ? || ' seconds')",
        "among": "(SELECT value FROM json_each(?))",
        "keys": "(SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))",
        "moment": "?",
        "row_id": "?",
        "age": "coalesce((julianday('now') - julianday(min(createdat))) * 86400, 0)",
        "for_update": "",
        "skip_locked": "",
    },
}


class Tables:
    """The tables of one outbox. Calling it with a statement returns the statement for these tables."""

    def __init__(
        self,
        dialect: Dialect,
        table: str = "outbox",
        schema: str | None = None,
        *,
        phrases: Iterable[tuple[str, str]] = (),
    ) -> None:
        check_identifier(table, "table", most=_MAX_NAME)
        if schema is not None:
            check_identifier(schema, "schema", most=_MAX_NAME)
        self.dialect: Dialect = dialect
        self.table = table
        self.schema = schema
        """None on SQLite, which has no schemas."""
        self.space = zlib.crc32(f"postroad {schema}.{table}".encode()) - (1 << 31)
        """The first half of this outbox's advisory locks; the second is the slot of a key, or 2,048 for `init`."""
        names = {part: self.qualified(f"{table}_{part}") for part in _PARTS}
        names |= {"outbox": self.qualified(table), "table": table, "schema": f'"{schema}"', "space": str(self.space)}
        self._texts = *phrases, *_SHARED.items(), *_DIALECTS[dialect].items(), *names.items()
        self._filled: dict[str, str] = {}

    def __call__(self, statement: str) -> str:
        """Return the statement with {outbox}, {audit}, {columns}, {now}, … replaced by the SQL of this outbox."""
        if (filled := self._filled.get(statement)) is None:
            filled = statement
            for name, text in self._texts:
                filled = filled.replace(f"{{{name}}}", text)
            self._filled[statement] = filled
        return filled

    def qualified(self, name: str) -> str:
        """Return the name as SQL has it: quoted, with its schema."""
        return f'"{name}"' if self.schema is None else f'"{self.schema}"."{name}"'

    def with_phrases(self, phrases: Mapping[str, str]) -> Tables:
        """Return the same tables for statements that use further phrases, which may use those known here."""
        return Tables(self.dialect, self.table, self.schema, phrases=phrases.items())


def moment(value: Any) -> datetime:
    """Return a time that was read from the database, aware and in UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    try:
        read = datetime.fromisoformat(str(value))
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)


_LOCK: Final = f"SELECT pg_advisory_xact_lock({{space}}, {_SLOTS})"
_HAS_META: Final = {
    "postgresql": "SELECT to_regclass('{meta}') IS NOT NULL",
    "sqlite": "SELECT count(*) > 0 FROM sqlite_master WHERE type = 'table' AND name = '{table}_meta'",
}
_VERSION: Final = "SELECT version FROM {meta}"
_SET_VERSION: Final = """
INSERT INTO {meta} (one, version) VALUES (true, ?)
ON CONFLICT (one) DO UPDATE SET version = excluded.version, migrated_at = {now}
"""
_COLUMNS: Final = {
    "postgresql": """
SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass('{outbox}') AND attnum > 0 AND NOT attisdropped
""",
    "sqlite": "SELECT lower(name) FROM pragma_table_info('{table}')",
}
_SEED_COLUMNS: Final = frozenset(
    {"id", "eventtype", "payload", "state", "attempts", "lasterror", "next_attempt", "createdat", "updatedat"}
)
"""The columns that an existing table needs to become an outbox."""


def init(database: Database, tables: Tables) -> int:
    """Create or migrate the tables and return their version. If two processes do this at once, the second waits."""
    database.create()
    with database.transaction() as session:
        if tables.dialect == "postgresql":
            session.rows(tables(_LOCK))
        found = _version(session, tables)
        # A table of another program must not get our triggers, which would fail its inserts.
        if (columns := _columns(session, tables)) and (missing := _SEED_COLUMNS - columns):
            raise ConfigurationError(
                f"table: {tables.table!r} exists already and is not an outbox: it has no column"
                f" {', '.join(sorted(missing))}",
                field="table",
                remedy="Name another table; nothing was changed.",
            )
        for version in range(found, SCHEMA_VERSION):
            _migrate(session, tables, version)
        if found != SCHEMA_VERSION:
            session.change(tables(_SET_VERSION), (SCHEMA_VERSION,))
    return SCHEMA_VERSION


def require(database: Database, tables: Tables) -> None:
    """Raise SchemaMismatch unless the tables exist in the version that this Postroad needs."""
    with database.reading() as session:
        found = _version(session, tables)
    if found < SCHEMA_VERSION:
        shown = "missing" if found == 0 else f"of version {found}; this Postroad needs {SCHEMA_VERSION}"
        raise SchemaMismatch(f"the tables of the outbox are {shown}", remedy=INIT_REMEDY)


def script(tables: Tables) -> str:
    """Return the SQL that `init` runs on an empty database. It neither begins nor ends a transaction."""
    version = tables(_SET_VERSION).strip().replace("?", str(SCHEMA_VERSION)) + ";"
    if tables.dialect == "postgresql":
        return "\n".join((tables(_LOCK) + ";", *map(tables, postgres.STEPS), version, ""))
    steps = [
        tables(";\n".join((before.strip().removesuffix(";"), *columns.values(), after)))
        for before, columns, after in sqlite.STEPS
    ]
    return "\n".join((*steps, version, ""))


def _version(session: Session, tables: Tables) -> int:
    if not session.rows(tables(_HAS_META[tables.dialect]))[0][0]:
        return 0
    rows = session.rows(tables(_VERSION))
    found = int(rows[0][0]) if rows else 0
    if found > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the tables of the outbox are of version {found}; this Postroad knows up to {SCHEMA_VERSION}",
            remedy="Upgrade Postroad.",
        )
    return found


def _columns(session: Session, tables: Tables) -> set[str]:
    return {name for (name,) in session.rows(tables(_COLUMNS[tables.dialect]))}


def _migrate(session: Session, tables: Tables, version: int) -> None:
    if tables.dialect == "postgresql":
        session.script(tables(postgres.STEPS[version]))
        return
    before, columns, after = sqlite.STEPS[version]
    session.script(tables(before))
    existing = _columns(session, tables)
    for name, statement in columns.items():
        if name not in existing:
            session.change(tables(statement))
    session.script(tables(after))


Role = Literal["producer", "dispatcher", "operator"]
_PRODUCER: Final = """
GRANT USAGE ON SCHEMA {schema} TO "{to}";
GRANT INSERT ON {outbox} TO "{to}";
"""
_DISPATCHER: Final = """
GRANT USAGE ON SCHEMA {schema} TO "{to}";
GRANT SELECT, UPDATE ON {outbox}, {meta} TO "{to}";
GRANT DELETE ON {outbox} TO "{to}";
GRANT SELECT, INSERT, UPDATE, DELETE ON {gaps}, {parked} TO "{to}";
GRANT USAGE, SELECT, UPDATE ON SEQUENCE {token}, {wake} TO "{to}";
"""
_OPERATOR: Final = """GRANT SELECT, INSERT ON {audit} TO "{to}";
"""
_GRANTS: Final = {"producer": _PRODUCER, "dispatcher": _DISPATCHER, "operator": _DISPATCHER + _OPERATOR}


def grants(tables: Tables, role: Role, to: str) -> str:
    """Return the statements that grant the database role `to` what the role needs, and no more."""
    if role not in get_args(Role):
        raise ConfigurationError(f"role: {role!r} is not one of {', '.join(get_args(Role))}", field="role")
    check_identifier(to, "to")
    return tables(_GRANTS[role].replace("{to}", to)).lstrip()


# Rows that another transaction has locked are left for the next time, so that this one does not wait.
_PRUNE: Final = """
DELETE FROM {outbox} WHERE id IN (
  SELECT id FROM {outbox} WHERE state IN ('SENT', 'SKIPPED') AND updatedat <= {ago}
   ORDER BY updatedat LIMIT ? {skip_locked})
"""
# Databases cannot count back further than their calendar.
_LONGEST: Final = timedelta(days=365_000)


def prune_batch(database: Database, tables: Tables, *, older_than: timedelta, batch: int) -> int:
    """Delete up to `batch` rows that were sent or skipped so long ago, or longer, and return how many."""
    given: object = older_than
    if not isinstance(given, timedelta) or given < timedelta(0):
        raise ValueError(f"older_than: {older_than!r} is not a timedelta of 0 or more")
    seconds = min(given, _LONGEST).total_seconds()
    with database.transaction() as session:
        return session.change(tables(_PRUNE), (f"{seconds:.3f}", batch))
