"""Who may do what: every route of the description with every identity that must not use it."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.faults.filled_server import ENDLESS, KNOWN, api as api
from tests.http.api import Api

pytestmark = pytest.mark.slow

ABSENT = re.compile("/(demo|schedules|operations|notifications|why|outbox)(/|$)")
"""Routes to things that this server does not have, which are 404 for an operator too."""


class Call(NamedTuple):
    """A request that an operator may make."""

    route: str
    scope: str
    method: str
    path: str
    body: Any

    def send(self, client: httpx.Client) -> httpx.Response:
        return client.request(self.method, self.path, json=self.body)


def _calls(api: Api) -> Iterator[Call]:
    """Yield one well-formed request for each route of the description."""
    for path, item in api.client.get("/schema/openapi.json").json()["paths"].items():
        for method, operation in item.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            filled = re.sub(r"{(\w+)}", lambda found: KNOWN.get(found[1], "x"), path)
            if (method, path) == ("delete", "/queues/{queue}"):
                filled += "?confirm=orders"
            if "wait" in (body or ()):
                body["wait"] = 0
            if path == "/events":
                body["agentId"] = "ann"
            if path == "/events/batch":
                body["events"] = [{**each, "agentId": "ann"} for each in body["events"]]
            yield Call(f"{method.upper()} {path}", operation["x-scope"], method, filled, body)


def _refused(api: Api, token: str | None, calls: list[Call], statuses: set[int], folder: Path) -> None:
    """Fail if one of the calls is answered otherwise, or changes anything."""
    before = _stored(folder)
    with api.as_caller(token) as caller:
        answers = {call.route: call.send(caller) for call in calls}

    batch = answers.pop("POST /events/batch", None)
    opened = {route: answer.status_code for route, answer in answers.items() if answer.status_code not in statuses}
    assert opened == {}
    if batch is not None and batch.status_code not in statuses:
        # An agent's batch is answered entry by entry.
        assert {entry["error"]["type"] for entry in batch.json()["results"]} == {"/errors/identity-mismatch"}
    assert _stored(folder) == before


def _stored(folder: Path) -> list[str]:
    """Return all that is stored: the rows of both databases, read from copies, and the tokens."""
    copies = folder / "copies"
    copies.mkdir(exist_ok=True)
    found = [(folder / "data.db.tokens.json").read_text()]
    for name in ("data.db", "app.db"):
        for file in folder.glob(f"{name}*"):
            if file.name in (name, f"{name}-wal"):
                shutil.copy(file, copies / file.name)
        with contextlib.closing(sqlite3.connect(copies / name)) as connection:
            found += list(connection.iterdump())
        for file in copies.iterdir():
            file.unlink()
    return found


@pytest.fixture
def calls(api: Api) -> list[Call]:
    return [call for call in _calls(api) if call.scope != "open"]


def test_sec08_without_a_token_no_route_is_open(api: Api, calls: list[Call], tmp_path: Path) -> None:
    _refused(api, None, calls, {401}, tmp_path)


def test_sec08_a_revoked_token_opens_no_route(api: Api, calls: list[Call], tmp_path: Path) -> None:
    token = api.token("admin", "former")
    assert api.client.delete("/tokens/former").status_code == 204

    _refused(api, token, calls, {401}, tmp_path)


def test_sec08_a_revoked_token_of_the_agent_itself_opens_no_route(api: Api, calls: list[Call], tmp_path: Path) -> None:
    agents = api.backend.agents()
    token = agents.rotate_token("ann", overlap=0)
    agents.rotate_token("ann", overlap=0)

    _refused(api, token, calls, {401}, tmp_path)


def test_sec08_another_agents_token_opens_nothing_of_an_agent(api: Api, calls: list[Call], tmp_path: Path) -> None:
    token = api.backend.agents().register("eve").token

    _refused(api, token, calls, {403, 404}, tmp_path)
    with api.as_caller(token) as eve:
        foreign = [call for call in calls if "/agents/{" in call.route]
        assert {call.send(eve).status_code for call in foreign} == {404}
        assert eve.get("/agents/eve").status_code == 200


def test_sec08_a_read_token_changes_nothing(api: Api, calls: list[Call], tmp_path: Path) -> None:
    changes = [call for call in calls if call.method != "get"]

    _refused(api, api.token("read", "watcher"), changes, {403}, tmp_path)


def test_sec08_the_same_requests_are_open_to_an_operator(api: Api, calls: list[Call], tmp_path: Path) -> None:
    before = _stored(tmp_path)
    tried = [call for call in calls if not (ABSENT.match(call.path) or call.route.removeprefix("GET ") in ENDLESS)]
    # What deletes comes last, so that the others find something.
    answers = {call.route: call.send(api.client) for call in sorted(tried, key=lambda call: call.method == "delete")}

    assert {route: answer.text for route, answer in answers.items() if answer.status_code in (401, 403, 404)} == {}
    assert _stored(tmp_path) != before
