"""A server whose store holds one of everything that a path of the API can name."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.http.api import Api, serving

from postroad.events import DomainEvent
from postroad.outbox import Outbox
from postroad.queues import OutgoingMessage, QueueSpec

KNOWN = {
    "queue": "orders",
    "topic": "news",
    "agent": "ann",
    "producer": "ann",
    "listener": "cat",
    "job": "j",
    "task": "j.t",
    "name": "reader",
    "slug": "queue-not-found",
}
"""What exists, by its name in paths."""
ENDLESS = {"/live", "/agents/{agent}/stream"}
"""Streams, whose answers never end."""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.chdir(tmp_path)
    dsn = f"sqlite:///{tmp_path}/app.db"
    with Outbox.open(dsn) as outbox, contextlib.closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        outbox.init()
        with connection:
            outbox.add(connection, DomainEvent("orders.placed", key={"orderId": "o-1"}, payload={}))
    with serving(f"sqlite:///{tmp_path}/data.db", outbox_dsn=dsn) as served:
        _fill(served)
        yield served


def _fill(api: Api) -> None:
    api.backend.create_queue(QueueSpec("dead"))
    api.backend.create_queue(QueueSpec("orders", dead_letter="dead"))
    api.backend.queue("orders").send([OutgoingMessage(body=str(number)) for number in range(30)])
    api.backend.topic("news").subscribe(api.backend.queue("orders"))
    agents = api.backend.agents()
    for agent_id in ("ann", "cat"):
        agents.register(agent_id)
    agents.subscribe("cat", "ann")
    api.context.work.jobs.submit_job([{"taskId": "t", "name": "x"}], job_id="j")
    api.token("read", "reader")
