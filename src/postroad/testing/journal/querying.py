"""Querying: eight ways to read, one tenant at a time."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.errors import InvalidQuery
from postroad.journal import Journal, JournalEvent
from postroad.testing.journal.fixture import (
    T0,
    GroundedTests,
    add,
    completed,
    heartbeat,
    in_order,
    made,
    pending,
    whole,
)

WAYS: list[tuple[str, dict[str, Any]]] = [
    ("PK", {}),
    ("GSI1", {"entity": ("TASK", "1")}),
    ("GSI2", {"app": "shop"}),
    ("GSI3", {"app": "shop", "entity": ("TASK", "1")}),
    ("GSI4", {"event_type": "Task Heartbeat"}),
    ("GSI5", {"event_type": "Task Heartbeat", "entity": ("TASK", "1")}),
    ("GSI6", {"event_type": "Task Heartbeat", "app": "shop"}),
    ("GSI7", {"event_type": "Task Heartbeat", "app": "shop", "entity": ("TASK", "1")}),
]
EVERY_WAY = pytest.mark.parametrize(("index", "asked"), WAYS, ids=[index for index, _ in WAYS])
TIMES: list[tuple[int | None, int | None]] = [
    *((T0 + 2, T0 + 4), (None, T0 + 2), (T0 + 3, None), (T0 + 2, T0 + 2), (T0 + 4, T0 + 2)),
    *((None, T0 - 1), (T0 + 6, None), (0, None), (None, 0), (-5, 10**18), (10**13, None), (10**15, None)),
    *((None, T0 // 1000), (0, 5)),
]
REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("index", "GSI8", {}),
    ("index", "gsi1", {"entity": ("TASK", "1")}),
    ("entity", "GSI1", {}),
    ("entity", "PK", {"entity": ("TASK", "1")}),
    ("app", "GSI1", {"entity": ("TASK", "1"), "app": "shop"}),
    ("app", "GSI3", {"entity": ("TASK", "1")}),
    ("event_type", "GSI7", {"entity": ("TASK", "1"), "app": "shop"}),
    ("entity", "GSI1", {"entity": ("task", "1")}),
    ("entity", "GSI1", {"entity": ("TASK", "1#2")}),
    ("entity", "GSI1", {"entity": "TASK#1"}),
    ("app", "GSI2", {"app": ""}),
    ("event_type", "GSI4", {"event_type": "a#b"}),
    ("tenant", "PK", {"tenant": ""}),
    ("tenant", "PK", {"tenant": "a#b"}),
    ("limit", "PK", {"limit": 0}),
    ("limit", "PK", {"limit": -1}),
    ("limit", "PK", {"limit": 1001}),
    ("limit", "PK", {"limit": "x"}),
    ("limit", "PK", {"limit": True}),
    ("start", "PK", {"start": 1.5}),
    ("end", "PK", {"end": "now"}),
]


def matches(event: JournalEvent, asked: dict[str, Any], tenant: str = "acme") -> bool:
    """Whether the event belongs to the answer."""
    return (
        event.tenant_id == tenant
        and asked.get("entity") in (None, (event.entity_type, event.entity_id))
        and asked.get("app") in (None, event.app)
        and asked.get("event_type") in (None, event.event_type)
    )


def mixture() -> list[JournalEvent]:
    """Events whose keys begin alike, with ties."""
    events: list[JournalEvent] = []
    for tenant in ("acme", "acm", "acme2"):
        for app in ("shop", "sho", "shop2"):
            for n, entity in enumerate(("1", "10", "11")):
                given = {"tenant": tenant, "app": app}
                events.append(pending(entity, n, **given))
                events.append(heartbeat(entity, 2, **given))
                events.append(heartbeat(entity, 2 + n, **given))
                events.append(made("Job Resumed", entity, n, properties=resumed(entity), **given))
    return events


def resumed(job_id: str) -> dict[str, Any]:
    return {"jobId": job_id, "resumedTasks": [], "resumeNumber": 1}


class Querying(GroundedTests):
    """What `query` promises, without its pages."""

    @EVERY_WAY
    def test_an_index_answers_with_what_was_asked_for_and_nothing_else(
        self, journal: Journal, index: str, asked: dict[str, Any]
    ) -> None:
        events = mixture()
        add(journal, events[::-1])

        expected = in_order(event for event in events if matches(event, asked))
        assert expected
        assert whole(journal, index, **asked) == expected
        assert whole(journal, index, **asked, descending=True) == expected[::-1]

    @EVERY_WAY
    def test_the_order_of_appending_does_not_matter(self, journal: Journal, index: str, asked: dict[str, Any]) -> None:
        late = [heartbeat("1", ms, app="shop") for ms in (9, 5, 7, 5, 5, 8, 0)]

        for event in late:
            add(journal, [event])

        assert whole(journal, index, **asked) == in_order(late)

    @EVERY_WAY
    def test_both_ends_of_the_time_are_included(self, journal: Journal, index: str, asked: dict[str, Any]) -> None:
        events = [heartbeat("1", ms, app="shop") for ms in (0, 1, 2, 2, 3, 4, 4, 5)]
        add(journal, events)

        for start, end in TIMES:
            found = whole(journal, index, **asked, start=start, end=end)

            low, high = -1 if start is None else start, 10**20 if end is None else end
            assert found == in_order(event for event in events if low <= event.timestamp <= high), (start, end)

    @EVERY_WAY
    def test_what_never_occurred_has_an_empty_answer(self, journal: Journal, index: str, asked: dict[str, Any]) -> None:
        add(journal, [completed("other", app="else")])

        assert journal.query(index, tenant="nobody", **asked).events == []
        assert journal.query(index, tenant="nobody", **asked).cursor is None

    def test_an_entity_of_another_type_is_another_entity(self, journal: Journal) -> None:
        task, job = pending("1"), made("Job Resumed", "1", properties=resumed("1"))
        add(journal, [task, job])

        assert whole(journal, "GSI1", entity=("TASK", "1")) == [task.event_id]
        assert whole(journal, "GSI1", entity=("JOB", "1")) == [job.event_id]

    def test_a_question_that_cannot_be_answered_is_refused(self, journal: Journal) -> None:
        for field, index, asked in REFUSED:
            with pytest.raises(InvalidQuery) as refused:
                journal.query(index, **{"tenant": "acme", **asked})

            assert refused.value.field == field
