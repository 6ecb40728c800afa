"""Items on the embedded engine: one row each, written in the transaction of the change they belong to."""

from __future__ import annotations

import zlib
from typing import Any

import apsw

from postroad.engine import Engine, Schema, Transaction, every, one, text_of
from postroad.errors import StorageDamaged
from postroad.items import port
from postroad.items.port import ABSENT, ANY, Expected, Item, ItemPage, ItemResult, ItemsTraits

_SCHEMA = Schema(
    "items",
    (
        """
        CREATE TABLE items (
            id INTEGER PRIMARY KEY,
            key TEXT NOT NULL UNIQUE,
            version INTEGER NOT NULL,
            crc INTEGER NOT NULL,
            value BLOB NOT NULL
        ) STRICT;
        """,
    ),
)
_GET = "SELECT CAST(key AS BLOB), version, crc, value FROM items WHERE key = ?"
_PUT = """
INSERT INTO items (key, version, crc, value) VALUES (?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET version = excluded.version, crc = excluded.crc, value = excluded.value
"""
_ADD = "INSERT INTO items (key, version, crc, value) VALUES (?, 1, ?, ?) ON CONFLICT DO NOTHING"
_REPLACE = "UPDATE items SET version = version + 1, crc = ?, value = ? WHERE key = ? AND version = ?"
_DELETE = "DELETE FROM items WHERE key = ?"
_SCAN = """
SELECT CAST(key AS BLOB), version, crc, value FROM items WHERE key >= ? AND key > ? AND key < ? ORDER BY key LIMIT ?
"""
# It sorts behind every printable character, so that it bounds all keys with a prefix.
_LAST_CHARACTER = "\U0010ffff"


class SQLiteItems:
    """Items in the engine's file; a write inside `engine.transaction()` commits with the others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.prepare(_SCHEMA)
        self.traits = ItemsTraits(durable=engine.durable, joins_writes=True, max_value_bytes=port.MAX_VALUE_BYTES)

    def get(self, key: str) -> Item | None:
        port.check_key(key)
        return self._engine.read(lambda connection: _item(one(connection, _GET, (key,))))

    def put(self, key: str, value: bytes, *, expect: Expected = ANY) -> ItemResult:
        port.check_value(value)
        return self._change(key, value, expect)

    def delete(self, key: str, *, expect: Expected = ANY) -> ItemResult:
        return self._change(key, None, expect)

    def _change(self, key: str, value: bytes | None, expect: Expected) -> ItemResult:
        """Write the value, or remove the item for None, if the condition holds."""
        port.check_key(key)
        wanted = port.check_expect(expect)

        def work(tx: Transaction) -> ItemResult:
            if value is not None and (version := _written(tx.connection, key, value, wanted)):
                return ItemResult(ok=True, item=Item(key=key, value=value, version=version))
            row = one(tx.connection, _GET, (key,))
            if not port.holds(wanted, row and row[1]):
                return ItemResult(ok=False, item=_item(row))
            if value is None:
                tx.connection.execute(_DELETE, (key,))
                return ItemResult(ok=True, item=None)
            version = 1 if row is None else row[1] + 1
            tx.connection.execute(_PUT, (key, version, zlib.crc32(value), value))
            return ItemResult(ok=True, item=Item(key=key, value=value, version=version))

        return self._engine.write(work, removes=value is None)

    def scan(self, prefix: str, *, limit: int = 100, cursor: str | None = None) -> ItemPage:
        port.check_scan(prefix, limit, cursor)
        bounds = (prefix, cursor or "", prefix + _LAST_CHARACTER, limit + 1)
        rows = self._engine.read(lambda connection: every(connection, _SCAN, bounds))
        items = tuple(item for row in rows[:limit] if (item := _item(row)) is not None)
        return ItemPage(items=items, cursor=items[-1].key if len(rows) > limit else None)


def _written(connection: apsw.Connection, key: str, value: bytes, expect: Expected) -> int | None:
    """Write the value by one statement if the item is as expected, and return its version; None if it is not."""
    proof = zlib.crc32(value)
    if expect is ABSENT:
        connection.execute(_ADD, (key, proof, value))
        return 1 if connection.changes() else None
    if isinstance(expect, int):
        connection.execute(_REPLACE, (proof, value, key, expect))
        return expect + 1 if connection.changes() else None
    return None


def _item(row: Any) -> Item | None:
    if row is None:
        return None
    name, version, crc, value = row
    key = str(text_of(name))
    if zlib.crc32(value) != crc or key.encode() != name:
        raise StorageDamaged(
            f"item {key!r}: it is not what was written",
            remedy="Restore the file from a backup, or delete or overwrite the item.",
        )
    return Item(key=key, value=value, version=version)
