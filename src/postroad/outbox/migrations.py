"""Creates and migrates the tables, tells whether they are as needed, and which rights each role needs."""

from __future__ import annotations

from typing import Final, Literal, get_args

from postroad.connections import Database, Session, check_identifier
from postroad.errors import ConfigurationError, SchemaMismatch
from postroad.outbox.dialects import Phrases
from postroad.outbox.schema import SCHEMA_VERSION, Names, postgres, sqlite
from postroad.outbox.schema.names import SLOTS

INIT_REMEDY: Final = "Run `postroad outbox init`."
_LOCK: Final = f"SELECT pg_advisory_xact_lock({{space}}, {SLOTS})"
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
_SEEDS: Final = frozenset(
    {"id", "eventtype", "payload", "state", "attempts", "lasterror", "next_attempt", "createdat", "updatedat"}
)
"""The columns of a table that can be made an outbox."""


def init(database: Database, words: Phrases) -> int:
    """Create or migrate the tables; the version they are of afterwards. Of two at once the second finds all done."""
    database.create()
    with database.transaction() as session:
        if words.dialect == "postgresql":
            session.rows(words(_LOCK))
        found = _version(session, words)
        _refuse_newer(found)
        _refuse_foreign(_columns(session, words), words)
        for version in range(found, SCHEMA_VERSION):
            _migrate(session, words, version)
        if found != SCHEMA_VERSION:
            session.change(words(_SET_VERSION), (SCHEMA_VERSION,))
    return SCHEMA_VERSION


def require(database: Database, words: Phrases) -> None:
    """Raise SchemaMismatch unless the tables are there, in the version that this Postroad knows."""
    with database.reading() as session:
        found = _version(session, words)
    _refuse_newer(found)
    if found < SCHEMA_VERSION:
        shown = "missing" if found == 0 else f"of version {found}; this Postroad needs {SCHEMA_VERSION}"
        raise SchemaMismatch(f"the tables of the outbox are {shown}", remedy=INIT_REMEDY)


def script(words: Phrases) -> str:
    """The SQL that `init` runs on a database that has never seen it, for those who run SQL by other means.

    It begins and ends no transaction, so that it may be part of one.
    """
    version = words(_SET_VERSION).strip().replace("?", str(SCHEMA_VERSION)) + ";"
    if words.dialect == "postgresql":
        return "\n".join((words(_LOCK) + ";", *map(words, postgres.STEPS), version, ""))
    steps = [
        words(";\n".join((before.strip().removesuffix(";"), *columns.values(), after)))
        for before, columns, after in sqlite.STEPS
    ]
    return "\n".join((*steps, version, ""))


def _version(session: Session, words: Phrases) -> int:
    if not session.rows(words(_HAS_META[words.dialect]))[0][0]:
        return 0
    found = session.rows(words(_VERSION))
    return int(found[0][0]) if found else 0


def _refuse_newer(found: int) -> None:
    if found > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the tables of the outbox are of version {found}; this Postroad knows up to {SCHEMA_VERSION}",
            remedy="Upgrade Postroad.",
        )


def _columns(session: Session, words: Phrases) -> set[str]:
    """The columns of the table, none when it is not there."""
    return {name for (name,) in session.rows(words(_COLUMNS[words.dialect]))}


def _refuse_foreign(columns: set[str], words: Phrases) -> None:
    """A table of another program must not get our triggers, which would fail its inserts."""
    if columns and (missing := _SEEDS - columns):
        table = words.names.table
        raise ConfigurationError(
            f"table: {table!r} is there already and is no outbox: it has no column {', '.join(sorted(missing))}",
            field="table",
            remedy="Name another table; nothing was changed.",
        )


def _migrate(session: Session, words: Phrases, version: int) -> None:
    if words.dialect == "postgresql":
        session.script(words(postgres.STEPS[version]))
        return
    before, columns, after = sqlite.STEPS[version]
    session.script(words(before))
    there = _columns(session, words)
    for name, statement in columns.items():
        if name not in there:
            session.change(words(statement))
    session.script(words(after))


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
_OPERATOR: Final = (
    _DISPATCHER
    + """GRANT SELECT, INSERT ON {audit} TO "{to}";
"""
)
_GRANTS: Final[dict[Role, str]] = {"producer": _PRODUCER, "dispatcher": _DISPATCHER, "operator": _OPERATOR}


def grants(names: Names, role: Role, to: str) -> str:
    """The statements that let the database role `to` do what the role needs, and no more."""
    if role not in get_args(Role):
        raise ConfigurationError(f"role: {role!r} is none of {', '.join(get_args(Role))}", field="role")
    check_identifier(to, "to")
    return names.fill(_GRANTS[role].replace("{to}", to)).lstrip()
