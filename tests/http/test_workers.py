"""`GET /workers`: the worker processes, and what each runs."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from tests.http.api import Api
from tests.waiting import eventually

import postroad
from postroad.tasks import TaskProducer, TaskRegistry, TaskWorker, presence
from postroad.testing import FakeClock

FIELDS = ["worker_id", "host", "pid", "queues", "concurrency", "seen_at", "running"]


def wait_for(path: str) -> None:
    """A task that runs until the file exists."""
    eventually(Path(path).exists)


def test_a_worker_shows_what_it_runs_and_is_gone_when_it_stops(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.tasks.worker.RENEW_SECONDS", 0.1)
    registry = TaskRegistry()
    registry.register(wait_for, "wait")
    TaskProducer(api.backend, tenant_id="default", app="postroad").submit(
        "wait", {"path": str(tmp_path / "go")}, request_id="r1"
    )
    worker = TaskWorker(api.backend, registry=registry, concurrency=2, worker_id="w1", drain_timeout=20)
    running = threading.Thread(target=worker.run)
    running.start()
    eventually(lambda: [row["running"] for row in api.client.get("/workers").json()["items"]] not in ([], [[]]))

    [row] = api.client.get("/workers").json()["items"]
    (tmp_path / "go").touch()
    eventually(lambda: api.client.get("/workers").json()["items"][0]["running"] == [])
    worker.stop()
    running.join()

    assert list(row) == FIELDS
    assert (row["worker_id"], row["pid"], row["queues"], row["concurrency"]) == ("w1", os.getpid(), ["tasks"], 2)
    [task] = row["running"]
    assert (task["request_id"], task["name"]) == ("r1", "wait")
    assert task["rss"] > 1_000_000
    assert task["started_at"]
    assert api.client.get("/workers").json() == {"items": [], "next_cursor": None}


def present(api: Api, worker_id: str) -> presence.Presence:
    return presence.Presence(
        api.backend.items(),
        api.backend.clock,
        presence.RunningTasks(),
        tenant="default",
        worker_id=worker_id,
        queues=["tasks"],
        concurrency=1,
    )


def test_workers_are_listed_page_by_page(api: Api) -> None:
    for n in range(5):
        present(api, f"w{n}").renew()

    first = api.client.get("/workers", params={"limit": 3}).json()
    second = api.client.get("/workers", params={"limit": 3, "cursor": first["next_cursor"]}).json()

    assert [row["worker_id"] for row in (*first["items"], *second["items"])] == [f"w{n}" for n in range(5)]
    assert second["next_cursor"] is None
    assert api.client.get("/workers", params={"limit": 0}).json()["field"] == "limit"
    assert api.client.get("/workers", params={"cursor": "x"}).json()["field"] == "cursor"


def test_a_worker_that_was_killed_is_forgotten_after_an_hour(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    present(api, "gone").renew()
    monkeypatch.setattr(presence, "FORGET", timedelta(0))

    assert api.client.get("/workers").json()["items"] == []
    present(api, "here").renew()
    assert [item.key for item in api.backend.items().scan("default/WORKER#").items] != ["default/WORKER#gone"]


def test_where_writes_cost_requests_a_worker_that_runs_nothing_writes_every_two_minutes() -> None:
    clock, running = FakeClock(), presence.RunningTasks()
    with postroad.connect("memory://", clock=clock) as backend:
        items = backend.items()
        worker = presence.Presence(
            items, clock, running, tenant="t", worker_id="w", queues=["tasks"], concurrency=1, is_far=True
        )

        def versions(turns: int) -> list[int]:
            found = []
            for _ in range(turns):
                worker.renew()
                item = items.get("t/WORKER#w")
                assert item is not None
                found.append(item.version)
                clock.advance(30)
            return found

        idle = versions(9)
        with running.noted("r1", "wait", clock.now(), os.getpid()):
            busy = versions(3)
        idle_again = versions(3)

    assert idle == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert busy == [4, 5, 6]
    assert idle_again == [7, 7, 7]


def test_it_needs_a_token(api: Api) -> None:
    with api.as_caller(None) as stranger:
        assert stranger.get("/workers").status_code == 401
