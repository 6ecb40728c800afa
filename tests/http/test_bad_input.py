"""Everything a caller may get wrong: one row for each, its answer, and nothing changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.http.api import ADMIN, Api, Serve

from postroad.queues import OutgoingMessage, QueueSpec

SEND = "/queues/orders/messages"
JSON = {"Content-Type": "application/json"}
ONE = {"messages": [{"body": "x"}]}


@dataclass(frozen=True)
class Row:
    """A request, its status, and the slug or the field of its problem."""

    method: str
    path: str
    status: int
    slug: str | None = None
    field: str | None = None
    body: bytes | None = None
    json: Any = None
    headers: Mapping[str, str] | None = None


def sent(body: bytes, status: int = 400, **headers: str) -> Row:
    return Row("POST", SEND, status, body=body, headers={**JSON, **headers})


ROWS = {
    "empty body": sent(b""),
    "a list": sent(b"[1]"),
    "rubbish behind": sent(b'{"a":1}x'),
    "NaN": sent(b"NaN"),
    "100,000 brackets": sent(b"[" * 100_000),
    "a number of 5,000 digits": sent(b'{"messages": ' + b"1" * 5_000 + b"}"),
    "a lone surrogate": sent(b'{"messages": [{"body": "\\ud800"}]}'),
    "invalid UTF-8": sent(b'{"messages": [{"body": "\xff"}]}'),
    "a byte too long": sent(b" " * 2_097_153, 413),
    "text": Row("POST", SEND, 415, body=b"x", headers={"Content-Type": "text/plain"}),
    "gzip": sent(b"x", 415, **{"Content-Encoding": "gzip"}),
    **{f"limit={each}": Row("GET", f"{SEND}?limit={each}", 400, field="limit") for each in ("0", "-1", "101", "abc")},
    "wait=21": Row("POST", "/queues/orders/leases", 400, field="wait", json={"wait": 21}),
    **{
        f"visibility={each}": Row("POST", "/queues/orders/leases", 400, field="visibility", json={"visibility": each})
        for each in (-1, 43_201, True)
    },
    "a forged cursor": Row("GET", f"{SEND}?cursor=forged", 400, field="cursor"),
    "0 messages": Row("POST", SEND, 400, field="messages", json={"messages": []}),
    "101 messages": Row("POST", SEND, 400, field="messages", json={"messages": [{"body": "x"}] * 101}),
    "an unknown field": Row(
        "POST", SEND, 400, field="messages[0].prority", json={"messages": [{"body": "x", "prority": 1}]}
    ),
    "no token": Row("POST", SEND, 401, json=ONE, headers={"Authorization": ""}),
    "garbage": Row("POST", SEND, 401, json=ONE, headers={"Authorization": "Bearer garbage"}),
    "a token in the URL": Row("POST", f"{SEND}?token={ADMIN}", 400, "token-in-url", json=ONE),
    "a foreign host": Row("POST", SEND, 400, "host-not-allowed", json=ONE, headers={"Host": "evil.example"}),
    "a method that does not exist": Row("PATCH", "/health", 405),
    "a route that does not exist": Row("GET", "/nothing", 404),
    "an empty key": Row("POST", SEND, 400, json=ONE, headers={"Idempotency-Key": ""}),
    "a key of 129 characters": Row("POST", SEND, 400, json=ONE, headers={"Idempotency-Key": "x" * 129}),
    **{
        f"queue {each or 'without a name'}": Row("PUT", f"/queues/{each}", 400, json={})
        for each in ("..%2fetc", "a.b", "q" * 81, ".fifo", "")
    },
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_what_a_caller_gets_wrong_is_a_problem_and_changes_nothing(api: Api, row: Row) -> None:
    queue = api.backend.create_queue(QueueSpec("orders"))
    queue.send([OutgoingMessage("before")])

    answer = api.client.request(row.method, row.path, content=row.body, json=row.json, headers=row.headers)

    if row.path.startswith("/queues/") and row.method == "PUT":
        assert answer.status_code in (400, 404, 405)
    else:
        assert answer.status_code == row.status
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(problem) >= {"type", "title", "status", "detail", "remedy", "request_id"}
    assert row.slug is None or problem["type"] == f"/errors/{row.slug}"
    assert row.field is None or problem["field"] == row.field
    assert [(each.body, each.receive_count) for each in queue.peek()] == [(b"before", 0)]
    assert api.backend.queues() == ["orders"]


@contextmanager
def login(api: Api, token: str = ADMIN) -> Iterator[httpx.Client]:
    """Return a browser that has logged in."""
    with httpx.Client(base_url=api.client.base_url, verify=False) as browser:
        answer = browser.post("/login", data={"token": token})
        assert answer.status_code == 303, answer.text
        yield browser


def csrf(browser: httpx.Client) -> str:
    found = re.search(r'name="csrf-token" content="([0-9a-f]+)"', browser.get("/ui/queues").text)
    assert found is not None
    return found[1]


def test_a_session_needs_its_proof_and_its_own_origin_for_every_change(api: Api) -> None:
    queue = api.backend.create_queue(QueueSpec("orders"))
    with login(api) as browser:
        proof = {"X-CSRF-Token": csrf(browser)}
        attempts = {
            "without the proof": browser.post(SEND, json=ONE),
            "a wrong proof": browser.post(SEND, json=ONE, headers={"X-CSRF-Token": "0" * 64}),
            "a foreign origin": browser.post(SEND, json=ONE, headers={**proof, "Origin": "https://evil.example"}),
        }
        own = str(browser.base_url).rstrip("/")
        allowed = browser.post(SEND, json=ONE, headers={**proof, "Origin": own})

    for answer in attempts.values():
        assert (answer.status_code, answer.json()["type"]) == (403, "/errors/foreign-form")
    assert allowed.status_code == 200
    assert queue.stats().visible == 1


def test_a_read_token_and_a_read_only_session_change_nothing(serve: Serve) -> None:
    api = serve()
    queue = api.backend.create_queue(QueueSpec("orders"))
    token = api.token("read")
    with api.as_caller(token) as caller:
        as_bearer = caller.post(SEND, json=ONE)
    with login(api, token) as browser:
        as_reader = browser.post(SEND, json=ONE, headers={"X-CSRF-Token": csrf(browser)})
    locked = serve(read_only=True)
    with login(locked) as browser:
        when_locked = browser.post(SEND, json=ONE, headers={"X-CSRF-Token": csrf(browser)})

    assert (as_bearer.status_code, as_reader.status_code) == (403, 403)
    assert (when_locked.status_code, when_locked.json()["type"]) == (403, "/errors/read-only")
    assert queue.stats().visible == 0


def test_ten_wrong_tokens_in_a_minute_are_429(api: Api) -> None:
    with httpx.Client(base_url=api.client.base_url, verify=False) as browser:
        answers = [browser.post("/login", data={"token": "wrong"}).status_code for _ in range(11)]
        late = browser.post("/login", data={"token": ADMIN})

    assert answers == [401] * 10 + [429]
    assert late.status_code == 429
    assert int(late.headers["Retry-After"]) >= 1


STRANGE = "<script>alert(1)</script>\u202e\x1b[31m"


def test_strange_text_is_stored_as_it_is_and_escaped_in_pages(api: Api) -> None:
    api.backend.create_queue(QueueSpec("orders"))
    body = {"messages": [{"body": STRANGE.replace("\x1b", ""), "attributes": {"note": "<script>\u202e"}}]}

    sent = api.client.post(SEND, json=body)
    [shown] = api.client.get(f"{SEND}?payload=1").json()["items"]
    with login(api) as browser:
        page = browser.get("/ui/queues").text

    assert sent.json()["results"][0]["ok"] is True
    assert shown["body"] == body["messages"][0]["body"]
    assert shown["attributes"] == {"note": "<script>\u202e"}
    assert "<script>alert" not in page
