from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from postroad.engine.engine import Engine
from postroad.errors import StorageDamaged
from postroad.items.port import Item
from postroad.items.sqlite import SQLiteItems
from postroad.streams.port import TRIM_HORIZON, Record
from postroad.streams.sqlite import SQLiteStreams
from postroad.testing.items import ItemsConformance, ItemsFixture


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "postroad.db")
    yield engine
    engine.close()


@pytest.fixture
def items(engine: Engine) -> SQLiteItems:
    return SQLiteItems(engine)


class TestSQLiteItems(ItemsConformance):
    @pytest.fixture
    def ground(self, engine: Engine) -> ItemsFixture:
        return ItemsFixture(items=SQLiteItems(engine), transaction=engine.transaction)


def test_items_survive_a_reopening(engine: Engine, items: SQLiteItems) -> None:
    items.put("acme/a", b"kept")
    engine.close()

    reopened = Engine(engine.path)
    try:
        assert SQLiteItems(reopened).get("acme/a") == Item(key="acme/a", value=b"kept", version=1)
    finally:
        reopened.close()


def test_a_damaged_value_is_noticed_and_can_be_overwritten(engine: Engine, items: SQLiteItems) -> None:
    items.put("acme/a", b"written")
    engine.write(lambda tx: tx.connection.execute("UPDATE items SET value = ?", (b"rotten!",)).fetchall())

    with pytest.raises(StorageDamaged, match="acme/a"):
        items.get("acme/a")
    with pytest.raises(StorageDamaged):
        items.scan("acme/")

    assert items.put("acme/a", b"mended", expect=1).ok
    assert items.get("acme/a") == Item(key="acme/a", value=b"mended", version=2)


def test_an_item_and_a_record_of_one_transaction_happen_together_or_not_at_all(
    engine: Engine, items: SQLiteItems
) -> None:
    stream = SQLiteStreams(engine).stream("orders", shards=1, retention=60)

    with engine.transaction():
        items.put("acme/a", b"kept")
        stream.put([Record("k", b"kept")])
    with suppress(ZeroDivisionError), engine.transaction():
        items.put("acme/a", b"lost")
        stream.put([Record("k", b"lost")])
        raise ZeroDivisionError

    assert items.get("acme/a") == Item(key="acme/a", value=b"kept", version=1)
    assert [r.data for r in stream.read(stream.shards()[0], after=TRIM_HORIZON)] == [b"kept"]


def test_a_transaction_reads_its_own_writes(engine: Engine, items: SQLiteItems) -> None:
    with engine.transaction():
        items.put("acme/a", b"1")

        assert items.get("acme/a") == Item(key="acme/a", value=b"1", version=1)
        assert items.put("acme/a", b"2", expect=1).ok


@pytest.mark.parametrize("verb", ["get", "scan"])
def test_every_verb_finds_its_rows_through_the_index(engine: Engine, items: SQLiteItems, verb: str) -> None:
    plans: list[str] = []

    def look(connection: apsw.Connection) -> None:
        sql, bindings = {
            "get": ("SELECT key, version, crc, value FROM items WHERE key = ?", ("a/b",)),
            "scan": ("SELECT key FROM items WHERE key >= ? AND key > ? AND key < ? ORDER BY key", ("a/", "", "b")),
        }[verb]
        plans.extend(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings))

    engine.read(look)

    assert all(plan.startswith("SEARCH") for plan in plans)
