"""`POST /topics/{topic}/events`: publishing without a class."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from tests.http.api import Api

from postroad import event


@event(name="http.placed")
class Placed:
    n: int


def received(api: Api, queue: str) -> list[dict[str, Any]]:
    found = api.backend.queue(queue).receive()
    return [json.loads(each.body) for each in found]


def test_an_event_of_an_unknown_type_reaches_every_group(api: Api) -> None:
    for group in ("billing", "mail"):
        with api.backend.bus("shop", group):
            pass
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    answer = api.client.post(
        "/topics/shop/events",
        json={"type": "orders.unknown", "payload": {"id": 7}, "key": "k"},
        headers={"traceparent": trace},
    )

    assert answer.status_code == 202
    for queue in ("shop--billing", "shop--mail"):
        [envelope] = received(api, queue)
        assert envelope["event_id"] == answer.json()["event_id"]
        assert (envelope["event_type"], envelope["payload"], envelope["key"]) == ("orders.unknown", {"id": 7}, "k")
        assert envelope["traceparent"] == trace


def test_a_registered_type_is_checked(api: Api) -> None:
    wrong = api.client.post("/topics/shop/events", json={"type": "http.placed", "payload": {"n": "seven"}})
    right = api.client.post("/topics/shop/events", json={"type": "http.placed", "payload": {"n": 7}})

    assert (wrong.status_code, wrong.json()["field"]) == (400, "payload.n")
    assert right.status_code == 202


def test_the_callers_own_id_is_kept_and_a_fifo_topic_keeps_it_once(api: Api) -> None:
    with api.backend.bus("ordered", "billing", fifo=True):
        event_id = str(uuid4())
        body = {"type": "orders.unknown", "payload": {}, "event_id": event_id}

        answers = [api.client.post("/topics/ordered/events", json=body) for _ in range(2)]

        assert [answer.json() for answer in answers] == [{"event_id": event_id}] * 2
        assert [envelope["event_id"] for envelope in received(api, "ordered--billing.fifo")] == [event_id]


def test_a_repeat_with_its_key_publishes_once(api: Api) -> None:
    with api.backend.bus("shop", "billing"):
        body, headers = {"type": "orders.unknown", "payload": {}}, {"Idempotency-Key": "once"}

        first, again = (api.client.post("/topics/shop/events", json=body, headers=headers) for _ in range(2))

        assert first.json() == again.json()
        assert len(received(api, "shop--billing")) == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"payload": {}}, "type"),
        ({"type": "a.b"}, "payload"),
        ({"type": "a.b", "payload": [1]}, "payload"),
        ({"type": "", "payload": {}}, "type"),
        ({"type": "a b\n", "payload": {}}, "type"),
        ({"type": "a.b", "payload": {}, "event_id": "7"}, "event_id"),
        ({"type": "a.b", "payload": {}, "more": 1}, "more"),
    ],
)
def test_a_wrong_body_is_400_and_names_the_field(api: Api, body: dict[str, Any], field: str) -> None:
    answer = api.client.post("/topics/shop/events", json=body)

    assert answer.status_code == 400, answer.text
    assert answer.json().get("field") == field
    assert api.backend.topics() == []


@pytest.mark.parametrize("topic", ["..%2fetc", "a.b", "x" * 81, ".fifo"])
def test_a_topic_that_cannot_be_is_refused(api: Api, topic: str) -> None:
    answer = api.client.post(f"/topics/{topic}/events", json={"type": "a.b", "payload": {}})

    assert answer.status_code in (400, 404)
    assert api.backend.topics() == []


def test_it_needs_the_scope_publish(api: Api) -> None:
    with api.as_caller(api.token("read")) as reader:
        assert reader.post("/topics/shop/events", json={"type": "a.b", "payload": {}}).status_code == 403
