"""Whatever was appended, all pages joined are the unpaged answer, and both are what was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.memory import memory_records

from postroad.engine.engine import Engine
from postroad.journal import Journal, JournalEvent
from postroad.journal.overflow import Overflow
from postroad.journal.sqlite import SQLiteRecords
from postroad.journal.store import StoredJournal
from postroad.testing.journal_queries import T0, WAYS, heartbeat, ids, in_order, matches, pending, whole

events = st.lists(
    st.builds(
        lambda make, entity, ms, app, tenant: make(entity, ms, app=app, tenant=tenant),
        st.sampled_from([pending, heartbeat]),
        st.sampled_from(["1", "10"]),
        st.integers(0, 5),
        st.sampled_from(["shop", "sho"]),
        st.sampled_from(["acme", "acm"]),
    ),
    max_size=30,
)
ways = st.sampled_from(WAYS)
times = st.one_of(st.none(), st.integers(T0 - 1, T0 + 6))


@contextmanager
def journals(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    if kind == "memory":
        yield StoredJournal(memory_records(), Overflow(None))
        return
    engine = Engine(tmp_path_factory.mktemp("pages") / "postroad.db")
    try:
        yield StoredJournal(SQLiteRecords(engine), Overflow(None))
    finally:
        engine.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_pages_joined_are_the_answer(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(max_examples=60)
    @given(events, ways, times, times, st.booleans(), st.integers(1, 7))
    def check(
        happened: list[JournalEvent],
        way: tuple[str, dict[str, Any]],
        start: int | None,
        end: int | None,
        descending: bool,
        limit: int,
    ) -> None:
        index, asked = way
        given: dict[str, Any] = {**asked, "start": start, "end": end, "descending": descending}
        with journals(kind, tmp_path_factory) as journal:
            journal.append(happened[::2])
            journal.append(happened[1::2])

            expected = in_order(
                event
                for event in happened
                if matches(event, asked) and (start or 0) <= event.timestamp <= (T0 * 2 if end is None else end)
            )[:: -1 if descending else 1]
            assert whole(journal, index, **given) == expected
            assert pages(journal, index, limit=limit, **given) == expected

    check()


def pages(journal: Journal, index: str, **asked: Any) -> list[Any]:
    """The ids of all pages, one after another."""
    found, cursor = [], None
    while True:
        page = journal.query(index, tenant="acme", cursor=cursor, **asked)
        found += ids(page.events)
        if (cursor := page.cursor) is None:
            return found
