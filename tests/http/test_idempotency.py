"""Idempotency keys."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest
from tests.http.api import ADMIN, Api, Serve

from postroad import failpoints
from postroad.errors import Unavailable
from postroad.http.idempotency import WAIT_SECONDS, Answer
from postroad.queues import QueueSpec
from postroad.testing import FakeClock
from postroad.up.runners import sweep

BODY = {"messages": [{"body": "once"}]}


def send(api: Api, key: str, body: dict[str, Any] = BODY, client: httpx.Client | None = None) -> httpx.Response:
    return (client or api.client).post("/queues/orders/messages", json=body, headers={"Idempotency-Key": key})


def stored(api: Api) -> int:
    return len(api.backend.queue("orders").peek(limit=100))


@pytest.fixture(params=["sqlite", "memory"])
def orders(request: pytest.FixtureRequest, serve: Serve, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Api:
    """One store that commits key and effect together, and one that does not."""
    monkeypatch.chdir(tmp_path)
    api = serve() if request.param == "sqlite" else serve("memory://")
    api.backend.create_queue(QueueSpec("orders"))
    return api


def test_the_same_request_again_gets_the_first_answer_again(orders: Api) -> None:
    first = send(orders, "k1")
    again = send(orders, "k1")

    assert (first.status_code, first.json()) == (again.status_code, again.json())
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert stored(orders) == 1


def test_another_body_under_the_same_key_is_409(orders: Api) -> None:
    send(orders, "k1")

    answer = send(orders, "k1", {"messages": [{"body": "other"}]})

    assert (answer.status_code, answer.json()["type"]) == (409, "/errors/idempotency-key-reused")
    assert stored(orders) == 1


def test_a_key_belongs_to_its_route_and_its_caller(orders: Api) -> None:
    orders.backend.create_queue(QueueSpec("bills"))
    token = orders.token("publish")
    send(orders, "k1")

    elsewhere = orders.client.post("/queues/bills/messages", json=BODY, headers={"Idempotency-Key": "k1"})
    with orders.as_caller(token) as other:
        by_another = send(orders, "k1", client=other)

    assert "idempotency-replayed" not in elsewhere.headers
    assert "idempotency-replayed" not in by_another.headers
    assert stored(orders) == 2


def test_fifty_at_once_run_once(orders: Api) -> None:
    def one(_: int) -> httpx.Response:
        with orders.as_caller(ADMIN) as client:
            return send(orders, "k1", client=client)

    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(one, range(50)))

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 49
    assert stored(orders) == 1


@pytest.mark.parametrize("key", ["", "x" * 129, "t\u00e4st"])
def test_a_key_that_is_empty_too_long_or_not_ascii_is_400(orders: Api, key: str) -> None:
    answer = orders.client.post(
        "/queues/orders/messages", json=BODY, headers=httpx.Headers({"Idempotency-Key": key}, encoding="utf-8")
    )

    assert (answer.status_code, answer.json()["field"]) == (400, "Idempotency-Key")
    assert stored(orders) == 0


def test_a_refusal_is_remembered_like_any_answer(orders: Api) -> None:
    key = {"Idempotency-Key": "k1"}
    orders.backend.agents().register("ann")
    body = {"agentId": "ann"}

    first, again = (orders.client.post("/agents", json=body, headers=key) for _ in range(2))

    assert (first.status_code, again.status_code) == (409, 409)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.headers["content-type"] == "application/problem+json"


def test_a_404_is_forgotten_so_that_the_repeat_finds_what_was_made_meanwhile(orders: Api) -> None:
    url, key = "/queues/bills/messages", {"Idempotency-Key": "k1"}

    first = orders.client.post(url, json=BODY, headers=key)
    orders.backend.create_queue(QueueSpec("bills"))
    again, replayed = (orders.client.post(url, json=BODY, headers=key) for _ in range(2))

    assert [first.status_code, again.status_code, replayed.status_code] == [404, 200, 200]
    assert "Idempotency-Replayed" not in again.headers
    assert replayed.headers["Idempotency-Replayed"] == "true"
    assert len(orders.backend.queue("bills").peek()) == len(BODY["messages"])


def test_a_failure_that_a_repeat_may_cure_is_not_remembered(orders: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(orders.backend, "queue", refuse)
        first = send(orders, "k1")
    again = send(orders, "k1")

    assert (first.status_code, again.status_code) == (503, 200)
    assert stored(orders) == 1


def test_a_lost_answer_is_given_again_without_a_second_effect(orders: Api) -> None:
    failpoints.load("http.before_reply=raise#1")
    try:
        with pytest.raises(httpx.HTTPError):
            send(orders, "k1").raise_for_status()
    finally:
        failpoints.load(None)

    again = send(orders, "k1")

    assert again.status_code == 200
    assert again.headers["idempotency-replayed"] == "true"
    assert stored(orders) == 1


def test_a_leased_message_is_leased_once_under_one_key(orders: Api) -> None:
    send(orders, "k1")
    send(orders, "k2")
    key = {"Idempotency-Key": "lease"}

    first = orders.client.post("/queues/orders/leases", json={"max_messages": 1}, headers=key)
    again = orders.client.post("/queues/orders/leases", json={"max_messages": 1}, headers=key)

    assert first.json() == again.json()
    assert len(first.json()["deliveries"]) == 1
    assert orders.backend.queue("orders").stats().in_flight == 1


def test_an_answer_outlives_the_server_that_gave_it(serve: Serve) -> None:
    one = serve()
    one.backend.create_queue(QueueSpec("orders"))
    first = send(one, "k1")

    another = serve()
    again = send(another, "k1")

    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"


def test_after_a_day_a_key_is_new_and_housekeeping_has_forgotten_it(serve: Serve) -> None:
    clock = FakeClock()
    api = serve(options={"clock": clock})
    api.backend.create_queue(QueueSpec("orders"))
    send(api, "k1")
    send(api, "k2")

    clock.advance(timedelta(hours=25).total_seconds())
    send(api, "k1")
    pruned = sweep(api.backend, api.context.settings)

    assert stored(api) == 3
    assert pruned == 1


COUNTED = {"agentId": "ann", "eventType": "counted", "data": {}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/topics/orders/events", {"type": "idempotency.unregistered", "payload": {}}),
        ("/events", COUNTED),
        ("/events/batch", {"events": [COUNTED, COUNTED]}),
        ("/tasks", {"name": "scrape-store"}),
        ("/jobs", {"tasks": [{"taskId": "a", "name": "scrape-store"}]}),
    ],
)
def test_a_repeat_after_a_crash_runs_again_under_the_same_ids(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    clock = FakeClock()
    one, another = (serve(options={"clock": clock}) for _ in range(2))
    one.backend.agents().register("ann")
    for api in (one, another):
        # As on AWS, where the key and the effect do not commit together.
        api.context.answer_store.joins_writes = False
    answers: list[Answer] = []

    def crash(_: object, answer: Answer) -> None:
        answers.append(answer)
        raise Unavailable("the server is killed before it stores its answer")

    monkeypatch.setattr(one.context.answer_store, "keep", crash)
    lost, again = (_after_a_while(clock, api).post(path, json=body, headers=KEY) for api in (one, another))

    assert (lost.status_code, again.is_success) == (503, True), again.text
    assert _ids(again.json()) == _ids(answers[0].document) != []


KEY = {"Idempotency-Key": "k1"}


def _after_a_while(clock: FakeClock, api: Api) -> httpx.Client:
    clock.advance(WAIT_SECONDS + 1)
    return api.client


def _ids(document: object) -> list[str]:
    return re.findall("[0-9a-f]{8}-[0-9a-f-]{27}", json.dumps(document))
