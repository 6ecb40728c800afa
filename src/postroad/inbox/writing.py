"""The idempotent write by a key of the domain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroad.connections.callers import in_transaction, marked
from postroad.connections.database import check_identifier
from postroad.errors import ConfigurationError

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
