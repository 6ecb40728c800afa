"""The HTTP API: one server for all cases, with callers of every kind."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from tests.faults.bad_input.cases import Answer, State, messages, stored, without_messages
from tests.http.api import ADMIN, Api, serving
from tests.waiting import eventually

from postroad.jobs import Jobs
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.tasks import TaskProducer

SEND = "/queues/orders/messages"
ONE = {"messages": [{"body": "one"}]}


class Http:
    """Requests to a server with a queue, tasks, jobs and three agents.

    The input is `{method, path, json | body, headers, as, csrf, cursor_of}`; `as` names the caller, and `cursor_of` a
    list whose cursor is put into the path.
    """

    path = SEND
    caller = "admin"

    def __init__(self, folder: Path) -> None:
        self._open = ExitStack()
        self.api = self._open.enter_context(serving(f"sqlite:///{folder}/data.db"))
        locked = self._open.enter_context(serving(f"sqlite:///{folder}/data.db", read_only=True))
        self._files = [folder / "data.db.tokens.json"]
        _furnish(self.api)
        tokens = self._tokens(self.api)
        self._callers = {name: self._open.enter_context(self.api.as_caller(token)) for name, token in tokens.items()}
        self._callers["admin"] = self.api.client
        for name, api, token in (
            ("session", self.api, ADMIN),
            ("read-session", self.api, str(tokens["read"])),
            ("read-only-session", locked, ADMIN),
        ):
            self._callers[name] = _session(api, token)
            self._open.callback(self._callers[name].close)

    def give(self, input: Any) -> Answer:
        """Send the request that the input describes."""
        caller = self._callers[input.get("as", self.caller)]
        headers = dict(input.get("headers", {}))
        if input.get("csrf"):
            headers["X-CSRF-Token"] = _proof(caller)
        path = input.get("path", self.path)
        if "cursor_of" in input:
            path = path.format(cursor=caller.get(input["cursor_of"]).json()["next_cursor"])
        body = input.get("body")
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        answer = caller.request(
            input.get("method", "POST"), path, content=body, json=input.get("json"), headers=headers
        )
        return Answer("status", answer.status_code, _told(answer))

    def state(self) -> State:
        """Return the store and the files of tokens."""
        return stored(self.api.backend) | {file.name: file.read_bytes() for file in self._files}

    def letters(self) -> tuple[State, dict[str, list[Any]]]:
        """Return the rows that no dead letter changes, and what each queue holds."""
        return without_messages(self.state()), messages(self.api.backend)

    def works(self) -> None:
        """Send a message, lease it and ack it."""
        sent = self.api.client.post("/queues/others/messages", json=ONE)
        assert sent.json()["results"][0]["ok"] is True, sent.text
        [delivery] = self.api.client.post("/queues/others/leases", json={}).json()["deliveries"]
        acked = self.api.client.post("/queues/others/acks", json={"receipts": [delivery["receipt"]]})
        assert acked.json()["results"][0]["ok"] is True, acked.text

    def close(self) -> None:
        """Stop the servers."""
        self._open.close()

    def _tokens(self, api: Api) -> dict[str, str | None]:
        tokens: dict[str, str | None] = {name: api.token(name) for name in ("read", "publish", "operate")}
        tokens["revoked"] = api.token("admin", "gone")
        assert api.client.delete("/tokens/gone").status_code == 204
        tokens["expired"] = _expired(api)
        agents = api.backend.agents()
        tokens |= {name: agents.register(name).token for name in ("ann", "bob", "cat")}
        agents.subscribe("cat", "ann")
        return tokens | {"none": None, "garbage": "garbage"}


class Agents(Http):
    """Requests of agents, by default of `ann`, who publishes and to whom `cat` listens."""

    path = "/events"
    caller = "ann"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        event = {"eventType": "counted", "data": {"n": 1}}
        self._callers["ann"].post("/events", json=event, headers={"Idempotency-Key": "event-1"})
        super().works()
        self.works()

    def works(self) -> None:
        """Publish an event and let its listener lease and ack it."""
        published = self._callers["ann"].post("/events", json={"eventType": "counted", "data": {}})
        assert published.status_code == 202, published.text
        runner = self.api.backend.agents().runner(worker="test")
        while runner.run_once().read:
            pass
        runner.close()
        cat = self._callers["cat"]
        deliveries = cat.post("/agents/cat/leases", json={}).json()["deliveries"]
        assert published.json()["eventId"] in [each["eventId"] for each in deliveries]
        acked = cat.post("/agents/cat/acks", json={"receipts": [each["receipt"] for each in deliveries]})
        assert all(each["ok"] for each in acked.json()["results"]), acked.text


def _furnish(api: Api) -> None:
    backend, client = api.backend, api.client
    backend.create_queue(QueueSpec("orders-dead"))
    backend.create_queue(QueueSpec("orders", dead_letter="orders-dead")).send([OutgoingMessage("before")])
    backend.create_queue(QueueSpec("small", max_message_bytes=1_024))
    for number in range(3):
        backend.create_queue(QueueSpec("others")).send([OutgoingMessage(str(number))])
    deliveries = client.post("/queues/others/leases", json={"max_messages": 10}).json()["deliveries"]
    client.post("/queues/others/acks", json={"receipts": [each["receipt"] for each in deliveries]})
    client.post("/queues/small/messages", json=ONE, headers={"Idempotency-Key": "used-before"})
    TaskProducer(backend).submit("catalogue-chore", {"store": 1}, request_id="req-1")
    jobs = Jobs(backend)
    jobs.submit_job([{"taskId": "a", "name": "catalogue-chore"}], job_id="cancelled")
    jobs.cancel("cancelled")
    jobs.submit_job([{"taskId": "a", "name": "catalogue-chore"}], job_id="open")


def _expired(api: Api) -> str:
    made = api.client.post("/tokens", json={"name": "old", "scope": "admin", "expires_in": 1}).json()["token"]
    with api.as_caller(made) as caller:
        eventually(lambda: caller.get("/queues").status_code == 401)
    return str(made)


def _session(api: Api, token: str) -> httpx.Client:
    browser = api.as_caller(None)
    assert browser.post("/login", data={"token": token}).status_code == 303
    return browser


def _proof(browser: httpx.Client) -> str:
    found = re.search(r'name="csrf-token" content="([0-9a-f]+)"', browser.get("/ui/queues").text)
    assert found is not None
    return found[1]


def _told(answer: httpx.Response) -> str:
    """Return the text of an answer, after a look at the form that every problem has."""
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert set(problem) >= {"type", "title", "status", "detail", "remedy", "request_id"}
        assert problem["status"] == answer.status_code
    return answer.text
