"""Events of agents by HTTP: published, leased, streamed, settled; bad input changes nothing."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.http.api import Api, Serve
from tests.http.village import JSON, Village, slug
from tests.waiting import eventually

from postroad.errors import RateLimited, StorageFull
from postroad.http import access
from postroad.http.access import RateLimits
from postroad.streams import Record
from postroad.testing.clock import FakeClock

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


def test_an_event_goes_from_one_agent_to_another_and_is_acked(village: Village) -> None:
    published = village.ann.post(
        "/events", json={"eventType": "placed", "data": {"n": 1}}, headers={"traceparent": TRACE}
    )
    village.move()
    [delivery] = village.lease()
    acks = [village.cat.post("/agents/cat/acks", json={"receipts": [delivery["receipt"]]}).json() for _ in range(2)]

    assert published.status_code == 202
    assert sorted(published.json()) == ["eventId", "sequenceNumber", "shardId"]
    assert delivery["eventId"] == published.json()["eventId"]
    assert sorted(delivery) == [
        "agentId",
        "data",
        "eventId",
        "eventType",
        "messageId",
        "receipt",
        "receiveCount",
        "sequenceNumber",
        "subscriberId",
        "timestamp",
        "traceparent",
    ]
    assert acks[0]["results"] == [{"ok": True, "error": None}]
    assert acks[1]["results"][0]["ok"] is False
    assert acks[1]["results"][0]["error"]["type"] == "/errors/stale-receipt"


@pytest.mark.parametrize(
    "trace",
    ["00-abc-def-01", "0" * 20_000, TRACE.upper(), f"ff{TRACE[2:]}", f"00-{'0' * 32}-{'b' * 16}-01", f"{TRACE}-x"],
)
def test_a_traceparent_that_is_not_in_the_form_of_the_w3c_is_dropped(village: Village, trace: str) -> None:
    published = village.ann.post("/events", json={"eventType": "x", "data": {}}, headers={"traceparent": trace})
    village.move()

    assert published.status_code == 202
    assert "traceparent" not in village.lease()[0]


def test_a_record_that_somebody_put_on_the_stream_brings_no_false_traceparent(village: Village) -> None:
    event = {"agentId": "ann", "eventType": "x", "data": {}, "traceparent": "x" * 20_000}
    village.api.backend.stream("agent-events", shards=4).put([Record("ann", json.dumps(event).encode())])
    village.move()

    assert "traceparent" not in village.lease()[0]


def test_a_waiting_lease_answers_when_an_event_comes_and_empty_when_none_does(village: Village) -> None:
    none = village.lease(wait=0.2)
    stop = threading.Event()
    running = threading.Thread(target=village.agents.runner(worker="thread").run, args=(stop,))
    village.runner.close()
    running.start()
    try:
        later = threading.Timer(0.3, lambda: village.ann.post("/events", json={"eventType": "x", "data": {"n": 1}}))
        later.start()
        found = village.lease(wait=15)
        later.join()
    finally:
        stop.set()
        running.join()

    assert none == []
    assert [delivery["data"]["n"] for delivery in found] == [1]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[1]",
        b"5",
        b'{"eventType":"x","data":{}} x',
        b'{"eventType":"x","data":{"a":NaN}}',
        b'{"eventType":"x","data":' + b'{"a":' * 65 + b"1" + b"}" * 66,
        b'{"eventType":"x","data":{"a":"\\ud800"}}',
        b'{"eventType":"x","data":{"a":"\\u0000"}}',
        b'{"eventType":"x\\u0000","data":{}}',
    ],
)
def test_a_body_that_is_no_event_is_400(village: Village, body: bytes) -> None:
    answer = village.ann.post("/events", content=body, headers=JSON)

    assert answer.status_code == 400, answer.text
    assert village.runner.run_once().read == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"data": {}}, "eventType"),
        ({"eventType": "", "data": {}}, "eventType"),
        ({"eventType": "x" * 257, "data": {}}, "eventType"),
        ({"eventType": "a\nb", "data": {}}, "eventType"),
        ({"eventType": "x"}, "data"),
        ({"eventType": "x", "data": None}, "data"),
        ({"eventType": "x", "data": []}, "data"),
        ({"eventType": "x", "data": "s"}, "data"),
        ({"eventType": "x", "data": {}, "timestamp": "2025-07-01T12:00:00"}, "timestamp"),
        ({"eventType": "x", "data": {}, "timestamp": "yesterday"}, "timestamp"),
        ({"eventType": "x", "data": {}, "timestamp": 5}, "timestamp"),
        ({"eventType": "x", "data": {}, "timestamp": "1969-12-31T00:00:00Z"}, "timestamp"),
        ({"eventType": "x", "data": {}, "eventId": ""}, "eventId"),
        ({"eventType": "x", "data": {}, "evil": 1}, "evil"),
    ],
)
def test_a_bad_field_of_an_event_is_named(village: Village, body: dict[str, Any], field: str) -> None:
    answer = village.ann.post("/events", json=body)

    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert village.runner.run_once().read == 0


def test_what_is_no_json_or_too_large_is_told_apart(village: Village) -> None:
    text = village.ann.post("/events", content=b"{}", headers={"Content-Type": "text/plain"})
    large = village.ann.post("/events", json={"eventType": "x", "data": {"a": "x" * 262_144}})

    assert (text.status_code, large.status_code) == (415, 413)
    assert village.runner.run_once().read == 0


def test_identity_comes_from_the_token(village: Village) -> None:
    other = village.ann.post("/events", json={"agentId": "bob", "eventType": "x", "data": {}})
    own = village.ann.post("/events", json={"agentId": "ann", "eventType": "x", "data": {}})
    nameless = village.api.client.post("/events", json={"eventType": "x", "data": {}})
    unknown = village.api.client.post("/events", json={"agentId": "nobody", "eventType": "x", "data": {}})

    assert (other.status_code, slug(other)) == (403, "identity-mismatch")
    assert own.status_code == 202
    assert (nameless.status_code, nameless.json()["field"]) == (400, "agentId")
    assert unknown.status_code == 404
    assert village.runner.run_once().read == 1


def test_one_bad_event_of_a_batch_holds_back_its_own_agent_alone(village: Village) -> None:
    events = [
        {"agentId": "ann", "eventType": "x", "data": {"n": 1}},
        {"agentId": "ann", "eventType": "x", "data": {"n": 2}, "evil": 1},
        {"agentId": "bob", "eventType": "x", "data": {"n": 3}},
        {"agentId": "ann", "eventType": "x", "data": {"n": 4}},
        "no event",
    ]

    answer = village.api.client.post("/events/batch", json={"events": events})

    results = answer.json()["results"]
    assert (answer.status_code, answer.json()["failed"]) == (202, 3)
    assert [result["ok"] for result in results] == [True, False, True, False, False]
    assert results[1]["error"]["field"] == "evil"
    assert results[3]["error"]["type"] == "/errors/held-back"
    assert village.runner.run_once().read == 2


@pytest.mark.parametrize("count", [0, 501])
def test_a_batch_has_one_to_five_hundred_events(village: Village, count: int) -> None:
    events = [{"eventType": "x", "data": {}}] * count

    assert village.ann.post("/events/batch", json={"events": events}).status_code == 400
    assert village.runner.run_once().read == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"wait": 21}, "wait"),
        ({"wait": -1}, "wait"),
        ({"wait": "abc"}, "wait"),
        ({"max_messages": 0}, "max_messages"),
        ({"max_messages": 11}, "max_messages"),
        ({"visibility": 0}, "visibility"),
        ({"visibility": 43_201}, "visibility"),
    ],
)
def test_a_lease_out_of_range_is_refused_by_its_field(village: Village, body: dict[str, Any], field: str) -> None:
    village.publish(1)

    answer = village.cat.post("/agents/cat/leases", json=body)

    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert village.lease()[0]["receiveCount"] == 1


def test_rejections_send_events_to_the_dead_letters_at_once(village: Village) -> None:
    village.publish(1, 2)
    first, second = village.lease()
    body = {"receipts": [first["receipt"]], "reason": "unknown order", "error": "KeyError: 7"}

    rejected = village.cat.post("/agents/cat/rejections", json=body)
    again = village.cat.post("/agents/cat/rejections", json=body)

    dead = village.cat.get("/agents/cat/dead-letters").json()["items"]
    assert rejected.json() == {"results": [{"ok": True, "error": None}]}
    assert again.json()["results"][0]["error"]["type"] == "/errors/stale-receipt"
    assert [(row["data"]["n"], row["reason"], row["error"]) for row in dead] == [(1, "unknown order", "KeyError: 7")]
    assert village.cat.post("/agents/cat/acks", json={"receipts": [second["receipt"]]}).json()["results"][0]["ok"]


def test_the_error_of_a_release_is_found_in_the_dead_letter(village: Village) -> None:
    village.publish(1)
    for n in range(5):
        [held] = village.lease()
        body = {"receipts": [held["receipt"]], "error": f"ValueError: {n}"}
        assert village.cat.post("/agents/cat/releases", json=body).json()["results"][0]["ok"]

    assert village.lease() == []
    dead = village.cat.get("/agents/cat/dead-letters").json()["items"]
    assert [row["error"] for row in dead] == ["ValueError: 4"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"receipts": ["x"]}, "reason"),
        ({"receipts": ["x"], "reason": ""}, "reason"),
        ({"receipts": ["x"], "reason": 5}, "reason"),
        ({"receipts": ["x"], "reason": "y", "error": 5}, "error"),
        ({"receipts": [], "reason": "y"}, "receipts"),
        ({"receipts": ["x"], "reason": "y", "after": 5}, "after"),
    ],
)
def test_a_bad_rejection_is_refused_by_its_field(village: Village, body: dict[str, Any], field: str) -> None:
    answer = village.cat.post("/agents/cat/rejections", json=body)

    assert (answer.status_code, answer.json()["field"]) == (400, field)


@pytest.mark.parametrize("overlap", [0, 60, None])
def test_a_token_is_rotated_with_the_overlap_that_was_asked_for(village: Village, overlap: int | None) -> None:
    body = None if overlap is None else {"overlap": overlap}

    answer = village.cat.post("/agents/cat/token", json=body)

    left = datetime.fromisoformat(answer.json()["previousValidUntil"]) - datetime.now(UTC)
    assert answer.status_code == 201
    assert round(left.total_seconds(), -1) == (600 if overlap is None else overlap)
    assert village.cat.get("/agents/cat").status_code == (401 if overlap == 0 else 200)
    with village.api.as_caller(answer.json()["token"]) as renewed:
        assert renewed.get("/agents/cat").status_code == 200


@pytest.mark.parametrize("overlap", [-1, 86_401, "x", True])
def test_an_overlap_out_of_range_is_refused_and_the_token_stays(village: Village, overlap: Any) -> None:
    answer = village.cat.post("/agents/cat/token", json={"overlap": overlap})

    assert (answer.status_code, answer.json()["field"]) == (400, "overlap")
    assert village.cat.get("/agents/cat").status_code == 200


@pytest.mark.parametrize("verb", ["acks", "extensions", "releases"])
@pytest.mark.parametrize("body", [{"receipts": []}, {"receipts": ["x"] * 101}, {}, {"receipts": [""]}])
def test_settling_takes_one_to_a_hundred_receipts(village: Village, verb: str, body: dict[str, Any]) -> None:
    assert village.cat.post(f"/agents/cat/{verb}", json=body).status_code == 400


@pytest.mark.parametrize(("verb", "name"), [("extensions", "seconds"), ("releases", "after")])
@pytest.mark.parametrize("value", [-1, True, "x"])
def test_seconds_are_a_number_from_zero(village: Village, verb: str, name: str, value: Any) -> None:
    answer = village.cat.post(f"/agents/cat/{verb}", json={"receipts": ["x"], name: value})

    assert (answer.status_code, answer.json()["field"]) == (400, name)


@pytest.mark.parametrize("verb", ["acks", "extensions", "releases"])
def test_receipts_that_are_stale_garbage_or_foreign_change_nothing(village: Village, verb: str) -> None:
    village.agents.subscribe("bob", "ann")
    village.publish(1)
    [mine] = village.lease()
    [foreign] = village.agents.queue("bob").receive()

    answer = village.cat.post(f"/agents/cat/{verb}", json={"receipts": ["garbage", foreign.receipt]})

    assert answer.status_code == 200
    assert [result["ok"] for result in answer.json()["results"]] == [False, False]
    done = village.cat.post("/agents/cat/acks", json={"receipts": [mine["receipt"]]})
    assert done.json()["results"][0]["ok"] is True


def test_releases_and_extensions_do_what_they_say(village: Village) -> None:
    village.publish(1)
    [held] = village.lease()
    extended = village.cat.post("/agents/cat/extensions", json={"receipts": [held["receipt"]], "seconds": 60})
    released = village.cat.post("/agents/cat/releases", json={"receipts": [held["receipt"]]})

    assert extended.json()["results"][0]["ok"]
    assert released.json()["results"][0]["ok"]
    assert village.lease()[0]["receiveCount"] == 2


def test_stats_dead_letters_redrive_and_replay(village: Village) -> None:
    village.publish(1, 2)
    queue = village.agents.queue("cat")
    queue.reject(queue.receive(max_messages=1), reason="poison", error="boom")

    stats = village.cat.get("/agents/cat/stats").json()
    dead = village.cat.get("/agents/cat/dead-letters").json()
    redriven = village.cat.post("/agents/cat/dead-letters/redrive", json={"limit": 5})
    replayed = village.cat.post("/agents/cat/subscriptions/ann/replay")
    bad = village.cat.post("/agents/cat/subscriptions/ann/replay", json={"since": "yesterday"})

    assert {**stats, "oldestAgeSeconds": None} == {
        "visible": 1,
        "inFlight": 0,
        "delayed": 0,
        "held": 0,
        "dead": 1,
        "oldestAgeSeconds": None,
    }
    assert [(row["data"]["n"], row["reason"], row["error"]) for row in dead["items"]] == [(1, "poison", "boom")]
    assert (redriven.status_code, redriven.json()) == (202, {"redriven": 1})
    assert (replayed.status_code, replayed.json()) == (202, {"replayed": 2})
    assert (bad.status_code, bad.json()["field"]) == (400, "since")


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "cursor=forged"])
def test_a_list_refuses_bad_limits_and_forged_cursors(village: Village, query: str) -> None:
    assert village.api.client.get(f"/agents?{query}").status_code == 400
    assert village.cat.get(f"/agents/cat/subscriptions?{query}").status_code == 400


def test_lists_go_on_where_they_stopped(village: Village) -> None:
    first = village.api.client.get("/agents?limit=2").json()
    rest = village.api.client.get("/agents", params={"limit": 2, "cursor": first["next_cursor"]}).json()

    assert [row["agentId"] for row in [*first["items"], *rest["items"]]] == ["ann", "bob", "cat"]
    assert rest["next_cursor"] is None


def test_a_repeated_key_is_one_event_and_another_body_a_conflict(village: Village) -> None:
    key = {"Idempotency-Key": "once"}
    body = {"eventType": "x", "data": {"n": 1}}

    first, second = (village.ann.post("/events", json=body, headers=key) for _ in range(2))
    other = village.ann.post("/events", json={**body, "eventType": "y"}, headers=key)

    assert first.json() == second.json()
    assert second.headers["Idempotency-Replayed"] == "true"
    assert other.status_code == 409
    assert village.runner.run_once().read == 1


def test_a_repeated_registration_shows_a_fresh_token_and_voids_the_former(api: Api) -> None:
    first, second = (api.client.post("/agents", json={}, headers={"Idempotency-Key": "once"}) for _ in range(2))

    assert first.json()["agentId"] == second.json()["agentId"]
    with api.as_caller(first.json()["token"]) as former, api.as_caller(second.json()["token"]) as renewed:
        path = f"/agents/{first.json()['agentId']}"
        assert (former.get(path).status_code, renewed.get(path).status_code) == (401, 200)


def test_sec16_an_agent_above_its_rate_is_429_with_nothing_accepted(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_AGENT_RATE", "5")
    village = Village(serve())
    batch = {"events": [{"eventType": "x", "data": {}}] * 8}

    answers = [village.ann.post("/events/batch", json=batch) for _ in range(2)]
    other = village.clients["bob"].post("/events", json={"eventType": "x", "data": {}})

    assert [answer.status_code for answer in answers] == [202, 429]
    assert int(answers[1].headers["Retry-After"]) >= 1
    assert other.status_code == 202
    assert village.runner.run_once().read == 9
    for client in village.clients.values():
        client.close()


def test_agents_that_do_not_exist_are_not_counted_and_old_callers_are_forgotten(village: Village) -> None:
    names = [f"nobody-{number}" for number in range(500)]
    batch = {"events": [{"agentId": name, "eventType": "x", "data": {}} for name in [*names, "ann"]][-500:]}

    answer = village.api.client.post("/events/batch", json=batch)

    assert answer.json()["failed"] == 499
    assert list(village.api.context.agent_access._rates._buckets) == ["ann"]


def test_at_most_ten_thousand_callers_are_remembered_those_that_asked_last() -> None:
    limits = RateLimits(5, FakeClock())
    for number in range(access.MAX_BUCKETS + 10):
        limits.take("ann") if number % 5_000 == 0 else limits.take(f"caller-{number}")

    assert len(limits._buckets) == access.MAX_BUCKETS
    with pytest.raises(RateLimited):
        limits.take("ann", 5)


def test_sec16_an_agent_with_too_many_polls_is_429_alone(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_AGENT_POLLS", "1")
    village = Village(serve())
    polling = threading.Thread(target=village.lease, kwargs={"wait": 3})
    polling.start()
    eventually(lambda: village.api.context.polls.open == 1)

    with village.api.as_caller(village.tokens["cat"]) as second:
        refused = second.post("/agents/cat/leases", json={"wait": 1})
        at_once = second.post("/agents/cat/leases", json={})
    with village.api.as_caller(village.tokens["bob"]) as bob:
        other = bob.post("/agents/bob/leases", json={"wait": 0.1})
    polling.join()

    assert (refused.status_code, slug(refused)) == (429, "too-many-polls")
    assert (at_once.status_code, other.status_code) == (200, 200)
    for client in village.clients.values():
        client.close()


def test_storage_that_fails_is_503_and_nothing_is_accepted(village: Village, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> Any:
        raise StorageFull("no room")

    monkeypatch.setattr(village.api.context.agent_access.agents._stream, "put", full)
    answer = village.ann.post("/events", json={"eventType": "x", "data": {}})
    monkeypatch.undo()
    again = village.ann.post("/events", json={"eventType": "x", "data": {}})

    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert again.status_code == 202
    assert village.runner.run_once().read == 1
