"""The rules of agents as a caller sees them: whose path it is, what comes twice, late, or after an answer was lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from tests.http.api import Serve
from tests.http.village import Village, slug
from tests.waiting import eventually

from postroad import failpoints
from postroad.agents.sqlite.queue import SQLiteAgentQueue
from postroad.errors import RateLimited
from postroad.http import forms, server_sent_events
from postroad.http.access import AgentAccess
from postroad.queues import AckResult, Delivery
from postroad.settings import Settings
from postroad.testing.clock import FakeClock

_PAIR = "/agents/{id}/subscriptions/ann"
_OWN_ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/agents/{id}", None),
    ("DELETE", "/agents/{id}", None),
    ("POST", "/agents/{id}/token", None),
    ("PUT", _PAIR, None),
    ("DELETE", _PAIR, None),
    ("POST", f"{_PAIR}/pause", None),
    ("POST", f"{_PAIR}/resume", None),
    ("POST", f"{_PAIR}/replay", {}),
    ("GET", "/agents/{id}/subscriptions", None),
    ("GET", "/agents/{id}/subscribers", None),
    ("PUT", "/agents/{id}/grants/ann", None),
    ("DELETE", "/agents/{id}/grants/ann", None),
    ("POST", "/agents/{id}/leases", {}),
    ("POST", "/agents/{id}/acks", {"receipts": ["x"]}),
    ("POST", "/agents/{id}/extensions", {"receipts": ["x"]}),
    ("POST", "/agents/{id}/releases", {"receipts": ["x"]}),
    ("GET", "/agents/{id}/stream", None),
    ("GET", "/agents/{id}/stats", None),
    ("GET", "/agents/{id}/dead-letters", None),
    ("POST", "/agents/{id}/dead-letters/redrive", {}),
]


def _problem(client: httpx.Client, method: str, path: str, agent_id: str, body: Any) -> dict[str, Any]:
    answer = client.request(method, path.format(id=agent_id), json=body)
    document: dict[str, Any] = answer.json()
    detail = document["detail"].replace(repr(agent_id), "'it'")
    return {**document, "detail": detail, "request_id": None, "code": answer.status_code}


def test_every_route_of_another_agent_is_as_if_it_were_not_there(village: Village) -> None:
    village.publish(1)
    bob = village.clients["bob"]

    for method, path, body in _OWN_ROUTES:
        foreign, unknown = (_problem(bob, method, path, agent_id, body) for agent_id in ("cat", "nobody"))
        assert (foreign["code"], foreign["type"]) == (404, "/errors/agent-not-found"), (method, path)
        assert foreign == unknown, (method, path)

    assert village.agents.stats("cat").visible == 1
    assert [each.producer_id for each in village.agents.subscriptions("cat").items] == ["ann"]
    assert village.cat.get("/agents/cat").status_code == 200


def test_an_operator_gets_the_same_answer_for_an_agent_that_is_not_there(village: Village) -> None:
    for method, path, body in _OWN_ROUTES:
        answer = village.api.client.request(method, path.format(id="nobody"), json=body)
        ends_something = method == "DELETE" and path != "/agents/{id}"
        assert answer.status_code == (204 if ends_something else 404), (method, path)


def test_a_taken_id_is_a_conflict(village: Village) -> None:
    answer = village.api.client.post("/agents", json={"agentId": "ann"})

    assert (answer.status_code, slug(answer), answer.json()["field"]) == (409, "agent-exists", "agentId")
    assert village.ann.get("/agents/ann").status_code == 200


def test_a_repeated_rotation_voids_the_token_nobody_read_and_keeps_the_former_one(village: Village) -> None:
    key = {"Idempotency-Key": "once"}

    lost, answer = (village.ann.post("/agents/ann/token", headers=key) for _ in range(2))

    opened = {}
    for name, token in (
        ("former", village.tokens["ann"]),
        ("lost", lost.json()["token"]),
        ("new", answer.json()["token"]),
    ):
        with village.api.as_caller(token) as caller:
            opened[name] = caller.get("/agents/ann").status_code
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert answer.json()["previousValidUntil"] == lost.json()["previousValidUntil"]
    assert opened == {"former": 200, "lost": 401, "new": 200}


def test_subscribing_twice_is_204_and_keeps_the_first_time(village: Village) -> None:
    path = "/agents/cat/subscriptions"
    village.agents.grant("ann", "cat")
    before = village.cat.get(path).json()

    answers = [village.cat.put(f"{path}/ann") for _ in range(2)]

    assert [(answer.status_code, answer.content) for answer in answers] == [(204, b""), (204, b"")]
    assert village.cat.get(path).json() == before


def test_whoever_accepts_all_needs_no_grant(village: Village) -> None:
    village.agents.register("eve", accept="all")

    assert village.cat.put("/agents/cat/subscriptions/eve").status_code == 204


def test_the_admin_grants_in_the_producers_place_and_only_to_agents_that_are_there(village: Village) -> None:
    granted = village.api.client.put("/agents/ann/grants/bob")
    to_nobody = village.ann.put("/agents/ann/grants/nobody")

    assert (granted.status_code, to_nobody.status_code) == (204, 404)
    assert village.clients["bob"].put("/agents/bob/subscriptions/ann").status_code == 204


def test_unsubscribing_discards_what_waits_only_when_it_is_told_to(village: Village) -> None:
    path = "/agents/cat/subscriptions/ann"
    village.publish(1)

    refused = village.cat.delete(f"{path}?discard=perhaps")
    still = len(village.agents.subscriptions("cat").items)
    ended = [village.cat.delete(path).status_code for _ in range(2)]
    village.publish(2)
    left = [each["data"]["n"] for each in village.lease()]
    village.agents.subscribe("cat", "ann")
    village.publish(3)
    discarded = village.cat.delete(f"{path}?discard=true")

    assert (refused.status_code, still) == (400, 1)
    assert (ended, left) == ([204, 204], [1])
    assert discarded.status_code == 204
    assert village.cat.get("/agents/cat/stats").json()["visible"] == 0


def test_what_concerns_a_subscription_that_is_not_there_is_404(village: Village) -> None:
    for verb in ("pause", "resume", "replay"):
        answer = village.cat.post(f"/agents/cat/subscriptions/bob/{verb}", json={})

        assert (answer.status_code, slug(answer)) == (404, "subscription-not-found")


def test_a_pause_withholds_and_a_resumption_delivers_in_order(village: Village) -> None:
    village.publish(1)
    village.cat.post("/agents/cat/subscriptions/ann/pause")
    village.publish(2)
    withheld = village.lease()
    stats = village.cat.get("/agents/cat/stats").json()
    village.cat.post("/agents/cat/subscriptions/ann/resume")

    assert withheld == []
    assert (stats["visible"], stats["held"]) == (0, 2)
    assert [each["data"]["n"] for each in village.lease()] == [1, 2]


def test_a_replay_says_how_many_and_marks_each(village: Village) -> None:
    village.publish(1, 2)
    village.cat.post("/agents/cat/acks", json={"receipts": [each["receipt"] for each in village.lease()]})

    answer = village.cat.post("/agents/cat/subscriptions/ann/replay", json={"since": "trim_horizon"})
    again = village.lease()

    assert (answer.status_code, answer.json()) == (202, {"replayed": 2})
    assert [(each["data"]["n"], each["replay"]) for each in again] == [(1, True), (2, True)]


def test_two_events_of_one_millisecond_are_two_events_in_order(village: Village) -> None:
    for n in (1, 2):
        village.ann.post(
            "/events", json={"eventType": "x", "data": {"n": n}, "timestamp": "2025-07-01T14:00:00.1239+02:00"}
        )
    village.move()

    leased = village.lease()

    assert [each["data"]["n"] for each in leased] == [1, 2]
    assert {each["timestamp"] for each in leased} == {"2025-07-01T12:00:00.123Z"}


def test_an_equal_event_id_of_another_agent_is_another_event(village: Village) -> None:
    village.agents.subscribe("cat", "bob")
    for name in ("ann", "bob", "ann"):
        village.clients[name].post("/events", json={"eventType": "x", "data": {}, "eventId": "one"})
    village.move()

    assert sorted(each["agentId"] for each in village.lease()) == ["ann", "bob"]


@pytest.mark.parametrize("named", [{"eventId": "mine"}, {}], ids=["event-id", "idempotency-key"])
def test_an_answer_that_was_lost_costs_no_second_event(village: Village, named: dict[str, str]) -> None:
    body = {"eventType": "x", "data": {"n": 1}, **named}
    headers = {} if named else {"Idempotency-Key": "once"}
    failpoints.load("http.before_reply=raise#1")
    try:
        with pytest.raises(httpx.HTTPError):
            village.ann.post("/events", json=body, headers=headers).raise_for_status()
    finally:
        failpoints.load(None)

    again = village.ann.post("/events", json=body, headers=headers)
    village.move()

    assert again.status_code == 202
    assert [each["data"]["n"] for each in village.lease()] == [1]


def test_a_batch_of_an_agent_that_names_another_sends_only_what_is_its_own(village: Village) -> None:
    events = [
        {"eventType": "x", "data": {"n": 1}},
        {"agentId": "bob", "eventType": "x", "data": {"n": 2}},
        {"eventType": "x", "data": {"n": 3}},
    ]

    answer = village.ann.post("/events/batch", json={"events": events}).json()

    assert answer["failed"] == 2
    assert [sorted(result) for result in answer["results"]] == [["error", "eventId", "ok", "sequenceNumber"]] * 3
    assert [result["error"] and result["error"]["type"] for result in answer["results"]] == [
        None,
        "/errors/identity-mismatch",
        "/errors/held-back",
    ]
    assert village.runner.run_once().read == 1


def test_an_event_may_be_as_large_as_the_limit_and_no_larger(village: Village) -> None:
    frame = {
        "agentId": "ann",
        "timestamp": "2025-07-01T12:00:00.000Z",
        "eventType": "x",
        "data": {"t": ""},
        "eventId": "e",
    }
    room = 262_144 - len(json.dumps(frame, separators=(",", ":")))

    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    fits, too_large = (
        village.ann.post("/events", json={**frame, "data": {"t": "x" * size}, "eventId": "e"}, headers=trace)
        for size in (room, room + 1)
    )

    assert (fits.status_code, too_large.status_code, slug(too_large)) == (202, 413, "event-too-large")
    assert village.runner.run_once().read == 1


def test_a_lease_is_not_to_be_stored_and_its_receipt_is_void_when_it_is_over(village: Village) -> None:
    village.publish(1)
    answer = village.cat.post("/agents/cat/leases", json={"visibility": 1})
    [first] = answer.json()["deliveries"]
    [second] = village.lease(wait=10)

    expired = village.cat.post("/agents/cat/acks", json={"receipts": [first["receipt"], second["receipt"]]})

    assert answer.headers["Cache-Control"] == "no-store"
    assert (first["receiveCount"], second["receiveCount"]) == (1, 2)
    assert [result["ok"] for result in expired.json()["results"]] == [False, True]


def test_dead_letters_are_listed_page_by_page_and_redriven_up_to_a_limit(village: Village) -> None:
    village.publish(1, 2, 3)
    queue = village.agents.queue("cat")
    for _ in range(3):
        queue.reject(queue.receive(max_messages=1), reason="poison")

    first = village.cat.get("/agents/cat/dead-letters?limit=2").json()
    rest = village.cat.get("/agents/cat/dead-letters", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    redriven = village.cat.post("/agents/cat/dead-letters/redrive", json={"limit": 2}).json()

    assert [each["data"]["n"] for each in (*first["items"], *rest["items"])] == [1, 2, 3]
    assert rest["next_cursor"] is None
    assert redriven == {"redriven": 2}
    assert village.cat.get("/agents/cat/stats").json()["dead"] == 1


def test_a_deleted_agents_token_opens_nothing_and_what_it_said_stays(village: Village) -> None:
    village.publish(1)

    gone = village.ann.delete("/agents/ann")
    refused = village.ann.post("/events", json={"eventType": "x", "data": {}})

    assert gone.json() == {"discarded": 0, "subscriptions": 0, "subscribers": 1}
    assert refused.status_code == 401
    assert village.api.client.delete("/agents/ann").status_code == 404
    assert [each["data"]["n"] for each in village.lease()] == [1]


def test_a_stream_refuses_a_visibility_out_of_range(village: Village) -> None:
    village.publish(1)

    for visibility in ("0", "43201", "abc"):
        answer = village.cat.get("/agents/cat/stream", params={"visibility": visibility})

        assert (answer.status_code, answer.json()["field"]) == (400, "visibility")
    assert village.agents.stats("cat").in_flight == 0


def _lines(answer: httpx.Response) -> Generator[str, None, None]:
    """The lines of a stream; it ends when nobody holds them any more."""
    yield from (line for line in answer.iter_lines() if line)


def test_a_stream_keeps_its_leases_and_says_now_and_then_that_it_lives(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_sent_events, "KEEP_ALIVE_SECONDS", 0.2)
    extended: list[list[AckResult]] = []
    extend = SQLiteAgentQueue.extend

    def noted(queue: SQLiteAgentQueue, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        extended.append(extend(queue, deliveries, seconds=seconds))
        return extended[-1]

    monkeypatch.setattr(SQLiteAgentQueue, "extend", noted)
    village.publish(1)
    with village.cat.stream("GET", "/agents/cat/stream?visibility=1") as answer:
        lines = _lines(answer)
        said = [next(lines) for _ in range(4)]
        alive = next(line for line in lines if line == ": keep-alive")
        eventually(lambda: len(extended) >= 2)
        lines.close()

    assert [line.partition(":")[0] for line in said] == ["", "event", "id", "data"]
    assert alive
    assert len(extended[0]) == 1
    eventually(lambda: village.agents.stats("cat").in_flight == 0)


def test_a_stream_says_that_it_lives_while_the_tokens_cannot_be_read(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_sent_events, "KEEP_ALIVE_SECONDS", 0.2)
    with village.cat.stream("GET", "/agents/cat/stream") as answer:
        lines = _lines(answer)
        connected = next(lines)
        village.api.context.tokens.path.write_bytes(b"damaged")
        # Before an event is leased for the stream, its token is checked.
        assert village.agents.agent("ann").publish("counted", {"n": 1}).error is None
        village.move()
        said = [next(lines) for _ in range(8)]
        lines.close()

    assert connected == ": connected"
    assert "event: message" in said
    assert said.count(": keep-alive") >= 2


def test_streams_count_among_everyone_who_waits(village: Village, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(village.api.context.polls, "_max_open", 1)
    with village.cat.stream("GET", "/agents/cat/stream") as answer:
        lines = _lines(answer)
        next(lines)
        refused = [
            village.ann.get("/agents/ann/stream"),
            village.ann.post("/agents/ann/leases", json={"wait": 1}),
        ]
        at_once = village.ann.post("/agents/ann/leases", json={})
        lines.close()

    assert [(each.status_code, slug(each)) for each in refused] == [(429, "too-many-polls")] * 2
    assert int(refused[0].headers["Retry-After"]) >= 1
    assert at_once.status_code == 200


def test_a_stopping_server_answers_waiting_polls_with_nothing(village: Village) -> None:
    found: list[list[Delivery] | list[dict[str, Any]]] = []
    polling = threading.Thread(target=lambda: found.append(village.lease(wait=20)))
    polling.start()
    eventually(lambda: village.api.context.polls.open == 1)

    village.api.stop()
    polling.join(120)

    assert found == [[]]


def test_what_is_left_out_of_a_request_has_its_documented_value(village: Village) -> None:
    before = datetime.now(UTC)
    rotated = village.ann.post("/agents/ann/token").json()
    schema = village.api.client.get("/schema/openapi.json").json()
    [visibility] = [
        each["schema"]
        for each in schema["paths"]["/agents/{agent}/stream"]["get"]["parameters"]
        if each["name"] == "visibility"
    ]
    overlap = datetime.fromisoformat(rotated["previousValidUntil"]) - before

    assert (forms.AgentLease().wait, forms.AgentLease().max_messages, forms.AgentLease().visibility) == (0, 10, None)
    assert visibility.get("default") is None
    assert Settings().agents_visibility == 30
    assert (server_sent_events.MAX_UNACKED, server_sent_events.KEEP_ALIVE_SECONDS) == (10, 15)
    assert round(overlap.total_seconds(), -2) == 600


def test_a_burst_is_twice_the_rate_and_nothing_limits_a_rate_of_zero(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_AGENT_RATE", "5")
    access = AgentAccess(village.agents, FakeClock())
    monkeypatch.setenv("POSTROAD_AGENT_RATE", "0")
    unlimited = AgentAccess(village.agents, FakeClock())

    access.take(["ann"] * 10)
    unlimited.take(["ann"] * 100_000)

    access.take(["bob"])
    with pytest.raises(RateLimited) as refused:
        access.take(["ann"])
    assert refused.value.retry_after


def test_the_settings_of_agents_are_those_of_the_server(serve: Serve) -> None:
    api = serve(agents_max_receives=2, agents_visibility=45.0, agents_retention=60.0)
    agents = api.context.agent_access.agents
    agents.register("ann")

    traits = agents.queue("ann").traits

    assert (traits.max_receives, traits.visibility) == (2, 45)
