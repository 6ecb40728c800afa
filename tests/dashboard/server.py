"""A real `postroad up` with a little of everything to look at."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.up.up import start

PAGES = {
    "/ui/": "overview",
    "/ui/queues": "queues",
    "/ui/queues/orders": "queue",
    "/ui/dead-letters": "dead-letters",
    "/ui/outbox": "outbox",
    "/ui/audit": "audit",
    "/ui/health": "health",
}
"""The pages of this file's tests, and their names."""


@dataclass(frozen=True, slots=True)
class Served:
    """A running server, and a client with its admin token."""

    ready: dict[str, Any]
    client: httpx.Client

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    def token(self, scope: str) -> str:
        """A fresh token of this scope."""
        name = f"{scope}-{len(self.client.get('/tokens', params={'limit': 100}).json()['items'])}"
        return str(self.client.post("/tokens", json={"name": name, "scope": scope}).json()["token"])

    def send(self, queue: str, *bodies: str) -> None:
        messages = [{"body": body, "attributes": {"EventType": "order.placed"}} for body in bodies]
        assert self.client.post(f"/queues/{queue}/messages", json={"messages": messages}).status_code == 200

    def sent(self) -> int:
        """Return how many messages all queues were sent, as the engine counts them."""
        metrics = self.client.get("/metrics").text
        return sum(
            int(float(n)) for n in re.findall(r'^postroad_messages_total\{.*outcome="sent".*\} (\S+)$', metrics, re.M)
        )

    def fail(self, queue: str, count: int, error: str) -> None:
        """Send messages and let them die of the error."""
        self.send(queue, *(f"doomed {number}" for number in range(count)))
        leased = self.client.post(f"/queues/{queue}/leases", json={"max_messages": count}).json()["deliveries"]
        body = {"receipts": [one["receipt"] for one in leased], "reason": "handler_failed", "error": error}
        assert len(leased) == count
        assert self.client.post(f"/queues/{queue}/rejections", json=body).status_code == 200

    def make_queue(self, name: str, **settings: Any) -> None:
        assert self.client.put(f"/queues/{name}", json=settings).status_code == 201

    def audit(self) -> list[dict[str, Any]]:
        """The newest records of the audit."""
        return list(self.client.get("/audit", params={"limit": 100}).json()["items"])


@contextmanager
def served(folder: Path, *flags: str, **env: str) -> Iterator[Served]:
    """Start one; it is gone afterwards."""
    process = start(folder, *flags, **env)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "log").read_text()
        ready = json.loads(line)
        headers = {"Authorization": f"Bearer {ready['token']}"}
        with httpx.Client(base_url=ready["url"], headers=headers, timeout=30, verify=False) as client:
            yield Served(ready, client)
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate(timeout=120)


def furnish(server: Served) -> None:
    """Make queues with messages, and dead letters in two groups."""
    server.make_queue("orders-dlq")
    server.make_queue("orders", dead_letter="orders-dlq", max_receives=3)
    server.make_queue("ledger.fifo", content_dedup=True)
    server.fail("orders", 4, "ValueError: the amount is negative [ledger.py:book]")
    server.fail("orders", 2, "TimeoutError: no answer within 30 s <b>now</b> [warehouse.py:reserve]")
    server.send("orders", *(f"order {number}" for number in range(5)))
