"""Agents by HTTP: identity from the token, and bad input that changes nothing."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.http.api import Api
from tests.http.village import Village, slug


def test_an_admin_makes_an_agent_that_then_reaches_its_own(api: Api) -> None:
    made = api.client.post("/agents", json={"agentId": "ann", "order": "total"})
    with api.as_caller(made.json()["token"]) as ann:
        shown = ann.get("/agents/ann")
        gone = ann.delete("/agents/ann")
        after = ann.get("/agents/ann")

    assert made.status_code == 201
    assert sorted(made.json()) == ["agentId", "createdAt", "queue", "token"]
    assert {**shown.json(), "createdAt": None} == {
        "agentId": "ann",
        "createdAt": None,
        "order": "total",
        "accept": "listed",
        "queue": "agents-ann.fifo",
        "subscriptions": [],
    }
    assert (gone.status_code, gone.json()) == (200, {"discarded": 0, "subscriptions": 0, "subscribers": 0})
    assert after.status_code == 401
    assert api.client.get("/agents/ann").status_code == 404
    assert slug(api.client.post("/agents", json={"agentId": "ann"})) == "agent-deleted"


def test_a_seed_registers_with_an_empty_body(api: Api) -> None:
    assert api.client.post("/agents", json={}).status_code == 201
    assert api.client.post("/agents").status_code == 201


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"order": "newest"}, "order"),
        ({"accept": "none"}, "accept"),
        ({"evil": 1}, "evil"),
        ({"agentId": 5}, "agentId"),
    ],
)
def test_a_bad_agent_is_refused_by_its_field(api: Api, body: dict[str, Any], field: str) -> None:
    answer = api.client.post("/agents", json=body)

    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert api.client.get("/agents").json()["items"] == []


@pytest.mark.parametrize("agent_id", ["a#b", "../x", "a" * 65, "", "\u0430nn"])
def test_a_bad_id_is_400_in_a_body_and_404_in_a_path(village: Village, agent_id: str) -> None:
    made = village.api.client.post("/agents", json={"agentId": agent_id})
    event = village.api.client.post("/events", json={"agentId": agent_id, "eventType": "x", "data": {}})
    path = httpx.URL("/agents/x/stats").copy_with(
        raw_path=("/agents/" + "".join(f"%{byte:02X}" for byte in agent_id.encode()) + "/stats").encode()
    )

    assert (made.status_code, slug(made)) == (400, "invalid-name")
    assert (event.status_code, slug(event)) == (400, "invalid-name")
    assert village.api.client.get(path).status_code == 404


def test_another_agents_path_is_as_if_it_were_not_there(village: Village) -> None:
    foreign = village.ann.get("/agents/cat/stats")
    unknown = village.ann.get("/agents/nobody/stats")

    assert (foreign.status_code, unknown.status_code) == (404, 404)
    same = [{**answer.json(), "request_id": None, "detail": None} for answer in (foreign, unknown)]
    assert same[0] == same[1]
    assert foreign.json()["detail"].replace("cat", "nobody") == unknown.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/agents"), ("GET", "/agents"), ("GET", "/queues"), ("GET", "/tokens")]
)
def test_an_agents_token_opens_no_operators_route(village: Village, method: str, path: str) -> None:
    answer = village.ann.request(method, path, json={} if method == "POST" else None)

    assert (answer.status_code, slug(answer)) == (403, "forbidden")


@pytest.mark.parametrize(
    ("scope", "method", "path", "status"),
    [
        ("read", "GET", "/agents/ann", 200),
        ("read", "POST", "/agents/ann/leases", 403),
        ("publish", "POST", "/agents/ann/leases", 200),
        ("publish", "POST", "/agents/cat/subscriptions/ann/pause", 403),
        ("operate", "POST", "/agents/cat/subscriptions/ann/pause", 204),
        ("operate", "DELETE", "/agents/ann", 403),
        ("read", "GET", "/agents", 200),
        ("read", "GET", "/agents/ann/stats", 200),
        ("read", "GET", "/agents/ann/subscribers", 200),
        ("read", "GET", "/agents/ann/dead-letters", 200),
        ("read", "GET", "/agents/ann/stream", 403),
        ("read", "POST", "/events", 403),
        ("read", "POST", "/events/batch", 403),
        ("publish", "POST", "/events", 415),
        ("publish", "POST", "/agents/ann/dead-letters/redrive", 403),
        ("operate", "POST", "/agents/ann/dead-letters/redrive", 202),
        ("operate", "POST", "/agents", 403),
        ("operate", "POST", "/agents/ann/token", 403),
        ("operate", "PUT", "/agents/ann/grants/bob", 403),
        ("operate", "DELETE", "/agents/ann/grants/bob", 403),
        ("operate", "PUT", "/agents/bob/subscriptions/ann", 403),
        ("admin", "PUT", "/agents/ann/grants/bob", 204),
    ],
)
def test_an_operators_token_does_what_its_scope_allows(
    village: Village, scope: str, method: str, path: str, status: int
) -> None:
    with village.api.as_caller(village.api.token(scope)) as operator:
        assert operator.request(method, path).status_code == status


def test_a_rotated_token_keeps_the_former_one_for_a_while(village: Village) -> None:
    answer = village.ann.post("/agents/ann/token")

    assert answer.status_code == 201
    assert sorted(answer.json()) == ["previousValidUntil", "token"]
    assert village.ann.get("/agents/ann").status_code == 200
    with village.api.as_caller(answer.json()["token"]) as renewed:
        assert renewed.get("/agents/ann").status_code == 200


def test_listening_needs_the_producers_consent(village: Village) -> None:
    bob = village.clients["bob"]

    refused = bob.put("/agents/bob/subscriptions/ann")
    granted = village.ann.put("/agents/ann/grants/bob", json={})
    allowed = bob.put("/agents/bob/subscriptions/ann", json={})
    again = bob.put("/agents/bob/subscriptions/ann")
    revoked = village.ann.delete("/agents/ann/grants/bob")

    assert (refused.status_code, slug(refused)) == (403, "consent-required")
    assert [granted.status_code, allowed.status_code, again.status_code, revoked.status_code] == [204] * 4
    assert bob.get("/agents/bob/subscriptions").json()["items"] == []


def test_an_agent_grants_only_for_itself(village: Village) -> None:
    assert village.clients["bob"].put("/agents/ann/grants/bob").status_code == 404


def test_an_agent_listens_to_itself_without_a_grant(village: Village) -> None:
    assert village.ann.put("/agents/ann/subscriptions/ann").status_code == 204


@pytest.mark.parametrize("pair", ["nobody/subscriptions/ann", "cat/subscriptions/nobody"])
def test_subscribing_with_an_unknown_side_is_404(village: Village, pair: str) -> None:
    assert village.api.client.put(f"/agents/{pair}").status_code == 404


def test_a_subscription_refuses_a_body_that_says_something(village: Village) -> None:
    answer = village.api.client.put("/agents/bob/subscriptions/ann", json={"evil": 1})

    assert (answer.status_code, answer.json()["field"]) == (400, "evil")
    assert village.agents.subscriptions("bob").items == []


def test_a_subscription_to_some_types_is_made_listed_and_changed(village: Village) -> None:
    pair = "/agents/cat/subscriptions/ann"
    village.agents.grant("ann", "cat")

    made = village.cat.put(pair, json={"eventTypes": ["order.*", "paid"]})
    listed = village.cat.get("/agents/cat/subscriptions").json()["items"]
    heard = village.ann.get("/agents/ann/subscribers").json()["items"]
    village.ann.post("/events", json={"eventType": "sent", "data": {}})
    village.ann.post("/events", json={"eventType": "paid", "data": {}})
    village.move()
    leased = village.lease()
    changed = village.cat.put(pair)

    assert (made.status_code, changed.status_code) == (204, 204)
    assert listed[0]["eventTypes"] == heard[0]["eventTypes"] == ["order.*", "paid"]
    assert [each["eventType"] for each in leased] == ["paid"]
    assert "eventTypes" not in village.cat.get("/agents/cat").json()["subscriptions"][0]


@pytest.mark.parametrize(
    ("event_types", "field"),
    [
        ([], "eventTypes"),
        ([f"t{n}" for n in range(21)], "eventTypes"),
        ("paid", "eventTypes"),
        (["paid", 7], "eventTypes[1]"),
        (["order*"], "eventTypes[0]"),
        ([""], "eventTypes[0]"),
    ],
)
def test_types_that_are_none_are_400_with_the_field(village: Village, event_types: object, field: str) -> None:
    answer = village.cat.put("/agents/cat/subscriptions/ann", json={"eventTypes": event_types})

    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert village.agents.subscriptions("cat").items[0].event_types is None


def test_subscriptions_are_listed_paused_resumed_and_ended(village: Village) -> None:
    pair = "/agents/cat/subscriptions/ann"
    listed = village.cat.get("/agents/cat/subscriptions").json()
    heard = village.ann.get("/agents/ann/subscribers").json()
    paused = village.cat.post(f"{pair}/pause")
    state = village.cat.get("/agents/cat").json()["subscriptions"][0]["state"]
    resumed = village.cat.post(f"{pair}/resume", json={})
    ended = [village.cat.delete(pair).status_code for _ in range(2)]

    assert [sorted(row) for row in listed["items"]] == [["createdAt", "producerId", "state"]]
    assert [row["subscriberId"] for row in heard["items"]] == ["cat"]
    assert (paused.status_code, state, resumed.status_code) == (204, "paused", 204)
    assert ended == [204, 204]
    assert village.cat.post(f"{pair}/pause").status_code == 404
