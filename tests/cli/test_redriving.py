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
    [("--type placed", 2), ("--attr EventType=paid", 1), ("--key nobody", 0), ("--failure-group 000000000000", 0),
     ("--id nothing", 0), ("--limit 1", 1), ("--rate 1000 --stop-after 0", 3)],
)  # fmt: skip
def test_options_choose_what_moves(options: str, moved: int, dead_letters: Backend, postroad: Postroad) -> None:
    outcome = postroad("queue", "redrive", "orders-dlq", "--yes", "--json", *options.split())

    assert (outcome.code, outcome.document["moved"]) == (0, moved)
    assert visible(dead_letters, "orders") == moved


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
    [("--rate 0", "rate"), ("--rate -1", "rate"), ("--rate nan", "rate"), ("--limit 0", "limit"),
     ("--stop-after -1", "stop_after"), ("--attr x", "attr")],
)  # fmt: skip
def test_a_bad_option_is_exit_2_and_named(options: str, field: str, dead_letters: Backend, postroad: Postroad) -> None:
    outcome = postroad("queue", "redrive", "orders-dlq", "--yes", "--json", *options.split())

    assert outcome.code == 2
    assert outcome.problem["field"] == field
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
