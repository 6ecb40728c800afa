"""Tokens: who may do what."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from tests.http.api import ADMIN, Api

from postroad.queues import QueueSpec

_SCOPES = ["read", "publish", "operate", "admin"]
_ROUTES: list[tuple[str, str, Any, str]] = [
    ("GET", "/status", None, "read"),
    ("GET", "/queues", None, "read"),
    ("GET", "/queues/orders", None, "read"),
    ("GET", "/queues/orders/messages", None, "read"),
    ("GET", "/queues/orders/groups", None, "read"),
    ("GET", "/schema", None, "read"),
    ("GET", "/schema/openapi.json", None, "read"),
    ("POST", "/queues/orders/messages", {"messages": [{"body": "x"}]}, "publish"),
    ("POST", "/queues/orders/leases", {}, "publish"),
    ("POST", "/queues/orders/acks", {"receipts": ["r"]}, "publish"),
    ("POST", "/queues/orders/extensions", {"receipts": ["r"], "seconds": 1}, "publish"),
    ("POST", "/queues/orders/releases", {"receipts": ["r"]}, "publish"),
    ("PUT", "/queues/bills", {}, "admin"),
    ("POST", "/queues/orders/purge", {"confirm": "orders", "reason": "r"}, "admin"),
    ("DELETE", "/queues/orders?confirm=orders", None, "admin"),
    ("POST", "/tokens", {"name": "new", "scope": "read"}, "admin"),
    ("GET", "/tokens", None, "admin"),
    ("DELETE", "/tokens/nobody", None, "admin"),
]


def test_each_route_opens_to_its_scope_and_those_above_and_to_nobody_else(api: Api) -> None:
    api.backend.create_queue(QueueSpec("orders"))
    tokens = {scope: api.token(scope) for scope in _SCOPES}

    opened = {}
    for method, path, body, needed in _ROUTES:
        too_little = _SCOPES[: _SCOPES.index(needed)]
        for scope in [None, "garbage", *too_little, needed]:
            token = None if scope is None else tokens.get(scope, "pr_garbage")
            with api.as_caller(token) as caller:
                opened[method, path, scope] = caller.request(method, path, json=body).status_code
        expected = {None: 401, "garbage": 401} | dict.fromkeys(too_little, 403)
        assert {scope: opened[method, path, scope] for scope in expected} == expected, (method, path)
        assert opened[method, path, needed] not in (401, 403), (method, path)


@pytest.mark.parametrize("path", ["/health", "/ready", "/errors/unauthorized", "/static/style.css"])
def test_sec07_a_few_routes_need_no_token(api: Api, path: str) -> None:
    with api.as_caller(None) as anybody:
        assert anybody.get(path).status_code == 200


@pytest.mark.parametrize("header", ["", "Bearer", f"Basic {ADMIN}", ADMIN, f"Bearer {ADMIN}x"])
def test_no_other_authorization_than_the_right_bearer_opens(api: Api, header: str) -> None:
    with api.as_caller(None) as anybody:
        answer = anybody.get("/status", headers={"Authorization": header})

    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["type"] == "/errors/unauthorized"


def test_sec07_a_new_token_opens_at_once_and_a_revoked_one_opens_nothing_within_a_second(api: Api) -> None:
    token = api.token("read", "reader")
    with api.as_caller(token) as reader:
        before = reader.get("/status").status_code
        revoked = api.client.delete("/tokens/reader")
        deadline = time.monotonic() + 1
        while (after := reader.get("/status").status_code) == 200 and time.monotonic() < deadline:
            pass

    assert (before, revoked.status_code, after) == (200, 204, 401)
    assert api.client.delete("/tokens/reader").json()["type"] == "/errors/token-not-found"


def test_sec07_an_expired_token_opens_nothing(api: Api) -> None:
    token = api.client.post("/tokens", json={"name": "brief", "scope": "read", "expires_in": 0.3}).json()["token"]
    with api.as_caller(token) as brief:
        deadline = time.monotonic() + 10
        while (status := brief.get("/status").status_code) == 200 and time.monotonic() < deadline:
            pass

    assert status == 401


def test_sec07_a_secret_is_shown_once_and_only_its_hash_is_kept(api: Api, tmp_path: Path) -> None:
    made = api.client.post("/tokens", json={"name": "reader", "scope": "read"})

    listed = api.client.get("/tokens")
    file = tmp_path / "data.db.tokens.json"
    assert made.status_code == 201
    assert made.json()["token"].startswith("pr_")
    assert listed.json() == {
        "items": [{key: value for key, value in made.json().items() if key != "token"}],
        "next_cursor": None,
    }
    assert made.json()["token"] not in file.read_text() + listed.text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_name_is_taken_once(api: Api) -> None:
    api.token("read", "reader")

    again = api.client.post("/tokens", json={"name": "reader", "scope": "admin"})
    admin = api.client.post("/tokens", json={"name": "admin", "scope": "admin"})

    assert (again.status_code, admin.status_code) == (409, 409)
    assert again.json()["type"] == "/errors/token-exists"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "", "scope": "read"}, "name"),
        ({"name": "a/b", "scope": "read"}, "name"),
        ({"name": "x" * 65, "scope": "read"}, "name"),
        ({"name": "a\n", "scope": "read"}, "name"),
        ({"name": "a", "scope": "root"}, "scope"),
        ({"name": "a"}, "scope"),
        ({"name": "a", "scope": "read", "expires_in": 0}, "expires_in"),
        ({"name": "a", "scope": "read", "expires_in": "1h"}, "expires_in"),
        ({"name": "a", "scope": "read", "secret": "mine"}, "secret"),
    ],
)
def test_a_token_that_cannot_be_made_is_refused_by_its_field(api: Api, body: dict[str, Any], field: str) -> None:
    answer = api.client.post("/tokens", json=body)

    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert api.client.get("/tokens").json()["items"] == []


def test_a_repeat_of_making_a_token_shows_a_fresh_secret_and_voids_the_former(api: Api, tmp_path: Path) -> None:
    body, key = {"name": "reader", "scope": "read"}, {"Idempotency-Key": "k1"}

    first = api.client.post("/tokens", json=body, headers=key)
    again = api.client.post("/tokens", json=body, headers=key)

    with api.as_caller(first.json()["token"]) as former, api.as_caller(again.json()["token"]) as fresh:
        opened = fresh.get("/status").status_code, former.get("/status").status_code
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.headers["idempotency-replayed"] == "true"
    assert first.json()["token"] != again.json()["token"]
    assert opened == (200, 401)
    stored = [item.value for item in api.backend.items().scan("default/").items]
    assert stored
    assert not [value for value in stored if first.json()["token"].encode() in value]


def test_the_token_file_of_another_process_counts(api: Api, tmp_path: Path) -> None:
    from postroad.http.tokens import TokenFile

    _, secret = TokenFile(tmp_path / "data.db.tokens.json").create("cli", "read")

    with api.as_caller(secret) as caller:
        assert caller.get("/status").status_code == 200
    assert json.loads((tmp_path / "data.db.tokens.json").read_text())["tokens"][0]["name"] == "cli"
