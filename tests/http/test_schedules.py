"""Schedules over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from tests.http.api import Api

from postroad.tasks import Scheduler, TaskRegistry

FIELDS = {"name", "task", "schedule", "tz", "paused", "next_at", "last_at", "last_request_id"}


@pytest.fixture
def scheduled(api: Api) -> Api:
    """An API in front of three schedules that a worker has registered."""
    registry = TaskRegistry()

    def nothing(input: Any, ctx: Any) -> None: ...

    registry.register(nothing, "nightly", schedule="0 3 * * *", tz="Europe/Athens")
    registry.register(nothing, "often", every="10m")
    registry.register(nothing, "weekly", schedule="0 3 * * SUN")
    settings = api.context.settings
    Scheduler(api.backend, registry=registry, tenant_id=settings.tenant, app=settings.app).tick()
    return api


def test_schedules_are_listed_page_by_page(scheduled: Api) -> None:
    first = scheduled.client.get("/schedules", params={"limit": 2}).json()
    second = scheduled.client.get("/schedules", params={"limit": 2, "cursor": first["next_cursor"]}).json()

    assert [item["name"] for item in (*first["items"], *second["items"])] == ["nightly", "often", "weekly"]
    assert second["next_cursor"] is None
    nightly, often = first["items"]
    assert set(nightly) == FIELDS
    assert (nightly["task"], nightly["schedule"], nightly["tz"], nightly["paused"]) == (
        "nightly",
        "0 3 * * *",
        "Europe/Athens",
        False,
    )
    assert nightly["next_at"].endswith("Z")
    assert (nightly["last_at"], nightly["last_request_id"]) == (None, None)
    assert often["schedule"] == "every 10m"


def test_a_schedule_is_paused_resumed_and_run(scheduled: Api) -> None:
    paused = scheduled.client.post("/schedules/nightly/pause")
    again = scheduled.client.post("/schedules/nightly/pause")
    ran = scheduled.client.post("/schedules/nightly/run").json()
    resumed = scheduled.client.post("/schedules/nightly/resume").json()

    assert (paused.status_code, paused.json()["paused"], paused.json()["next_at"]) == (200, True, None)
    assert again.json() == paused.json()
    assert ran["last_request_id"].startswith("schedule-nightly-run-")
    assert scheduled.client.get(f"/tasks/{ran['last_request_id']}").json()["state"] == "pending"
    assert (resumed["paused"], resumed["last_request_id"]) == (False, ran["last_request_id"])
    assert resumed["next_at"] is not None


def test_a_run_that_is_repeated_under_its_key_is_one_run(scheduled: Api) -> None:
    key = {"Idempotency-Key": "run-1"}

    first, again = (scheduled.client.post("/schedules/nightly/run", headers=key).json() for _ in range(2))

    assert first == again
    assert scheduled.backend.queue("tasks").stats().visible == 1


@pytest.mark.parametrize("verb", ["pause", "resume", "run"])
def test_an_unknown_schedule_is_404_and_needs_the_scope_operate(scheduled: Api, verb: str) -> None:
    assert scheduled.client.post(f"/schedules/nobody/{verb}").status_code == 404
    with scheduled.as_caller(scheduled.token("publish")) as publisher:
        assert publisher.get("/schedules").status_code == 200
        assert publisher.post(f"/schedules/nightly/{verb}").status_code == 403
