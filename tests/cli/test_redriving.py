"""`postroad queue redrive`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.terminal import Postroad

from postroad.queues import OutgoingMessage, QueueSpec
from postroad.wiring import Backend, connect


@pytest.fixture
def backend() -> Iterator[Backend]:
    with connect("sqlite:///postroad.db") as opened:
        opened.create_queue(QueueSpec("orders-dlq"))
        opened.create_queue(QueueSpec("orders", dead_letter="orders-dlq"))
        yield opened


@pytest.fixture
def dead_letters(backend: Backend) -> Backend:
    """Three dead letters of `orders`: two of type `placed`, one of type `paid`."""
    queue = backend.queue("orders")
    queue.send(
        [
            OutgoingMessage(str(number), {"EventType": type_})
            for number, type_ in enumerate(("placed", "paid", "placed"))
        ]
    )
    queue.reject(queue.receive(), reason="poison", error="ValueError: bad amount")
    return backend


def visible(backend: Backend, name: str) -> int:
    return backend.queue(name).stats().visible


def test_redrive_moves_dead_letters_back_and_reports(dead_letters: Backend, postroad: Postroad) -> None:
    outcome = postroad("queue", "redrive", "orders-dlq", "--yes", "--reason", "mended", "--json")

    report = outcome.document
    assert outcome.code == 0
    assert report.keys() == {
        *("run_id", "status", "matched", "moved", "returned", "skipped", "destinations", "task_handle")
    }
    assert (report["status"], report["moved"], report["destinations"]) == ("done", 3, {"orders": 3})
    assert (visible(dead_letters, "orders"), visible(dead_letters, "orders-dlq")) == (3, 0)


def test_a_dry_run_tells_and_changes_nothing(dead_letters: Backend, postroad: Postroad) -> None:
    report = postroad("queue", "redrive", "orders-dlq", "--dry-run", "--json").document
    text = postroad("queue", "redrive", "orders-dlq", "--dry-run").out

    assert (report["status"], report["matched"], report["destinations"]) == ("dry_run", 3, {"orders": 3})
    assert text == "would move 3 to orders (3 matched)\n"
    assert visible(dead_letters, "orders-dlq") == 3


def test_redrive_without_a_confirmation_in_a_pipe_is_exit_2_and_changes_nothing(
    dead_letters: Backend, postroad: Postroad
) -> None:
    outcome = postroad("queue", "redrive", "orders-dlq")

    assert outcome.code == 2
    assert "--yes" in outcome.err
    assert visible(dead_letters, "orders-dlq") == 3


@pytest.mark.parametrize(
    ("options", "moved"),
    [
        ("--type placed", 2),
        ("--attr EventType=paid", 1),
        ("--key nobody", 0),
        ("--failure-group 000000000000", 0),
        ("--id nothing", 0),
        ("--limit 1", 1),
        ("--rate 1000 --stop-after 0", 3),
        ("--sent-after 2020-01-01T00:00:00Z", 3),
        ("--sent-before 2020-01-01T00:00:00Z", 0),
        ("--no-native", 3),
        ("--max-redrives 1", 3),
    ],
)
def test_options_choose_what_moves(options: str, moved: int, dead_letters: Backend, postroad: Postroad) -> None:
    outcome = postroad("queue", "redrive", "orders-dlq", "--yes", "--json", *options.split())

    assert (outcome.code, outcome.document["moved"]) == (0, moved)
    assert visible(dead_letters, "orders") == moved


def test_what_was_redriven_too_often_stays_unless_more_redrives_are_allowed(
    dead_letters: Backend, postroad: Postroad
) -> None:
    postroad("queue", "redrive", "orders-dlq", "--yes")
    queue = dead_letters.queue("orders")
    queue.reject(queue.receive(), reason="poison", error="ValueError: bad amount")

    once = postroad("queue", "redrive", "orders-dlq", "--yes", "--json", "--max-redrives", "1")
    twice = postroad("queue", "redrive", "orders-dlq", "--yes", "--json", "--max-redrives", "2")

    assert (once.document["moved"], once.document["skipped"]) == (0, {"max_redrives": 3})
    assert twice.document["moved"] == 3


def test_messages_are_chosen_by_id(dead_letters: Backend, postroad: Postroad) -> None:
    first, _, third = (message.message_id for message in dead_letters.queue("orders-dlq").peek())

    outcome = postroad("queue", "redrive", "orders-dlq", "--yes", "--json", "--id", first, "--id", third)

    assert outcome.document["moved"] == 2


def test_another_destination_can_be_named(dead_letters: Backend, postroad: Postroad) -> None:
    dead_letters.create_queue(QueueSpec("review"))

    outcome = postroad("queue", "redrive", "orders-dlq", "--to", "review", "--yes")

    assert outcome.out == "moved 3 to review (3 matched)\n"
    assert visible(dead_letters, "review") == 3


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ("--rate 0", "rate"),
        ("--rate -1", "rate"),
        ("--rate nan", "rate"),
        ("--limit 0", "limit"),
        ("--stop-after -1", "stop_after"),
        ("--attr x", "attr"),
        ("--canary -1", "canary"),
        ("--canary-wait soon", "canary_wait"),
        ("--sent-before yesterday", "sent_before"),
        ("--max-redrives 0", "max_redrives"),
    ],
)
def test_a_bad_option_is_exit_2_and_named(options: str, field: str, dead_letters: Backend, postroad: Postroad) -> None:
    outcome = postroad("queue", "redrive", "orders-dlq", "--yes", "--json", *options.split())

    assert outcome.code == 2
    assert outcome.problem["field"] == field
    assert visible(dead_letters, "orders-dlq") == 3


def test_a_canary_that_nobody_handles_is_exit_1_and_leaves_the_rest(dead_letters: Backend, postroad: Postroad) -> None:
    outcome = postroad("queue", "redrive", "orders-dlq", "--yes", "--json", "--canary", "1", "--canary-wait", "0")

    assert (outcome.code, outcome.document["status"], outcome.document["moved"]) == (1, "canary_failed", 1)
    assert visible(dead_letters, "orders-dlq") == 2


def test_status_lists_what_the_store_moves_by_itself(dead_letters: Backend, postroad: Postroad) -> None:
    outcome = postroad("queue", "redrive", "orders-dlq", "--status", "--json")

    assert (outcome.code, outcome.document) == (0, {"items": []})
    assert postroad("queue", "redrive", "nowhere", "--status").code == 2


def test_a_redrive_is_in_the_audit_and_a_dry_run_is_not(dead_letters: Backend, postroad: Postroad) -> None:
    postroad("queue", "redrive", "orders-dlq", "--dry-run")
    postroad("queue", "redrive", "orders-dlq", "--yes", "--reason", "mended")

    start, end = postroad("audit", "list", "--json").document["items"]
    assert (start["action"], start["target"], start["detail"]["reason"]) == (
        "queue.redrive.start",
        "orders-dlq",
        "mended",
    )
    assert (end["action"], end["detail"]["moved"]) == ("queue.redrive.end", 3)
    assert postroad("audit", "verify").code == 0


def test_an_audit_file_that_cannot_be_written_is_exit_2_and_nothing_moves(
    dead_letters: Backend, postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_AUDIT_LOG", "missing/audit.jsonl")

    outcome = postroad("queue", "redrive", "orders-dlq", "--yes")

    assert outcome.code == 2
    assert visible(dead_letters, "orders-dlq") == 3


@pytest.mark.parametrize("options", ["--to orders-dlq", "--to orders.fifo", "--to nowhere"])
def test_a_destination_that_cannot_be_is_exit_2_before_anything_moves(
    options: str, dead_letters: Backend, postroad: Postroad
) -> None:
    dead_letters.create_queue(QueueSpec("orders.fifo", fifo=True))

    outcome = postroad("queue", "redrive", "orders-dlq", "--yes", *options.split())

    assert outcome.code == 2
    assert visible(dead_letters, "orders-dlq") == 3


def test_a_queue_that_is_nobodys_dead_letter_queue_needs_a_destination(backend: Backend, postroad: Postroad) -> None:
    backend.create_queue(QueueSpec("lonely"))
    backend.queue("lonely").send([OutgoingMessage("x")])

    outcome = postroad("queue", "redrive", "lonely", "--yes")

    assert outcome.code == 2
    assert visible(backend, "lonely") == 1


def test_groups_shows_what_dead_letters_died_of(dead_letters: Backend, postroad: Postroad) -> None:
    document = postroad("queue", "groups", "orders-dlq", "--json").document
    text = postroad("queue", "groups", "orders-dlq").out

    assert document.keys() == {"items", "scanned", "complete"}
    assert (document["scanned"], document["complete"]) == (3, True)
    assert document["items"][0].keys() == {
        *("fingerprint", "event_type", "error", "count", "first_sent_at", "last_sent_at", "sample_ids")
    }
    assert [(item["event_type"], item["count"]) for item in document["items"]] == [("placed", 2), ("paid", 1)]
    assert "ValueError: bad amount" in text


def test_a_failure_group_is_redriven_by_the_fingerprint_that_groups_showed(
    dead_letters: Backend, postroad: Postroad
) -> None:
    group = postroad("queue", "groups", "orders-dlq", "--json").document["items"][0]

    outcome = postroad("queue", "redrive", "orders-dlq", "--yes", "--json", "--failure-group", group["fingerprint"])

    assert outcome.document["moved"] == group["count"] == 2


def test_groups_of_nothing_and_of_no_queue(backend: Backend, postroad: Postroad) -> None:
    assert postroad("queue", "groups", "orders-dlq").out == "no messages\n"
    assert postroad("queue", "groups", "order-dlq").code == 2


def test_groups_looks_at_a_part_and_says_so(dead_letters: Backend, postroad: Postroad) -> None:
    outcome = postroad("queue", "groups", "orders-dlq", "--limit", "2", "--json")

    assert (outcome.document["scanned"], outcome.document["complete"]) == (2, False)
    assert "may hold more" in outcome.err
