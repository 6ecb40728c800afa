"""The journal on the embedded engine keeps every rule of journals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings, strategies as st

from postroad.blobs.directory import DirectoryBlobs
from postroad.engine import Engine, Schema
from postroad.errors import StorageDamaged
from postroad.items.sqlite import SQLiteItems
from postroad.journal import tasks_by_state
from postroad.journal.maintenance import Difference, verify
from postroad.journal.overflow import Overflow
from postroad.journal.sqlite import BACKWARD, COLUMNS, FORWARD, SCHEMA, SQLiteRecords
from postroad.journal.store import StoredJournal
from postroad.testing.journal import JournalConformance, JournalFixture
from postroad.testing.journal_queries import (
    add,
    cancelled,
    completed,
    failed,
    heartbeat,
    pending,
    started,
    timed_out,
    whole,
)

_INDEXES = "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'journal_event'"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "postroad.db")
    yield engine
    engine.close()


class TestSQLiteJournal(JournalConformance):
    @pytest.fixture
    def ground(self, engine: Engine, tmp_path: Path) -> JournalFixture:
        blobs = DirectoryBlobs(tmp_path / "blobs")
        return JournalFixture(journal=StoredJournal(SQLiteRecords(engine), Overflow(blobs)), blobs=blobs)


@pytest.fixture
def journal(engine: Engine) -> StoredJournal:
    return StoredJournal(SQLiteRecords(engine), Overflow(None))


def test_events_survive_a_reopening(engine: Engine, journal: StoredJournal) -> None:
    event = pending("req-1")
    add(journal, [event])
    engine.close()

    reopened = Engine(engine.path)
    try:
        assert whole(StoredJournal(SQLiteRecords(reopened), Overflow(None)), "PK") == [event.event_id]
    finally:
        reopened.close()


def test_a_damaged_row_is_noticed(engine: Engine, journal: StoredJournal) -> None:
    add(journal, [pending("req-1")])
    engine.write(lambda tx: tx.connection.execute("UPDATE journal_event SET body = x'5b5d'").fetchall())

    with pytest.raises(StorageDamaged, match="not what was written"):
        journal.latest("acme", "TASK", "req-1")


def test_an_append_and_an_item_of_one_transaction_happen_together_or_not_at_all(
    engine: Engine, journal: StoredJournal
) -> None:
    items, kept = SQLiteItems(engine), pending("kept")
    with engine.transaction():
        add(journal, [kept])
        items.put("acme/LEASE#TASK#kept", b"1")

    with suppress(ZeroDivisionError), engine.transaction():
        add(journal, [pending("lost")])
        items.put("acme/LEASE#TASK#lost", b"1")
        raise ZeroDivisionError

    assert whole(journal, "PK") == [kept.event_id]
    assert [item.key for item in items.scan("acme/").items] == ["acme/LEASE#TASK#kept"]
    assert tasks_by_state(journal, "acme")["pending"] == ["kept"]
    add(journal, [pending("lost")])
    assert tasks_by_state(journal, "acme")["pending"] == ["kept", "lost"]


def test_a_file_of_an_earlier_version_loses_two_indexes_and_no_answer(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "postroad.db")
    engine.prepare(Schema(SCHEMA.part, SCHEMA.steps[:2]))
    engine.close()

    engine = Engine(tmp_path / "postroad.db")
    try:
        journal = StoredJournal(SQLiteRecords(engine), Overflow(None))
        events = [pending("req-1"), started("req-1"), pending("req-2")]
        add(journal, events)
        asked: dict[str, Any] = {"entity": ("TASK", "req-1"), "app": events[0].app}

        assert whole(journal, "GSI3", **asked) == [event.event_id for event in events[:2]]
        assert whole(journal, "GSI7", event_type="Task Pending", **asked) == [events[0].event_id]
        assert whole(journal, "GSI3", **asked | {"app": "another"}) == []
        found = engine.read(lambda connection: connection.execute(_INDEXES).fetchall())
        assert {name for (name,) in found}.isdisjoint({"journal_gsi3", "journal_gsi7"})
    finally:
        engine.close()


@pytest.mark.parametrize("index", list(FORWARD))
@pytest.mark.parametrize("statements", [FORWARD, BACKWARD], ids=["forward", "backward"])
def test_every_index_is_searched_and_nothing_is_sorted(
    engine: Engine, journal: StoredJournal, index: str, statements: dict[str, str]
) -> None:
    assert journal is not None
    bindings = (*(1 for _ in COLUMNS[index]), b"", b"\xff", 10)

    def plan(connection: apsw.Connection) -> list[str]:
        return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {statements[index]}", bindings)]

    (search,) = engine.read(plan)
    assert search.startswith("SEARCH journal_event USING INDEX")
    assert "place>? AND place<?" in search


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(0, 4)), max_size=12), st.integers(1, 4))
@settings(max_examples=40)
def test_kept_states_are_what_the_events_fold_to(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]], size: int
) -> None:
    makers = [pending, started, heartbeat, completed, failed, timed_out, cancelled, pending, heartbeat]
    events = [makers[kind](f"req-{task}", ms) for task, kind, ms in steps]
    engine = Engine(tmp_path_factory.mktemp("kept") / "postroad.db")
    try:
        journal = StoredJournal(SQLiteRecords(engine), Overflow(None))
        for n in range(0, len(events), size):
            journal.append(events[n : n + size])

        assert verify(journal, "acme").differences == []
        assert verify(journal, "acme").events == len(events)
    finally:
        engine.close()


def test_a_kept_state_that_is_wrong_is_found(engine: Engine, journal: StoredJournal) -> None:
    add(journal, [pending("req-1"), completed("req-2")])
    engine.write(lambda tx: tx.connection.execute("UPDATE journal_task SET state = 'failed' WHERE run = 1").fetchall())

    found = verify(journal, "acme")

    assert found.keeps_states
    assert found.differences == [Difference("req-1", "failed", "pending"), Difference("req-2", "failed", "completed")]
