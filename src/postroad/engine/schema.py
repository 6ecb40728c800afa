"""What the file knows of itself: its salt, and the version of each part's tables, migrated step by step."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw

from postroad.errors import SchemaMismatch, StorageDamaged


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one part. Step n brings a file from version n to n + 1; steps are only ever added."""

    part: str
    steps: tuple[str, ...]


_TABLES: Final = """
CREATE TABLE IF NOT EXISTS part (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL, boot TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS file (salt INTEGER NOT NULL) STRICT;
"""
META_TABLES: Final = frozenset(("part", "file"))
_SALT: Final = "SELECT salt FROM file"
_SET_SALT: Final = "INSERT INTO file (salt) SELECT ? WHERE NOT EXISTS (SELECT 1 FROM file)"
_PART: Final = "SELECT version, boot FROM part WHERE name = ?"
_SET_PART: Final = """
INSERT INTO part (name, version, boot) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET version = excluded.version, boot = excluded.boot
"""


def begin_file(connection: apsw.Connection) -> None:
    """Make what every file has; one that has it stays as it is."""
    connection.execute(_TABLES)
    connection.execute(_SET_SALT, (int.from_bytes(os.urandom(8)) >> 4,))


def read_salt(connection: apsw.Connection) -> int:
    """Return the file's 60 random bits, which no other file has."""
    salt = connection.execute(_SALT).get
    if salt is None:
        raise StorageDamaged(
            f"{connection.filename}: the number that tells this file from others is gone",
            remedy="Restore the file from a backup.",
        )
    return int(salt)


def part_of(connection: apsw.Connection, schema: Schema, path: Path) -> tuple[int, str]:
    """The version of the part's tables, 0 when there are none, and the boot of the machine that they belong to."""
    version, boot = connection.execute(_PART, (schema.part,)).fetchone() or (0, "")
    newest = len(schema.steps)
    if version > newest:
        raise SchemaMismatch(f"{path}: its {schema.part} are of version {version}; this Postroad knows up to {newest}")
    return version, boot


def migrate(connection: apsw.Connection, schema: Schema, boot_id: str, path: Path) -> bool:
    """Bring the part's tables to the newest version; says whether the machine was booted since the last time."""
    version, boot = part_of(connection, schema, path)
    newest = len(schema.steps)
    for step in schema.steps[version:]:
        connection.execute(step)
    if version != newest or boot != boot_id:
        connection.execute(_SET_PART, (schema.part, newest, boot_id))
    return version > 0 and boot != boot_id
