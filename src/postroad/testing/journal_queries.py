"""What all parts of the journal suite share: its fixture and events to append; and the rules of queries and pages."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest

from postroad.blobs import Blobs
from postroad.errors import InvalidCursor, InvalidQuery
from postroad.journal import Journal, JournalEvent, Page, TaskState, every_event, task_state
from postroad.testing.conformance import Suite, refuses
from postroad.wiring import connect

T0 = 1_767_453_739_640
"""The time from which the suites count, in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFixture:
    """An empty journal, and the blobs in which it stores large properties.

    Attributes:
        journal: The adapter under test.
        blobs: The blobs.
    """

    journal: Journal
    blobs: Blobs


class JournalRules(Suite):
    """The fixtures of every part of the suite."""

    @pytest.fixture
    def journal(self, ground: JournalFixture) -> Journal:
        return ground.journal


def made(event_type: str, entity_id: str, ms: int = 0, *, tenant: str = "acme", **given: Any) -> JournalEvent:
    """Return an event of tenant acme, `ms` milliseconds after T0."""
    return JournalEvent.create(event_type, tenant_id=tenant, entity_id=entity_id, timestamp=T0 + ms, **given)


def _task(event_type: str, fixed: dict[str, Any], request_id: str, ms: int = 0, **given: Any) -> JournalEvent:
    properties = {"requestId": request_id, **fixed, **given.pop("properties", {})}
    return made(event_type, request_id, ms, properties=properties, **given)


Maker = Callable[..., JournalEvent]
_RUN: dict[str, Any] = {"effectiveUntil": 1_767_453_800, "workerId": "w-1", "processId": 7}
_ALIVE = {**_RUN, "heartbeatNumber": 1, "elapsedMs": 5, "memoryUsage": {"rss": 1}}
_FAILURE = {"error": "no", "errorCategory": "auth", "retryCount": 1, "source": "worker"}
pending: Maker = partial(_task, "Task Pending", {"name": "scrape"})
started: Maker = partial(_task, "Task Processing Started", _RUN)
heartbeat: Maker = partial(_task, "Task Heartbeat", _ALIVE)
failed: Maker = partial(_task, "Task Failed", _FAILURE)
timed_out: Maker = partial(_task, "Task Timeout", {"timeoutMs": 5, "elapsedMs": 6, "signal": "SIGKILL"})
cancelled: Maker = partial(_task, "Task Cancelled", {"reason": "enough"})


def completed(request_id: str, ms: int = 0, *, output: Any = None, **given: Any) -> JournalEvent:
    return _task("Task Completed", {"output": output, "durationMs": 1, "exitCode": 0}, request_id, ms, **given)


def add(journal: Journal, events: Sequence[JournalEvent]) -> None:
    """Append events that must be accepted."""
    results = journal.append(events)
    assert [result.error for result in results] == [None] * len(events)
    assert [result.event_id for result in results] == [event.event_id for event in events]


def ids(events: Iterable[JournalEvent]) -> list[Any]:
    return [event.event_id for event in events]


def in_order(events: Iterable[JournalEvent]) -> list[Any]:
    return ids(sorted(events, key=lambda event: (event.timestamp, event.event_id)))


def whole(journal: Journal, index: str, **asked: Any) -> list[Any]:
    """Return the ids of all pages of a query."""
    return ids(every_event(journal, index, tenant=asked.pop("tenant", "acme"), **asked))


def latest(journal: Journal, request_id: str) -> JournalEvent:
    """Return the latest event of a task that has one."""
    found = journal.latest("acme", "TASK", request_id)
    assert found is not None
    return found


def state_of(journal: Journal, request_id: str, **given: Any) -> TaskState:
    """Return the state of a task that has one."""
    state = task_state(journal, "acme", request_id, **given)
    assert state is not None
    return state


TASK: dict[str, Any] = {"entity": ("TASK", "1")}
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("PK", {}),
    ("GSI1", TASK),
    ("GSI2", {"app": "shop"}),
    ("GSI3", {"app": "shop", **TASK}),
    ("GSI4", {"event_type": "Task Heartbeat"}),
    ("GSI5", {"event_type": "Task Heartbeat", **TASK}),
    ("GSI6", {"event_type": "Task Heartbeat", "app": "shop"}),
    ("GSI7", {"event_type": "Task Heartbeat", "app": "shop", **TASK}),
]
EVERY_WAY = pytest.mark.parametrize(("index", "asked"), WAYS, ids=[index for index, _ in WAYS])
TIMES: list[tuple[int | None, int | None]] = [
    *((T0 + 2, T0 + 4), (None, T0 + 2), (T0 + 3, None), (T0 + 2, T0 + 2), (T0 + 4, T0 + 2)),
    *((None, T0 - 1), (T0 + 6, None), (0, None), (None, 0), (-5, 10**18), (10**13, None), (10**15, None)),
    *((None, T0 // 1000), (0, 5)),
]
REFUSED: list[tuple[str, str, list[dict[str, Any]]]] = [
    ("index", "GSI8", [{}]),
    ("index", "gsi1", [TASK]),
    ("entity", "PK", [TASK]),
    ("entity", "GSI1", [{}, {"entity": ("task", "1")}, {"entity": ("TASK", "1#2")}, {"entity": "TASK#1"}]),
    ("app", "GSI1", [{**TASK, "app": "shop"}]),
    ("app", "GSI2", [{"app": ""}]),
    ("app", "GSI3", [TASK]),
    ("event_type", "GSI4", [{"event_type": "a#b"}]),
    ("event_type", "GSI7", [{**TASK, "app": "shop"}]),
    ("tenant", "PK", [{"tenant": ""}, {"tenant": "a#b"}]),
    ("limit", "PK", [{"limit": limit} for limit in (0, -1, 1001, "x", True)]),
    ("start", "PK", [{"start": 1.5}]),
    ("end", "PK", [{"end": "now"}]),
]


def matches(event: JournalEvent, asked: dict[str, Any]) -> bool:
    return (
        event.tenant_id == "acme"
        and asked.get("entity") in (None, (event.entity_type, event.entity_id))
        and asked.get("app") in (None, event.app)
        and asked.get("event_type") in (None, event.event_type)
    )


def mixture() -> list[JournalEvent]:
    """Return events with ties and with keys that begin alike."""
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


class QueryRules(JournalRules):
    """Eight ways to read, one tenant at a time."""

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

        assert whole(journal, "GSI1", **TASK) == [task.event_id]
        assert whole(journal, "GSI1", entity=("JOB", "1")) == [job.event_id]

    def test_a_question_that_cannot_be_answered_is_refused(self, journal: Journal) -> None:
        for field, index, questions in REFUSED:
            for asked in questions:
                with refuses(InvalidQuery, field):
                    journal.query(index, **{"tenant": "acme", **asked})


TIES = (0, 0, 0, 0, 0, 1, 2, 2, 2, 5, 5, 9)
OTHER_QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("PK", {"tenant": "acme"}),
    ("GSI1", {"tenant": "other", **TASK}),
    ("GSI1", {"tenant": "acme", "entity": ("TASK", "10")}),
    ("GSI1", {"tenant": "acme", **TASK, "descending": True}),
    ("GSI1", {"tenant": "acme", **TASK, "start": T0}),
    ("GSI1", {"tenant": "acme", **TASK, "end": T0 + 99}),
    ("GSI3", {"tenant": "acme", **TASK, "app": "shop"}),
]

GARBAGE: list[Any] = ["", "x", "%%%", "é", "A" * 46, "A" * 45, "=" * 8, "..", 7]


def every_page(journal: Journal, index: str, **asked: Any) -> Iterator[Page]:
    cursor = None
    while True:
        page = journal.query(index, tenant="acme", cursor=cursor, **asked)
        yield page
        if (cursor := page.cursor) is None:
            return


class PageRules(JournalRules):
    """All pages joined are the unpaged answer, and a cursor belongs to one question."""

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
        first = journal.query("GSI1", tenant="acme", **TASK, limit=2)
        newer = [heartbeat("1", ms) for ms in (2, 3)]
        add(journal, newer)

        rest = journal.query("GSI1", tenant="acme", **TASK, cursor=first.cursor)

        assert ids(first.events + rest.events) == in_order([*events, *newer])

    def test_the_page_may_grow_from_one_to_the_next(self, journal: Journal) -> None:
        events = [pending(f"req-{n}", n // 2) for n in range(7)]
        add(journal, events)
        first = journal.query("PK", tenant="acme", limit=1)

        rest = journal.query("PK", tenant="acme", limit=1000, cursor=first.cursor, raw=True)

        assert ids(first.events + rest.events) == in_order(events)

    def test_a_cursor_goes_on_in_another_journal_with_the_same_events(self, journal: Journal) -> None:
        events = [heartbeat("1", ms) for ms in TIES]
        asked: dict[str, Any] = {"tenant": "acme", **TASK}
        with connect("memory://") as backend:
            other = backend.journal()
            add(journal, events)
            add(other, events)

            here, there = (one.query("GSI1", **asked, limit=4) for one in (journal, other))
            rest = [one.query("GSI1", **asked, cursor=here.cursor).events for one in (journal, other)]

        assert here.cursor == there.cursor
        assert ids(rest[0]) == ids(rest[1]) == in_order(events)[4:]

    def test_garbage_and_a_cursor_of_another_question_are_refused(self, journal: Journal) -> None:
        add(journal, [heartbeat("1", ms, app="shop") for ms in TIES])
        cursor = journal.query("GSI1", tenant="acme", **TASK, limit=3).cursor
        garbage = [("PK", {"tenant": "acme", "cursor": each}) for each in GARBAGE]

        for index, asked in [*garbage, *((index, {**asked, "cursor": cursor}) for index, asked in OTHER_QUESTIONS)]:
            with pytest.raises(InvalidCursor):
                journal.query(index, **asked)

    def test_a_cursor_is_text_that_a_url_can_hold_and_refused_if_it_is_altered(self, journal: Journal) -> None:
        add(journal, [pending("1"), pending("2")])

        cursor = journal.query("PK", tenant="acme", limit=1).cursor or ""

        assert cursor
        assert set(cursor) <= set(string.ascii_letters + string.digits + "-_")
        for place in range(0, len(cursor), 7):
            altered = cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
            with pytest.raises(InvalidCursor):
                journal.query("PK", tenant="acme", cursor=altered)
