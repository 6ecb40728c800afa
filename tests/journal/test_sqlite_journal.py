"""The journal on the embedded engine keeps every rule of journals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import pytest
from hypothesis import given, settings, strategies as st

from postroad.blobs.directory import DirectoryBlobs
from postroad.engine import Engine, Schema
from postroad.errors import StorageDamaged
from postroad.items.sqlite import SQLiteItems
from postroad.journal import JournalEvent, every_event, tasks_by_state
from postroad.journal.maintenance import Difference, verify
from postroad.journal.overflow import Overflow
from postroad.journal.sqlite import SCHEMA, SEARCHES, SQLiteRecords, in_order
from postroad.journal.store import StoredJournal
from postroad.testing.journal import JournalConformance, JournalFixture
from postroad.testing.journal_queries import (
    T0,
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


def test_a_file_of_an_earlier_version_loses_four_indexes_and_no_answer(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "postroad.db")
    engine.prepare(Schema(SCHEMA.part, SCHEMA.steps[:2]))
    engine.close()

    engine = Engine(tmp_path / "postroad.db")
    try:
        journal = StoredJournal(SQLiteRecords(engine), Overflow(None))
        events = [pending("req-1"), started("req-1"), pending("req-2")]
        add(journal, events)
        asked: dict[str, Any] = {"entity": ("TASK", "req-1"), "app": events[0].app}

        assert whole(journal, "GSI2", app=events[0].app) == [event.event_id for event in events]
        assert whole(journal, "GSI3", **asked) == [event.event_id for event in events[:2]]
        assert whole(journal, "GSI4", event_type="Task Pending") == [events[0].event_id, events[2].event_id]
        assert whole(journal, "GSI7", event_type="Task Pending", **asked) == [events[0].event_id]
        assert whole(journal, "GSI3", **asked | {"app": "another"}) == []
        found = engine.read(lambda connection: connection.execute(_INDEXES).fetchall())
        assert {name for (name,) in found} == {f"journal_{name}" for name in ("pk", "gsi1", "gsi5", "gsi6")}
    finally:
        engine.close()


@pytest.mark.parametrize("index", list(SEARCHES))
@pytest.mark.parametrize("count", [1, 2, 5, 100])
@pytest.mark.parametrize("descending", [False, True], ids=["forward", "backward"])
def test_every_index_is_searched_and_nothing_is_sorted(
    engine: Engine, journal: StoredJournal, index: str, count: int, descending: bool
) -> None:
    assert journal is not None
    statement = in_order(SEARCHES[index], count, descending=descending)
    bindings = (1,) * statement.count("?")

    def plan(connection: apsw.Connection) -> list[str]:
        return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", bindings)]

    steps = [step for step in engine.read(plan) if step not in ("MERGE (UNION ALL)", "LEFT", "RIGHT")]
    assert len(steps) == count
    assert all(step.startswith("SEARCH journal_event USING INDEX") for step in steps)
    assert all("place>? AND place<?" in step for step in steps)


@pytest.mark.parametrize(("apps", "types"), [(1, 250), (250, 1), (7, 7)])
@pytest.mark.parametrize("descending", [False, True], ids=["forward", "backward"])
def test_pages_of_many_apps_and_types_hold_every_event_once_and_in_order(
    engine: Engine, journal: StoredJournal, apps: int, types: int, descending: bool
) -> None:
    names = [(f"app-{each % apps}", f"Thing Number{each % types}", f"thing-{each}") for each in range(600)]
    events = [
        JournalEvent.create(
            event_type, entity_type="APP", tenant_id=tenant, entity_id=entity, app=app, properties={}, timestamp=T0 + n
        )
        for tenant in ("acme", "acme2")
        for n, (app, event_type, entity) in enumerate(names)
    ]
    random.Random(1).shuffle(events)
    add(journal, events)

    def found(index: str, **asked: Any) -> list[JournalEvent]:
        return list(every_event(journal, index, tenant="acme", descending=descending, limit=70, **asked))

    def expected(keep: Callable[[JournalEvent], bool]) -> list[JournalEvent]:
        kept = [event for event in events if event.tenant_id == "acme" and keep(event)]
        return sorted(kept, key=lambda event: event.timestamp, reverse=descending)

    def ids(some: Iterable[JournalEvent]) -> list[UUID]:
        return [event.event_id for event in some]

    assert ids(found("GSI2", app="app-0")) == ids(expected(lambda event: event.app == "app-0"))
    kind = "Thing Number0"
    assert ids(found("GSI4", event_type=kind)) == ids(expected(lambda event: event.event_type == kind))


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
