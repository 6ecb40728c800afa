"""Consuming over HTTP."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.http.api import ADMIN, Api, Serve
from tests.waiting import eventually

from postroad.queues import Delivery, OutgoingMessage, Queue, QueueSpec


def lease(api: Api, **body: Any) -> list[dict[str, Any]]:
    answer = api.client.post("/queues/orders/leases", json=body)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["deliveries"])


def _ask(api: Api) -> socket.socket:
    """Send a long poll, and do not read the answer."""
    connection = api.connect()
    body = json.dumps({"wait": 20, "visibility": 600}).encode()
    connection.sendall(
        b"POST /queues/orders/leases HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        + f"Authorization: Bearer {ADMIN}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return connection


def _hold_up_receives(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set the event when a receive has leased something, and let it return when the event is cleared."""
    kind, held_up = type(queue), threading.Event()
    receive: Callable[..., list[Delivery]] = kind.receive

    def slowly(queue: Queue, **options: Any) -> list[Delivery]:
        found = receive(queue, **options)
        if found:
            held_up.set()
            eventually(lambda: not held_up.is_set())
        return found

    monkeypatch.setattr(kind, "receive", slowly)
    return held_up


def test_a_leased_message_is_acked_by_its_receipt(api: Api) -> None:
    queue = api.backend.create_queue(QueueSpec("orders"))
    queue.send([OutgoingMessage("one", {"kind": "a"})])

    [delivery] = lease(api)
    acked = api.client.post("/queues/orders/acks", json={"receipts": [delivery["receipt"]]})

    assert (delivery["body"], delivery["attributes"], delivery["receive_count"]) == ("one", {"kind": "a"}, 1)
    assert acked.json() == {"results": [{"ok": True, "error": None}]}
    assert queue.peek() == []


def test_a_released_message_comes_back_and_an_extended_one_does_not(api: Api) -> None:
    queue = api.backend.create_queue(QueueSpec("orders"))
    queue.send([OutgoingMessage("one"), OutgoingMessage("two")])
    one, two = lease(api)

    released = api.client.post("/queues/orders/releases", json={"receipts": [one["receipt"]]})
    extended = api.client.post("/queues/orders/extensions", json={"receipts": [two["receipt"]], "seconds": 600})

    assert released.json()["results"][0]["ok"]
    assert extended.json()["results"][0]["ok"]
    assert [(again["body"], again["receive_count"]) for again in lease(api)] == [("one", 2)]


def test_a_rejected_message_is_a_dead_letter_at_once_with_its_reason(api: Api) -> None:
    dead = api.backend.create_queue(QueueSpec("dead"))
    queue = api.backend.create_queue(QueueSpec("orders", dead_letter="dead"))
    queue.send([OutgoingMessage("one"), OutgoingMessage("two")])
    one, two = lease(api)
    body = {"receipts": [one["receipt"], "invented"], "reason": "no such order", "error": "KeyError: 7"}

    rejected = api.client.post("/queues/orders/rejections", json=body)

    [letter] = dead.peek()
    marker = json.loads(letter.attributes["DeadLetter"])
    assert [result["ok"] for result in rejected.json()["results"]] == [True, False]
    assert (letter.body, marker["reason"], marker["error"]) == (b"one", "no such order", "KeyError: 7")
    assert [message.message_id for message in queue.peek()] == [two["message_id"]]


def test_a_queue_without_dead_letters_refuses_rejections_and_keeps_the_lease(api: Api) -> None:
    queue = api.backend.create_queue(QueueSpec("orders"))
    queue.send([OutgoingMessage("one")])
    [held] = lease(api)

    refused = api.client.post("/queues/orders/rejections", json={"receipts": [held["receipt"]], "reason": "no"})

    assert (refused.status_code, refused.json()["type"]) == (400, "/errors/not-supported")
    assert api.client.post("/queues/orders/acks", json={"receipts": [held["receipt"]]}).json()["results"][0]["ok"]


def test_the_error_of_a_release_is_found_in_the_dead_letter(api: Api) -> None:
    dead = api.backend.create_queue(QueueSpec("dead"))
    queue = api.backend.create_queue(QueueSpec("orders", dead_letter="dead", max_receives=1))
    queue.send([OutgoingMessage("one")])
    [held] = lease(api)

    api.client.post("/queues/orders/releases", json={"receipts": [held["receipt"]], "error": "ValueError: 7"})

    assert lease(api) == []
    assert json.loads(dead.peek()[0].attributes["DeadLetter"])["error"] == "ValueError: 7"


def test_a_receipt_that_is_stale_or_invented_says_so(api: Api) -> None:
    queue = api.backend.create_queue(QueueSpec("orders"))
    queue.send([OutgoingMessage("one")])
    [delivery] = lease(api)
    api.client.post("/queues/orders/releases", json={"receipts": [delivery["receipt"]]})
    [again] = lease(api)

    answer = api.client.post(
        "/queues/orders/acks", json={"receipts": [delivery["receipt"], "invented", again["receipt"]]}
    )

    results = answer.json()["results"]
    assert answer.status_code == 200
    assert [result["ok"] for result in results] == [False, False, True]
    assert results[0]["error"]["type"] == "/errors/stale-receipt"
    assert results[0]["error"]["detail"] == "the receipt is no longer valid"


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("leases", {"wait": 21}, "wait"),
        ("leases", {"wait": -1}, "wait"),
        ("leases", {"visibility": -1}, "visibility"),
        ("leases", {"visibility": 43_201}, "visibility"),
        ("leases", {"visibility": True}, "visibility"),
        ("leases", {"max_messages": 0}, "max_messages"),
        ("leases", {"max_messages": "ten"}, "max_messages"),
        ("leases", {"timeout": 3}, "timeout"),
        ("acks", {"receipts": []}, "receipts"),
        ("acks", {"receipts": ["r"] * 101}, "receipts"),
        ("acks", {"receipts": "r"}, "receipts"),
        ("extensions", {"receipts": ["r"]}, "seconds"),
        ("extensions", {"receipts": ["r"], "seconds": 43_201}, "seconds"),
        ("releases", {"receipts": ["r"], "after": -1}, "after"),
    ],
)
def test_a_bad_field_is_refused_by_its_name(api: Api, route: str, body: dict[str, Any], field: str) -> None:
    queue = api.backend.create_queue(QueueSpec("orders"))
    queue.send([OutgoingMessage("one")])

    answer = api.client.post(f"/queues/orders/{route}", json=body)

    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert queue.peek()[0].receive_count == 0


def test_a_long_poll_returns_when_a_message_comes(api: Api) -> None:
    queue = api.backend.create_queue(QueueSpec("orders"))
    leased: list[dict[str, Any]] = []
    poll = threading.Thread(target=lambda: leased.extend(lease(api, wait=20)))

    poll.start()
    eventually(lambda: api.context.polls.open == 1)
    queue.send([OutgoingMessage("late")])
    poll.join(120)

    assert [delivery["body"] for delivery in leased] == ["late"]


def test_a_long_poll_returns_nothing_when_its_time_is_over(api: Api) -> None:
    api.backend.create_queue(QueueSpec("orders"))

    assert lease(api, wait=0.1) == []


def test_long_polls_hold_up_no_other_route(api: Api) -> None:
    api.backend.create_queue(QueueSpec("orders"))
    polls = [threading.Thread(target=_poll_apart, args=(api,)) for _ in range(60)]
    for poll in polls:
        poll.start()
    eventually(lambda: api.context.polls.open == 60)

    started = time.monotonic()
    answers = [api.client.get("/queues/orders").status_code for _ in range(20)]
    took = time.monotonic() - started

    api.backend.queue("orders").send([OutgoingMessage(str(number)) for number in range(60)])
    for poll in polls:
        poll.join(120)
    assert answers == [200] * 20
    assert took < 10, "twenty answers took longer than the polls that wait"
    assert api.context.polls.open == 0


def _poll_apart(api: Api) -> None:
    with api.as_caller(ADMIN) as client:
        answer = client.post("/queues/orders/leases", json={"wait": 20, "max_messages": 1})
    assert len(answer.json()["deliveries"]) == 1


def test_more_long_polls_than_fit_are_refused_while_other_routes_answer(serve: Serve) -> None:
    api = serve(options={"max_polls": 1})
    api.backend.create_queue(QueueSpec("orders"))
    poll = threading.Thread(target=lambda: lease(api, wait=20))
    poll.start()
    eventually(lambda: api.context.polls.open == 1)

    with api.as_caller(ADMIN) as client:
        refused = client.post("/queues/orders/leases", json={"wait": 20})
        other = client.post("/queues/orders/leases", json={"wait": 0})

    api.backend.queue("orders").send([OutgoingMessage("end")])
    poll.join(120)
    assert (refused.status_code, refused.json()["type"]) == (429, "/errors/too-many-polls")
    assert int(refused.headers["retry-after"]) >= 1
    assert other.status_code == 200


def test_a_caller_who_hangs_up_during_a_long_poll_leaves_nothing_leased(api: Api) -> None:
    queue = api.backend.create_queue(QueueSpec("orders"))
    connection = _ask(api)
    eventually(lambda: api.context.polls.open == 1)

    connection.close()
    eventually(lambda: api.context.polls.open == 0)
    queue.send([OutgoingMessage("one")])

    eventually(lambda: [message.state for message in queue.peek()] == ["visible"])
    eventually(lambda: lease(api))


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a while"])
def test_what_is_received_while_its_caller_hangs_up_is_given_back(
    api: Api, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    queue = api.backend.create_queue(QueueSpec("orders"))
    receiving = _hold_up_receives(queue, monkeypatch)
    if not waits:
        queue.send([OutgoingMessage("one")])
    connection = _ask(api)
    if waits:
        eventually(lambda: api.context.polls.open == 1)
        queue.send([OutgoingMessage("one")])
    eventually(receiving.is_set)

    connection.close()
    eventually(lambda: not api.connections)
    receiving.clear()

    eventually(lambda: [(message.state, message.receive_count) for message in queue.peek()] == [("visible", 0)])


def test_a_stopping_server_gives_back_what_it_receives_for_a_caller_who_has_hung_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = serve()
    queue = api.backend.create_queue(QueueSpec("orders"))
    receiving = _hold_up_receives(queue, monkeypatch)
    connection = _ask(api)
    eventually(lambda: api.context.polls.open == 1)
    queue.send([OutgoingMessage("one")])
    eventually(receiving.is_set)
    connection.close()
    eventually(lambda: api.context.polls.open == 0)

    stopping = threading.Thread(target=api.stop)
    stopping.start()
    # A server that does not wait for the receive is stopped by then.
    stopping.join(0.5)
    stopped_early = not stopping.is_alive()
    receiving.clear()
    stopping.join()

    assert not stopped_early
    assert [(message.state, message.receive_count) for message in queue.peek()] == [("visible", 0)]


def test_a_stopping_server_lets_its_long_polls_go(serve: Serve) -> None:
    api = serve()
    api.backend.create_queue(QueueSpec("orders"))
    leased: list[Any] = ["unanswered"]
    poll = threading.Thread(target=lambda: leased.__setitem__(slice(None), lease(api, wait=20)))
    poll.start()
    eventually(lambda: api.context.polls.open == 1)

    api.stop()
    poll.join(120)

    assert leased == []
    assert api.client.get("/ready").status_code == 503
    assert api.client.get("/health").status_code == 200
