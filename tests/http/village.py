"""A server with agents, for the tests of their routes."""

from __future__ import annotations

from typing import Any

import httpx
from tests.http.api import Api

from postroad.agents import Agents, Runner

JSON = {"Content-Type": "application/json"}


class Village:
    """A server with three agents: `cat` may listen to `ann`, and does."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.agents: Agents = api.backend.agents()
        self.runner: Runner = self.agents.runner(worker="test")
        self.tokens = {name: self.agents.register(name).token for name in ("ann", "bob", "cat")}
        self.clients = {name: api.as_caller(token) for name, token in self.tokens.items()}
        self.agents.subscribe("cat", "ann")

    @property
    def ann(self) -> httpx.Client:
        return self.clients["ann"]

    @property
    def cat(self) -> httpx.Client:
        return self.clients["cat"]

    def move(self) -> None:
        while self.runner.run_once().read:
            pass

    def publish(self, *numbers: int) -> None:
        for n in numbers:
            answer = self.ann.post("/events", json={"eventType": "counted", "data": {"n": n}})
            assert answer.status_code == 202, answer.text
        self.move()

    def lease(self, **options: Any) -> list[dict[str, Any]]:
        answer = self.cat.post("/agents/cat/leases", json=options)
        assert answer.status_code == 200, answer.text
        deliveries: list[dict[str, Any]] = answer.json()["deliveries"]
        return deliveries


def slug(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).removeprefix("/errors/")
