"""Sending and peeking over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from tests.http.api import Api, Serve
from tests.http.village import Village

from postroad.queues import OutgoingMessage, QueueSpec
from postroad.testing import FakeClock


def test_messages_are_sent_in_order_with_their_attributes(api: Api) -> None:
    api.backend.create_queue(QueueSpec("orders"))

    answer = api.client.post(
        "/queues/orders/messages",
        json={"messages": [{"body": "one", "attributes": {"kind": "a"}}, {"body": "two", "delay": 30}]},
    )

    results = answer.json()["results"]
    assert answer.status_code == 200
    assert [(result["ok"], result["error"]) for result in results] == [(True, None), (True, None)]
    peeked = api.backend.queue("orders").peek()
    assert [message.message_id for message in peeked] == [result["message_id"] for result in results]
    assert [(message.body, message.state) for message in peeked] == [(b"one", "visible"), (b"two", "delayed")]
    assert peeked[0].attributes == {"kind": "a"}


@pytest.mark.parametrize(
    "bad",
    [
        {"body": "a\0b"},
        {"body": "x", "attributes": {f"a{number}": "1" for number in range(11)}},
        {"body": "x" * 2_000},
        {"body": "x", "delay": -1},
        {"body": "x", "dedup_id": "d"},
        {"body": ""},
    ],
)
def test_one_bad_message_of_ten_stops_none_of_the_others(api: Api, bad: dict[str, Any]) -> None:
    api.backend.create_queue(QueueSpec("orders", max_message_bytes=1_024))
    messages = [{"body": str(number)} for number in range(10)]
    messages[3] = bad

    answer = api.client.post("/queues/orders/messages", json={"messages": messages})

    results = answer.json()["results"]
    assert answer.status_code == 200
    assert [result["ok"] for result in results] == [True, True, True, False, *[True] * 6]
    assert set(results[3]["error"]) == {"type", "title", "detail", "remedy", "field"}
    assert results[3]["message_id"] is None
    assert api.backend.queue("orders").stats().visible + api.backend.queue("orders").stats().delayed == 9


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"body": "x"}] * 101}, "messages"),
        ({}, "messages"),
        ({"messages": [{"body": "x"}], "extra": 1}, "extra"),
        ({"messages": [{"body": "x"}, {"body": "x", "colour": "red"}]}, "messages[1].colour"),
        ({"messages": [{"body": 5}]}, "messages[0].body"),
        ({"messages": [{}]}, "messages[0].body"),
        ({"messages": [{"body": "x", "delay": True}]}, "messages[0].delay"),
    ],
)
def test_a_batch_of_the_wrong_shape_is_refused_as_a_whole(api: Api, body: dict[str, Any], field: str) -> None:
    api.backend.create_queue(QueueSpec("orders"))

    answer = api.client.post("/queues/orders/messages", json=body)

    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert api.backend.queue("orders").peek() == []


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "again"}])
def test_a_queue_that_was_made_again_gets_what_is_sent_at_once(api: Api, headers: dict[str, str]) -> None:
    body = {"messages": [{"body": "one"}]}
    api.backend.create_queue(QueueSpec("orders"))
    assert api.client.post("/queues/orders/messages", json=body).status_code == 200
    api.backend.delete_queue("orders")
    api.backend.create_queue(QueueSpec("orders"))

    answer = api.client.post("/queues/orders/messages", json=body, headers=headers)

    assert [result["ok"] for result in answer.json()["results"]] == [True]
    assert api.backend.queue("orders").stats().visible == 1


def test_a_queue_that_was_deleted_is_404_at_once(api: Api) -> None:
    body = {"messages": [{"body": "one"}]}
    for name in ("orders", "order"):
        api.backend.create_queue(QueueSpec(name))
    assert api.client.post("/queues/orders/messages", json=body).status_code == 200
    api.backend.delete_queue("orders")

    answer = api.client.post("/queues/orders/messages", json=body)

    assert answer.status_code == 404
    assert '"order"' in answer.json()["remedy"]


def test_a_higher_limit_of_a_queue_counts_at_once_and_a_lower_one_soon(serve: Serve) -> None:
    clock = FakeClock()
    api = serve(options={"clock": clock})
    limits, sent = (1_024, 4_096, 1_024), []
    api.backend.create_queue(QueueSpec("orders", max_message_bytes=limits[0]))

    for limit in limits:
        api.backend.update_queue(QueueSpec("orders", max_message_bytes=limit))
        answer = api.client.post("/queues/orders/messages", json={"messages": [{"body": "x" * 2_000}]})
        sent.append(answer.json()["results"][0]["ok"])
        clock.advance(0.25 if limit == 4_096 else 0.1)

    assert sent == [False, True, False]


def test_strange_text_is_stored_as_it_is(api: Api) -> None:
    api.backend.create_queue(QueueSpec("orders"))
    text = "<script>alert(1)</script> \u202egnp.exe"

    api.client.post("/queues/orders/messages", json={"messages": [{"body": text, "attributes": {"a": text}}]})

    [row] = api.client.get("/queues/orders/messages", params={"payload": 1}).json()["items"]
    assert (row["body"], row["attributes"]) == (text, {"a": text})


def test_peeking_changes_nothing_and_shows_bodies_only_when_asked(api: Api) -> None:
    api.backend.create_queue(QueueSpec("orders")).send([OutgoingMessage("secret")])

    hidden = api.client.get("/queues/orders/messages").json()["items"]
    shown = api.client.get("/queues/orders/messages", params={"payload": 1}).json()["items"]
    head = api.client.head("/queues/orders/messages", params={"payload": 1})

    assert set(hidden[0]) == {"message_id", "attributes", "group", "receive_count", "sent_at", "state", "size"}
    assert (shown[0]["body"], shown[0]["size"], shown[0]["receive_count"]) == ("secret", 6, 0)
    assert (head.status_code, head.content) == (200, b"")
    assert api.backend.queue("orders").peek()[0].receive_count == 0


@pytest.mark.parametrize("url", [None, "memory://"])
def test_messages_are_walked_exactly_once_while_others_come_and_go(
    serve: Serve, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, url: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    api = serve() if url is None else serve(url)
    queue = api.backend.create_queue(QueueSpec("orders"))
    staying = {result.message_id for result in queue.send([OutgoingMessage(f"stays {number}") for number in range(12)])}
    seen: list[str] = []
    page = api.client.get("/queues/orders/messages", params={"limit": 4}).json()
    while True:
        seen += [row["message_id"] for row in page["items"]]
        if page["next_cursor"] is None:
            break
        if len(seen) == 4:
            # Everything the first page showed is settled before the second one is asked for.
            queue.ack(queue.receive(max_messages=4))
        queue.send([OutgoingMessage("new")])
        page = api.client.get("/queues/orders/messages", params={"limit": 4, "cursor": page["next_cursor"]}).json()

    assert len(seen) == len(set(seen))
    assert staying <= set(seen)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("limit=101", "limit"),
        ("limit=abc", "limit"),
        ("payload=2", "payload"),
        ("cursor=forged", "cursor"),
        ("cursor=%00", "cursor"),
        ("cursor=", "cursor"),
    ],
)
def test_a_bad_parameter_is_refused_by_its_name(api: Api, query: str, field: str) -> None:
    api.backend.create_queue(QueueSpec("orders"))

    answer = api.client.get(f"/queues/orders/messages?{query}")

    assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_a_cursor_of_another_queue_or_a_shortened_one_is_refused(api: Api) -> None:
    for name in ("orders", "bills"):
        api.backend.create_queue(QueueSpec(name)).send([OutgoingMessage("1"), OutgoingMessage("2")])
    cursor = api.client.get("/queues/orders/messages", params={"limit": 1}).json()["next_cursor"]

    foreign = api.client.get("/queues/bills/messages", params={"limit": 1, "cursor": cursor})
    shortened = api.client.get("/queues/orders/messages", params={"limit": 1, "cursor": cursor[:-2]})
    other_list = api.client.get("/queues", params={"cursor": cursor})

    for answer in (foreign, shortened, other_list):
        assert (answer.status_code, answer.json()["type"]) == (400, "/errors/invalid-cursor")


def test_a_message_and_an_agents_event_are_explained(village: Village) -> None:
    client = village.api.client
    client.put("/queues/jobs", json={})
    sent = client.post("/queues/jobs/messages", json={"messages": [{"body": "secret"}]}).json()["results"][0]
    event_id = village.ann.post("/events", json={"eventType": "counted", "data": {"n": 1}}).json()["eventId"]
    village.move()

    message, event = client.get(f"/why/{sent['message_id']}"), client.get(f"/why/{event_id}")

    assert (message.json()["kind"], message.json()["verdict"]) == ("message", "waiting")
    assert (event.json()["kind"], event.json()["verdict"]) == ("event", "waiting")
    assert "secret" not in message.text
    assert village.cat.get(f"/why/{event_id}").status_code in (403, 404)
