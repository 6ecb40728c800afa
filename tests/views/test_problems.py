from __future__ import annotations

import msgspec

from postroad.errors import InvalidMessage, QueueExists, QueueNotFound
from postroad.views import entry_problem, problem


def test_a_problem_names_the_field_and_the_remedy() -> None:
    document = msgspec.to_builtins(problem(InvalidMessage("body: is empty", field="body"), request_id="r-1"))

    assert document == {
        "type": "/errors/invalid-message",
        "title": "A message that cannot be sent or read.",
        "status": 400,
        "detail": "body: is empty",
        "remedy": "Correct the field that the message names; nothing was sent.",
        "request_id": "r-1",
        "field": "body",
    }


def test_a_problem_suggests_the_nearest_name_in_its_remedy() -> None:
    document = problem(QueueNotFound('queue "ordrs" does not exist', nearest="orders"))

    assert document.remedy.startswith('Did you mean "orders"?')
    assert "field" not in msgspec.to_builtins(document)


def test_a_conflict_lists_the_differences() -> None:
    document = problem(QueueExists("it differs", differences={"visibility": (30, 60)}))

    assert (document.status, document.differences) == (409, {"visibility": [30, 60]})


def test_an_unforeseen_error_tells_nothing_but_the_request_id() -> None:
    document = problem(KeyError("secret"), request_id="r-2")

    assert document.status == 500
    assert document.request_id == "r-2"
    assert "secret" not in str(document)


def test_the_error_of_a_batch_entry_has_neither_status_nor_request_id() -> None:
    document = entry_problem(InvalidMessage("messages[3].body: is empty", field="messages[3].body"))

    assert document.field == "messages[3].body"
    assert msgspec.to_builtins(document).keys().isdisjoint({"status", "request_id"})
