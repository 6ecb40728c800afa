"""`postroad journal`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.cli.terminal import Postroad

from postroad.journal import JournalEvent
from postroad.wiring import connect

T0 = 1_767_453_739_640


@pytest.fixture
def events() -> list[JournalEvent]:
    """Three events of two tasks in `postroad.db`."""
    made = [
        JournalEvent.create(
            "Task Pending",
            tenant_id="default",
            entity_id=task,
            timestamp=T0 + ms,
            app="shop",
            properties={"requestId": task, "name": "scrape"},
        )
        for ms, task in enumerate(("req-1", "req-2", "req-1"))
    ]
    with connect("sqlite:///postroad.db") as backend:
        backend.journal().append(made)
    return made


def test_init_makes_the_journal(postroad: Postroad, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'postroad.db'}"
    assert postroad("journal", "init", "--json").document == {"ready": True, "url": url}
    assert "ready" in postroad("journal", "init").out


def test_query_shows_the_newest_first_and_goes_on_with_its_cursor(
    postroad: Postroad, events: list[JournalEvent]
) -> None:
    first = postroad("journal", "query", "--limit", "2", "--json").document
    rest = postroad("journal", "query", "--limit", "2", "--cursor", first["next_cursor"], "--json").document

    assert first["index"] == "PK"
    assert [item["event_id"] for item in first["items"] + rest["items"]] == [str(e.event_id) for e in events[::-1]]
    assert rest["next_cursor"] is None
    assert first["items"][0]["properties"] == {"requestId": "req-1", "name": "scrape"}
    assert not {"PK", "GSI1PK"} & set(first["items"][0])


@pytest.mark.parametrize(
    ("flags", "index", "found"),
    [
        (["--entity", "TASK#req-1"], "GSI1", [0, 2]),
        (["--entity", "TASK#req-1", "--app", "shop", "--type", "Task Pending"], "GSI7", [0, 2]),
        (["--type", "Task Failed"], "GSI4", []),
        (["--from", str(T0 + 1)], "PK", [1, 2]),
        (["--to", "2026-01-03T15:22:19.641Z"], "PK", [0, 1]),
        (["--tenant", "other"], "PK", []),
    ],
)
def test_query_chooses_the_index_by_what_is_given(
    postroad: Postroad, events: list[JournalEvent], flags: list[str], index: str, found: list[int]
) -> None:
    document = postroad("journal", "query", "--order", "asc", *flags, "--json").document

    assert document["index"] == index
    assert [item["event_id"] for item in document["items"]] == [str(events[n].event_id) for n in found]


def test_query_for_people_is_a_table(postroad: Postroad, events: list[JournalEvent]) -> None:
    assert events
    shown = postroad("journal", "query", "--limit", "1").out

    assert "TASK#req-1" in shown
    assert "2026-01-03 15:22:19.642" in shown
    assert "more: --cursor" in shown
    assert postroad("journal", "query", "--tenant", "nobody").out == "no events\n"


@pytest.mark.parametrize(
    "flags",
    [
        "--limit 0",
        "--limit 1001",
        "--entity req-1",
        "--entity task#1",
        "--order up",
        "--from yesterday",
        "--from=--5",
        "--cursor x",
        "--tenant a#b",
    ],
)
def test_a_query_that_cannot_be_is_exit_2(postroad: Postroad, events: list[JournalEvent], flags: str) -> None:
    outcome = postroad("journal", "query", *flags.split())

    assert outcome.code == 2
    assert outcome.err.startswith("error: ")


def test_verify_is_quiet_about_what_agrees(postroad: Postroad, events: list[JournalEvent]) -> None:
    assert events
    outcome = postroad("journal", "verify", "--json")

    assert outcome.code == 0
    assert outcome.document == {
        "tenant": "default",
        "events": 3,
        "tasks": 2,
        "keeps_states": True,
        "differences": [],
    }
    assert "3 events of 2 tasks, 0 differences" in postroad("journal", "verify").out


def test_verify_is_exit_1_on_a_difference(postroad: Postroad, events: list[JournalEvent]) -> None:
    assert events
    with connect("sqlite:///postroad.db") as backend:
        engine = vars(vars(backend)["_installation"])["_engine"]
        engine.write(lambda tx: tx.connection.execute("DELETE FROM journal_task WHERE run = 1").fetchall())

    outcome = postroad("journal", "verify", "--json")

    assert outcome.code == 1
    assert outcome.document["differences"] == [{"requestId": "req-2", "kept": None, "folded": "pending"}]
    assert "req-2: kept -, folded pending" in postroad("journal", "verify").out


def test_verify_of_an_empty_journal_finds_no_differences(postroad: Postroad) -> None:
    outcome = postroad("journal", "verify", "--url", "memory://")

    assert outcome.code == 0
    assert "0 differences" in outcome.out


def test_old_events_are_pruned_and_those_of_running_tasks_kept(postroad: Postroad) -> None:
    old = int(time.time() * 1_000) - 100 * 86_400_000
    with connect("sqlite:///postroad.db") as backend:
        for name, kinds in (("over", ("Task Pending", "Task Cancelled")), ("runs", ("Task Pending",))):
            for place, kind in enumerate(kinds):
                properties = {"requestId": name, "name": "step", "reason": "no"}
                event = JournalEvent.create(
                    kind, tenant_id="default", entity_id=name, timestamp=old + place, properties=properties
                )
                backend.journal().append([event])

    pruned = postroad("journal", "prune", "--older-than", "90d", "--json")

    assert (pruned.code, pruned.document) == (0, {"pruned": 2, "kept": 1})
    assert (
        postroad("journal", "prune", "--older-than", "90d").out == "pruned 0, kept 1 of running tasks and open jobs\n"
    )
    assert [item["entityId"] for item in postroad("journal", "query", "--json").document["items"]] == ["runs"]
    assert postroad("journal", "verify").code == 0
    assert postroad("journal", "prune").code == 2
    assert postroad("journal", "prune", "--older-than", "soon").code == 2
