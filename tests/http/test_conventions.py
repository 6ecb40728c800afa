"""What holds for every route."""

from __future__ import annotations

import logging
import re
from typing import Any

import httpx
import pytest
from tests.http.api import Api, Serve
from tests.waiting import eventually

from postroad import failpoints
from postroad.errors import PostroadError, StorageFull
from postroad.http.app import ROUTES
from postroad.queues import QueueSpec


def problem(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert {"type", "title", "status", "detail", "remedy", "request_id"} <= set(document)
    assert document["status"] == answer.status_code
    assert document["request_id"] == answer.headers["x-request-id"]
    return document


@pytest.mark.parametrize(
    ("method", "path", "status", "slug"),
    [
        ("GET", "/nowhere", 404, "route-not-found"),
        ("GET", "/queues/", 404, "route-not-found"),
        ("GET", "/queues//orders", 404, "route-not-found"),
        ("PATCH", "/health", 405, "method-not-allowed"),
        ("OPTIONS", "/health", 405, "method-not-allowed"),
        ("TRACE", "/health", 405, "method-not-allowed"),
        ("HEAD", "/queues/orders/leases", 405, None),
        ("GET", "/errors/no-such-error", 404, "route-not-found"),
        ("GET", "/queues/orders", 404, "queue-not-found"),
        ("GET", "/queues?token=pr_x", 400, "token-in-url"),
        ("GET", "/health?a=1&access_token=pr_x", 400, "token-in-url"),
        ("GET", "/queues?t%6Fken=pr_x", 400, "token-in-url"),
        ("GET", "/uis", 404, "route-not-found"),
        ("GET", "/logins", 404, "route-not-found"),
    ],
)
def test_every_refusal_is_a_problem(api: Api, method: str, path: str, status: int, slug: str | None) -> None:
    answer = api.client.request(method, path)

    assert answer.status_code == status
    if slug is not None:
        assert problem(answer)["type"] == f"/errors/{slug}"


def test_a_405_names_the_methods_that_work(api: Api) -> None:
    assert api.client.patch("/queues/orders").headers["allow"] == "DELETE, GET, HEAD, PUT"


def test_every_error_has_a_page_that_needs_no_token(api: Api) -> None:
    with api.as_caller(None) as anybody:
        pages = {slug: anybody.get(f"/errors/{slug}") for slug in _slugs(PostroadError)}

    assert all(page.status_code == 200 for page in pages.values())
    assert pages["queue-not-found"].json()["status"] == 404
    assert all(page.json()["remedy"] for page in pages.values())


def _slugs(kind: type[PostroadError]) -> set[str]:
    return {kind.slug}.union(*(_slugs(narrower) for narrower in kind.__subclasses__()))


def test_a_fault_of_ours_says_nothing_but_the_request_id(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: object) -> list[str]:
        raise RuntimeError("the secret cause")

    monkeypatch.setattr(api.backend, "queue_names", fail)
    answer = api.client.get("/queues", headers={"X-Request-Id": "find-me"})

    assert answer.status_code == 500
    assert problem(answer)["type"] == "/errors/internal"
    assert "secret" not in answer.text
    assert any("find-me" in str(record.msg) for record in caplog.records)


def test_storage_that_refuses_is_503_with_a_time_to_come_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> list[str]:
        raise StorageFull("no room")

    monkeypatch.setattr(api.backend, "queue_names", full)
    monkeypatch.setattr(api.context.readiness, "_check_storage", full)

    answer, ready = api.client.get("/queues"), api.client.get("/ready")

    assert (answer.status_code, problem(answer)["type"]) == (503, "/errors/storage-full")
    assert int(answer.headers["retry-after"]) >= 1
    assert (ready.status_code, ready.json()["checks"]["storage"]) == (503, "no room")
    assert api.client.get("/health").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil:80"])
def test_a_foreign_host_is_refused(api: Api, host: str) -> None:
    answer = api.client.get("/health", headers={"Host": host})

    assert (answer.status_code, problem(answer)["type"]) == (400, "/errors/host-not-allowed")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "[::1]:8787", "127.0.0.1", "mine.example:80"])
def test_loopback_names_and_allowed_hosts_are_served(serve: Serve, host: str) -> None:
    api = serve(allowed_hosts=("mine.example",))

    assert api.client.get("/health", headers={"Host": host, "X-Forwarded-Host": "evil.example"}).status_code == 200


@pytest.mark.parametrize(("given", "echoed"), [("a.b-C_1", True), ("x" * 64, True), ("x" * 65, False), ("a b", False)])
def test_a_well_formed_request_id_is_echoed_and_another_is_made(api: Api, given: str, echoed: bool) -> None:
    answer = api.client.get("/health", headers={"X-Request-Id": given})

    assert (answer.headers["x-request-id"] == given) is echoed
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", answer.headers["x-request-id"])


def test_a_request_is_logged_by_its_id_and_route_without_its_secrets(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="postroad")

    api.client.get("/queues/secret-name", headers={"X-Request-Id": "find-me"})

    eventually(lambda: caplog.records)
    [line] = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert (line["event"], line["request_id"], line["route"], line["status"]) == (
        *("http_request", "find-me", "/queues/{queue}"),
        404,
    )
    assert "pr_" not in str(line)
    assert "secret-name" not in str(line)


@pytest.mark.parametrize("path", ["/health", "/queues", "/schema", "/nowhere"])
def test_every_answer_has_the_security_headers_and_none_of_cors(api: Api, path: str) -> None:
    answer = api.client.get(path, headers={"Origin": "https://evil.example"})

    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/health", "/ready", "/status", "/queues", "/schema/openapi.json"])
def test_head_is_get_without_its_body(api: Api, path: str) -> None:
    head, get = api.client.head(path), api.client.get(path)

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


def test_health_ready_and_status_say_how_things_are(api: Api) -> None:
    health, ready, status = (api.client.get(path).json() for path in ("/health", "/ready", "/status"))

    assert set(health) == {"status", "version"}
    assert ready == {"status": "ready", "checks": {"storage": "ok", "runners": "ok"}}
    assert set(status) == {"version", "uptime_seconds", "backend", "read_only", "parts"}
    assert status["backend"]["kind"] == "sqlite"


def test_the_root_leads_to_the_dashboard(api: Api) -> None:
    answer = api.client.get("/")

    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/")


def test_a_read_only_server_refuses_every_change(serve: Serve) -> None:
    api = serve(read_only=True)
    api.backend.create_queue(QueueSpec("orders"))

    changes = [
        api.client.put("/queues/bills", json={}),
        api.client.delete("/queues/orders", params={"confirm": "orders"}),
        api.client.post("/queues/orders/messages", json={"messages": [{"body": "x"}]}),
        api.client.post("/queues/orders/leases", json={}),
        api.client.post("/tokens", json={"name": "a", "scope": "read"}),
    ]

    assert {(answer.status_code, problem(answer)["type"]) for answer in changes} == {(403, "/errors/read-only")}
    assert api.client.get("/queues/orders").json()["visible"] == 0
    assert api.client.get("/status").json()["read_only"] is True


def test_sec16_a_caller_above_its_rate_is_429_and_others_are_not(serve: Serve) -> None:
    api = serve(rate_limit=5)
    token = api.token("read")

    with api.as_caller(token) as eager:
        answers = [eager.get("/status") for _ in range(30)]

    refused = [answer for answer in answers if answer.status_code == 429]
    assert answers[0].status_code == 200
    assert refused
    assert problem(refused[0])["type"] == "/errors/rate-limited"
    assert int(refused[0].headers["retry-after"]) >= 1
    assert api.client.get("/status").status_code == 200


def test_the_description_lists_every_route_with_examples_and_problems(api: Api) -> None:
    document = api.client.get("/schema/openapi.json").json()

    described = {
        (method.upper(), path)
        for path, item in document["paths"].items()
        for method in item
        if method in ("get", "put", "post", "delete")
    }
    served = {
        (method, re.sub(r":str}", "}", path))
        for route in ROUTES
        if route.include_in_schema is not False
        for path in route.paths
        for method in route.http_methods
    }
    assert document["openapi"].startswith("3.1")
    assert described == served
    for path, item in document["paths"].items():
        for operation in item.values():
            refusals = {status: one for status, one in operation["responses"].items() if status >= "400"}
            if path == "/ready":
                del refusals["503"]
            assert refusals
            assert all(list(one["content"]) == ["application/problem+json"] for one in refusals.values()), path
            assert operation["description"], path
            if "requestBody" in operation:
                assert operation["requestBody"]["content"]["application/json"]["example"]


def test_the_description_says_which_bodies_may_be_left_out_and_what_their_limits_are(api: Api) -> None:
    document = api.client.get("/schema/openapi.json").json()

    forms, paths = document["components"]["schemas"], document["paths"]
    assert paths["/agents"]["post"]["requestBody"]["required"] is False
    assert paths["/tokens"]["post"]["requestBody"]["required"] is True
    assert forms["Acks"]["properties"]["receipts"]["items"] == {"type": "string", "minLength": 1, "maxLength": 4_096}
    assert forms["NewToken"]["properties"]["expires_in"]["anyOf"][0]["exclusiveMinimum"] == 0
    assert forms["Acks"]["additionalProperties"] is False


def test_every_post_may_find_its_idempotency_key_reused(api: Api) -> None:
    paths = api.client.get("/schema/openapi.json").json()["paths"]

    posts = {path: item["post"]["responses"] for path, item in paths.items() if "post" in item}

    assert [path for path, responses in posts.items() if "409" not in responses] == []


def test_the_examples_of_the_description_are_accepted(api: Api) -> None:
    api.backend.create_queue(QueueSpec("orders-dlq"))
    api.backend.create_queue(QueueSpec("dead"))
    api.backend.create_queue(QueueSpec("orders", dead_letter="dead"))
    agents = api.backend.agents()
    for agent_id in ("ann", "bob"):
        agents.register(agent_id)
    agents.subscribe("ann", "bob")
    api.context.work.jobs.submit_job([{"taskId": "task-A", "name": "x"}], job_id="j")
    paths = api.client.get("/schema/openapi.json").json()["paths"]

    answers = {}
    for path, item in paths.items():
        for method, operation in item.items():
            if "requestBody" in operation:
                body = operation["requestBody"]["content"]["application/json"]["example"]
                name = "made-by-example" if method == "put" else "orders"
                body = {**body, "wait": 0} if "wait" in body else body
                # Another test may have registered the type of the example, with other fields.
                body = {**body, "type": "made.by.example"} if "type" in body else body
                filled = path.format(queue=name, topic=name, agent="ann", listener="ann", producer="bob", job="j")
                answers[path] = api.client.request(method, filled, json=body).status_code

    # No outbox is set.
    assert [answers.pop(path) for path in ("/outbox/redrive", "/outbox/skip")] == [404, 404]
    assert set(answers.values()) <= {200, 201, 202, 204}, answers


def test_the_page_of_the_description_asks_nobody_else(api: Api) -> None:
    page = api.client.get("/schema")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page.text)
    assert set(re.findall("<script[^>]*>", page.text)) == {'<script src="/static/script.js">'}
    assert " style=" not in page.text
    assert "POST /queues/{queue}/leases" in page.text


def test_an_answer_can_be_lost_on_purpose_between_effect_and_reply(api: Api) -> None:
    api.backend.create_queue(QueueSpec("orders"))
    failpoints.load("http.before_reply=raise#1")
    try:
        with pytest.raises(httpx.HTTPError):
            api.client.post("/queues/orders/messages", json={"messages": [{"body": "x"}]}).raise_for_status()
    finally:
        failpoints.load(None)

    assert len(api.backend.queue("orders").peek()) == 1
