"""Paging: all pages joined are the unpaged answer, and a cursor is of one question."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from postroad.errors import InvalidCursor
from postroad.journal import Journal, Page
from postroad.testing.journal.fixture import T0, GroundedTests, add, heartbeat, ids, in_order, pending, whole
from postroad.testing.journal.querying import EVERY_WAY
from postroad.wiring import connect

TIES = (0, 0, 0, 0, 0, 1, 2, 2, 2, 5, 5, 9)
OTHER_QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("PK", {"tenant": "acme"}),
    ("GSI1", {"tenant": "other", "entity": ("TASK", "1")}),
    ("GSI1", {"tenant": "acme", "entity": ("TASK", "10")}),
    ("GSI1", {"tenant": "acme", "entity": ("TASK", "1"), "descending": True}),
    ("GSI1", {"tenant": "acme", "entity": ("TASK", "1"), "start": T0}),
    ("GSI1", {"tenant": "acme", "entity": ("TASK", "1"), "end": T0 + 99}),
    ("GSI3", {"tenant": "acme", "entity": ("TASK", "1"), "app": "shop"}),
]

GARBAGE: list[Any] = ["", "x", "%%%", "é", "A" * 46, "A" * 45, "=" * 8, "..", 7]


def every_page(journal: Journal, index: str, **asked: Any) -> Iterator[Page]:
    """The pages of a query, one after another."""
    cursor = None
    while True:
        page = journal.query(index, tenant="acme", cursor=cursor, **asked)
        yield page
        if (cursor := page.cursor) is None:
            return


class Paging(GroundedTests):
    """What the pages of `query` promise."""

    @EVERY_WAY
    def test_all_pages_joined_are_the_unpaged_answer(self, journal: Journal, index: str, asked: dict[str, Any]) -> None:
        events = [heartbeat("1", ms, app="shop") for ms in TIES]
        noise = [heartbeat("1", ms, app="shop", tenant=tenant) for ms in TIES[::3] for tenant in ("acm", "acme2")]
        add(journal, noise + events[::-1])

        for limit, descending in product((1, 5, 12), (False, True)):
            pages = list(every_page(journal, index, limit=limit, descending=descending, **asked))

            found = [event for page in pages for event in page.events]
            assert ids(found) == in_order(events)[:: -1 if descending else 1]
            assert [len(page.events) for page in pages[:-1]] == [limit] * (len(pages) - 1)
            assert len(pages) == -(-len(events) // limit)

    def test_newer_events_that_come_between_pages_are_found_too(self, journal: Journal) -> None:
        events = [heartbeat("1", ms) for ms in (0, 1, 1, 2)]
        add(journal, events)
        first = journal.query("GSI1", tenant="acme", entity=("TASK", "1"), limit=2)
        newer = [heartbeat("1", ms) for ms in (2, 3)]
        add(journal, newer)

        rest = journal.query("GSI1", tenant="acme", entity=("TASK", "1"), cursor=first.cursor)

        assert ids(first.events + rest.events) == in_order([*events, *newer])

    def test_the_page_may_grow_from_one_to_the_next(self, journal: Journal) -> None:
        events = [pending(f"req-{n}", n // 2) for n in range(7)]
        add(journal, events)
        first = journal.query("PK", tenant="acme", limit=1)

        rest = journal.query("PK", tenant="acme", limit=1000, cursor=first.cursor, raw=True)

        assert ids(first.events + rest.events) == in_order(events)

    def test_a_cursor_is_text_that_a_url_can_hold(self, journal: Journal) -> None:
        add(journal, [pending("1"), pending("2")])

        cursor = journal.query("PK", tenant="acme", limit=1).cursor

        assert cursor is not None
        assert set(cursor) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")

    def test_a_cursor_goes_on_in_another_journal_with_the_same_events(self, journal: Journal) -> None:
        events = [heartbeat("1", ms) for ms in TIES]
        asked: dict[str, Any] = {"tenant": "acme", "entity": ("TASK", "1")}
        with connect("memory://") as backend:
            other = backend.journal()
            add(journal, events)
            add(other, events)

            here, there = (one.query("GSI1", **asked, limit=4) for one in (journal, other))
            rest = [one.query("GSI1", **asked, cursor=here.cursor).events for one in (journal, other)]

        assert here.cursor == there.cursor
        assert ids(rest[0]) == ids(rest[1]) == in_order(events)[4:]

    def test_a_cursor_of_another_question_is_refused(self, journal: Journal) -> None:
        add(journal, [heartbeat("1", ms, app="shop") for ms in TIES])
        cursor = journal.query("GSI1", tenant="acme", entity=("TASK", "1"), limit=3).cursor

        for index, asked in OTHER_QUESTIONS:
            with pytest.raises(InvalidCursor):
                journal.query(index, **asked, cursor=cursor)

    def test_garbage_is_no_cursor(self, journal: Journal) -> None:
        for garbage in GARBAGE:
            with pytest.raises(InvalidCursor):
                journal.query("PK", tenant="acme", cursor=garbage)

    def test_an_altered_cursor_is_refused(self, journal: Journal) -> None:
        add(journal, [pending("1"), pending("2")])
        cursor = journal.query("PK", tenant="acme", limit=1).cursor or ""

        for place in range(0, len(cursor), 7):
            altered = cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
            with pytest.raises(InvalidCursor):
                journal.query("PK", tenant="acme", cursor=altered)
        assert len(whole(journal, "PK")) == 2
