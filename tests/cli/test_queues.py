"""`postroad queue create|delete|list|show|purge`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.cli.terminal import Postroad

from postroad.queues import OutgoingMessage
from postroad.views import overview, queue_detail, queue_row
from postroad.wiring import connect

URL = "sqlite:///postroad.db"


def test_create_prints_the_document_of_the_queue(postroad: Postroad) -> None:
    postroad("queue", "create", "orders-dlq")

    outcome = postroad(
        *("queue", "create", "orders", "--visibility", "2m", "--dead-letter", "orders-dlq", "--max-receives", "5"),
        "--json",
    )

    assert outcome.code == 0
    assert outcome.document.keys() == {
        *("name", "fifo", "visible", "in_flight", "delayed", "oldest_age_seconds", "dead_letter", "settings", "sources")
    }
    settings = outcome.document["settings"]
    assert (settings["visibility"], settings["dead_letter"], settings["max_receives"]) == (120, "orders-dlq", 5)


def test_create_again_with_the_same_settings_changes_nothing(postroad: Postroad) -> None:
    first = postroad("queue", "create", "orders.fifo", "--fifo", "--json")

    again = postroad("queue", "create", "orders.fifo", "--fifo", "--json")

    assert (again.code, again.document) == (0, first.document)


def test_create_again_with_other_settings_is_exit_1_and_names_them(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")

    outcome = postroad("queue", "create", "orders", "--visibility", "60", "--json")

    assert outcome.code == 1
    assert outcome.problem["type"] == "/errors/queue-exists"
    assert "visibility" in outcome.problem["differences"]


def test_create_with_unknown_dead_letters_is_refused_with_the_nearest_name(postroad: Postroad) -> None:
    postroad("queue", "create", "orders-dlq")

    outcome = postroad("queue", "create", "orders", "--dead-letter", "order-dlq")

    assert outcome.code == 2
    assert outcome.err.splitlines()[:2] == ['error: queue "order-dlq" does not exist', 'did you mean "orders-dlq"?']
    assert [item["name"] for item in postroad("queue", "list", "--json").document["items"]] == ["orders-dlq"]


def test_list_and_show_print_the_documents_of_the_api(postroad: Postroad) -> None:
    postroad("queue", "create", "orders-dlq")
    postroad("queue", "create", "orders", "--dead-letter", "orders-dlq")
    postroad("queue", "send", "orders", "--body", "x")

    listed = postroad("queue", "list", "--json").document
    shown = postroad("queue", "show", "orders-dlq", "--json").document

    with connect(URL) as backend:
        rows = [msgspec.to_builtins(queue_row(overview(backend, name))) for name in ("orders", "orders-dlq")]
        detail = msgspec.to_builtins(queue_detail(backend, "orders-dlq"))
    assert [{**row, "oldest_age_seconds": None} for row in listed["items"]] == [
        {**row, "oldest_age_seconds": None} for row in rows
    ]
    assert listed["items"][0]["visible"] == 1
    assert shown == detail
    assert shown["sources"] == ["orders"]


def test_list_takes_a_prefix(postroad: Postroad) -> None:
    for name in ("orders", "orders-dlq", "payments"):
        postroad("queue", "create", name)

    outcome = postroad("queue", "list", "--prefix", "orders", "--json")

    assert [item["name"] for item in outcome.document["items"]] == ["orders", "orders-dlq"]


def test_an_empty_list_says_how_to_make_a_queue(postroad: Postroad) -> None:
    connect("sqlite:///postroad.db").close()

    assert postroad("queue", "list").out == "no queues; make one with: postroad queue create orders\n"
    assert postroad("queue", "list", "--json").document == {"items": []}


@pytest.mark.parametrize(
    "args",
    [
        "show ordrs",
        "peek ordrs",
        "send ordrs --body x",
        "delete ordrs --confirm ordrs",
        "purge ordrs --confirm ordrs --reason x",
        "redrive ordrs --yes",
    ],
)
def test_a_queue_that_does_not_exist_is_exit_2_with_the_nearest_name(args: str, postroad: Postroad) -> None:
    postroad("queue", "create", "orders")

    outcome = postroad("queue", *args.split())

    assert outcome.code == 2
    assert outcome.err.splitlines()[:2] == ['error: queue "ordrs" does not exist', 'did you mean "orders"?']
    assert len(outcome.err.splitlines()) == 3


@pytest.mark.parametrize(
    "args",
    [
        "delete orders",
        "delete orders --confirm order",
        "purge orders --reason x",
        "purge orders --confirm order --reason x",
        "purge orders --confirm orders",
        "purge orders --confirm orders --reason ''",
    ],
)
def test_destroying_without_the_right_confirmation_is_exit_2_and_changes_nothing(args: str, postroad: Postroad) -> None:
    postroad("queue", "create", "orders")
    postroad("queue", "send", "orders", "--body", "x")

    outcome = postroad("queue", *(word.strip("'") for word in args.split()))

    assert outcome.code == 2
    assert outcome.out == ""
    assert postroad("queue", "show", "orders", "--json").document["visible"] == 1


def test_delete_removes_the_queue(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")

    outcome = postroad("queue", "delete", "orders", "--confirm", "orders", "--json")

    assert (outcome.code, outcome.document) == (0, {"deleted": "orders"})
    assert postroad("queue", "list", "--json").document == {"items": []}


def test_purge_removes_every_message_and_keeps_the_queue(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")
    for body in "ab":
        postroad("queue", "send", "orders", "--body", body)

    outcome = postroad("queue", "purge", "orders", "--confirm", "orders", "--reason", "test data", "--json")

    assert (outcome.code, outcome.document) == (0, {"purged": 2})
    assert postroad("queue", "show", "orders", "--json").document["visible"] == 0


def test_purge_archives_what_it_removes_and_is_in_the_audit(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")
    with connect(URL) as backend:
        backend.queue("orders").send([OutgoingMessage("a"), OutgoingMessage("b")])

    outcome = postroad(
        *("queue", "purge", "orders", "--confirm", "orders", "--reason", "test data", "--archive", "a.jsonl", "--json")
    )

    kept = [json.loads(line)["body"] for line in Path("a.jsonl").read_text().splitlines()]
    actions = [item["action"] for item in postroad("audit", "list", "--json").document["items"]]
    assert (outcome.code, outcome.document, kept) == (0, {"purged": 2}, ["a", "b"])
    assert actions == ["queue.purge.start", "queue.purge.end"]


def test_an_archive_that_cannot_be_written_is_exit_2_and_changes_nothing(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")
    postroad("queue", "send", "orders", "--body", "x")

    outcome = postroad(
        *("queue", "purge", "orders", "--confirm", "orders", "--reason", "x", "--archive", "missing/a.jsonl")
    )

    assert outcome.code == 2
    assert postroad("queue", "show", "orders", "--json").document["visible"] == 1


def test_watch_prints_a_line_for_each_queue_and_look(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")
    postroad("queue", "create", "payments")
    postroad("queue", "send", "orders", "--body", "x")

    outcome = postroad("queue", "watch", "orders", "payments", "--interval", "0.01", "--count", "2", "--json")
    text = postroad("queue", "watch", "orders", "--count", "1").out

    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [row["name"] for row in rows] == ["orders", "payments"] * 2
    assert rows[0].keys() >= {"at", "visible", "in_flight", "delayed", "oldest_age_seconds", "dead_letter", "fifo"}
    assert rows[0]["visible"] == 1
    assert "orders  1 visible, 0 in flight, 0 delayed" in text


@pytest.mark.parametrize(
    "args", ["", "ordrs --count 1", "orders --interval 0", "orders --count 0", "orders --interval -1"]
)
def test_watching_nothing_or_in_no_time_is_exit_2(args: str, postroad: Postroad) -> None:
    postroad("queue", "create", "orders")

    assert postroad("queue", "watch", *args.split()).code == 2


@pytest.mark.parametrize("url", ["sqlite:////etc", "sqlite:///.", "sqlite:///notes.txt", "sqlite:///missing/x.db"])
def test_a_backend_that_cannot_be_opened_is_exit_2_and_untouched(url: str, postroad: Postroad) -> None:
    Path("notes.txt").write_text("these are my notes, and no database\n" * 50)

    outcome = postroad("queue", "list", "--url", url)

    assert outcome.code == 2
    assert 2 <= len(outcome.err.splitlines()) <= 3
    assert Path("notes.txt").read_text().startswith("these are my notes")
    assert sorted(path.name for path in Path().iterdir()) == ["notes.txt"]


def test_a_backend_that_cannot_be_reached_is_exit_3(postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")

    outcome = postroad("queue", "list", "--url", "aws://us-east-1?endpoint_url=http://127.0.0.1:9")

    assert outcome.code == 3
    assert "127.0.0.1:9" in outcome.err
    assert 2 <= len(outcome.err.splitlines()) <= 3
