"""What sessions and read tokens may not do, and how strange text is stored and shown; tests/faults has the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from tests.http.api import ADMIN, Api, Serve

from postroad.queues import QueueSpec

SEND = "/queues/orders/messages"
ONE = {"messages": [{"body": "x"}]}


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


def test_sec09_a_session_needs_its_proof_and_its_own_origin_for_every_change(api: Api) -> None:
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


def test_sec09_strange_text_is_stored_as_it_is_and_escaped_in_pages(api: Api) -> None:
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
