"""Who may see and change what: login, sessions, forms and the audit, over real HTTP and in the browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect
from tests.dashboard.conftest import NewContext
from tests.dashboard.server import PAGES, Served, furnish, served

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

pytestmark = pytest.mark.slow


@contextmanager
def session(server: Served, token: str | None = None) -> Iterator[httpx.Client]:
    """A client that has logged in and keeps the cookie."""
    with httpx.Client(base_url=server.url, timeout=30, verify=False) as client:
        answer = client.post("/login", data={"token": token or server.ready["token"]})
        assert answer.status_code == 303, answer.text
        yield client


def csrf(client: httpx.Client) -> str:
    found = re.search(r'<meta name="csrf-token" content="([0-9a-f]+)">', client.get("/ui/queues").text)
    assert found is not None
    return found[1]


def test_the_link_logs_in_and_its_token_stays_in_no_address(new_context: NewContext, server: Served) -> None:
    page = new_context().new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))

    page.goto(server.ready["login_url"])
    page.wait_for_url(f"{server.url}/ui/")

    assert not any(server.ready["token"] in url for url in requested)
    assert page.evaluate("location.hash") == ""
    cookie = next(each for each in page.context.cookies() if each["name"] == "postroad_session")
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    page.go_back()
    assert server.ready["token"] not in page.url


def test_the_link_logs_in_from_a_window_that_shows_the_login(new_context: NewContext, server: Served) -> None:
    page = new_context().new_page()
    page.goto(f"{server.url}/login")

    page.goto(server.ready["login_url"])

    page.wait_for_url(f"{server.url}/ui/")


def test_the_cookie_is_for_this_site_and_twelve_hours(server: Served) -> None:
    answer = httpx.post(f"{server.url}/login", data={"token": server.ready["token"]}, verify=False)

    assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/")
    parts = set(answer.headers["Set-Cookie"].split("; ")[1:])
    assert parts == {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"}


def test_a_wrong_token_is_refused_and_after_ten_nobody_from_there_may_try(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        login = f"{server.url}/login"
        answers = [httpx.post(login, data={"token": "pr_wrong"}, verify=False) for _ in range(10)]
        last = httpx.post(login, data={"token": server.ready["token"]}, verify=False)

        assert {answer.status_code for answer in answers} == {401}
        assert "he token is unknown" in answers[0].text
        assert last.status_code == 429
        assert 0 < int(last.headers["Retry-After"]) <= 60
        assert "<h1>" in last.text


def test_without_a_session_nothing_but_the_login_is_shown(server: Served) -> None:
    with httpx.Client(base_url=server.url, verify=False) as nobody:
        for path in (*PAGES, "/", "/logout"):
            answer = nobody.get(path)
            assert (answer.status_code, answer.headers["Location"]) == (303, "/login"), path
        assert nobody.get("/overview").status_code == 401
        open_to_all = ("/health", "/ready", "/login", "/errors/forbidden", "/static/style.css", "/static/script.js")
        assert {nobody.get(path).status_code for path in open_to_all} == {200}


def test_every_page_and_asset_has_the_headers_and_no_inline_script_or_style(server: Served) -> None:
    with session(server) as client:
        for path in (*PAGES, "/login", "/logout", "/ui/queues/none", "/static/style.css"):
            answer = client.get(path)
            assert answer.headers["Content-Security-Policy"] == CSP, path
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert answer.headers["Cache-Control"] == "no-store"
            assert not re.search(r"<style|<script(?! src=)| style=| on[a-z]+=", answer.text), path


def test_sec09_a_form_needs_the_token_of_its_session_and_our_own_origin(server: Served) -> None:
    server.make_queue("guarded")
    path, fields = "/ui/queues/guarded/messages", {"body": "hello"}
    with session(server) as client, session(server) as other:
        proof = {"csrf_token": csrf(client)}
        refused = [
            client.post(path, data=fields),
            client.post(path, data=fields | {"csrf_token": "0" * 64}),
            client.post(path, data=fields | {"csrf_token": csrf(other)}),
            client.post(path, data=fields | proof, headers={"Origin": "https://evil.example"}),
            client.post(path, data=fields | proof, headers={"Origin": "null"}),
            client.put("/queues/guarded-2", json={}),
        ]
        accepted = [
            client.post(path, data=fields | proof),
            client.post(path, data=fields | proof, headers={"Origin": server.url}),
            client.put("/queues/guarded-2", json={}, headers={"X-CSRF-Token": csrf(client)}),
        ]

    assert [answer.status_code for answer in refused] == [403] * 6
    assert [answer.status_code for answer in accepted] == [303, 303, 201]
    assert server.client.get("/queues/guarded").json()["visible"] == 2
    bearer = {"Authorization": f"Bearer {server.ready['token']}", "Origin": "https://elsewhere.example"}
    message = {"messages": [{"body": "x"}]}
    answer = httpx.post(f"{server.url}/queues/guarded/messages", json=message, headers=bearer, verify=False)
    assert answer.status_code == 200


@pytest.mark.parametrize("scope", ["read", "publish", "operate"])
def test_a_page_shows_only_the_forms_that_the_scope_allows(server: Served, scope: str) -> None:
    server.make_queue(f"{scope}-dlq")
    server.make_queue(f"{scope}-forms", dead_letter=f"{scope}-dlq")
    server.fail(f"{scope}-forms", 1, "ValueError: no")
    with session(server, server.token(scope)) as client:
        pages = "".join(client.get(path).text for path in PAGES if path != "/ui/audit")

        assert ('data-action="send"' in pages) is (scope != "read")
        assert ('data-action="redrive"' in pages) is (scope == "operate")
        assert 'data-action="purge"' not in pages
        assert ('method="post"' in pages) is (scope != "read")
        refused = client.post("/ui/queues/orders/purge", data={"csrf_token": csrf(client), "confirm": "orders"})
        assert refused.status_code == 403


def test_sec09_a_read_token_changes_nothing_and_the_refusal_is_recorded(server: Served) -> None:
    token = server.token("read")
    with session(server, token) as client:
        answer = client.post("/queues/orders/purge", json={"confirm": "orders", "reason": "x"})
        assert answer.status_code == 403
        answer = client.put("/queues/made-by-reader", json={}, headers={"X-CSRF-Token": csrf(client)})

    assert (answer.status_code, answer.json()["type"]) == (403, "/errors/read-only")
    record = server.audit()[0]
    assert (record["action"], record["target"]) == ("queue.create.refused", "made-by-reader")
    assert record["actor"].startswith("read-")
    assert record["detail"]["request_id"] == answer.json()["request_id"]


def test_a_read_only_server_shows_no_form_and_lets_people_log_out(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        furnish(server)
    with served(tmp_path, "--read-only") as server, session(server) as client:
        pages = "".join(client.get(path).text for path in PAGES)
        proof = {"csrf_token": csrf(client)}
        refused = client.post("/ui/queues/orders/messages", data=proof | {"body": "x"})

        assert 'method="post"' not in pages
        assert "read-only" in pages
        assert refused.status_code == 403
        assert server.audit()[0]["action"] == "queue.send.refused"
        assert client.post("/logout", data=proof).status_code == 303


def test_tokens_and_changes_by_the_api_are_recorded_once_with_the_name_of_the_token(server: Served) -> None:
    name = "robot"
    server.client.post("/tokens", json={"name": name, "scope": "admin"})
    server.client.delete(f"/tokens/{name}")
    server.make_queue("recorded")
    same = server.client.put("/queues/recorded", json={"visibility": 7})
    server.client.delete("/queues/recorded", params={"confirm": "wrong"})
    server.client.delete("/queues/recorded", params={"confirm": "recorded"}, headers={"X-Request-Id": "my-id"})

    assert same.status_code == 409
    found = [(r["action"], r["target"]) for r in server.audit() if r["target"] in (name, "recorded")]
    assert found == [
        ("queue.delete", "recorded"),
        ("queue.create", "recorded"),
        ("token.revoke", name),
        ("token.create", name),
    ]
    newest = next(record for record in server.audit() if record["target"] == "recorded")
    assert (newest["actor"], newest["detail"]) == ("admin", {"request_id": "my-id"})


def test_a_revoked_token_ends_its_sessions_within_a_second(new_context: NewContext, server: Served) -> None:
    token = str(server.client.post("/tokens", json={"name": "gone", "scope": "read"}).json()["token"])
    page = new_context().new_page()
    page.goto(f"{server.url}/login#{token}")
    page.wait_for_url(f"{server.url}/ui/")
    server.client.delete("/tokens/gone")
    page.wait_for_timeout(1_000)

    page.goto(f"{server.url}/ui/queues")

    expect(page.locator("form[data-login]")).to_be_visible()
