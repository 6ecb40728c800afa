"""`/outbox` over HTTP: what it holds, and repairs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.http.api import Api, Serve

from postroad.events import DomainEvent
from postroad.operations import AuditLog
from postroad.outbox import Outbox
from postroad.settings import audit_path

Record = Callable[..., str]


@pytest.fixture
def api(serve: Serve, tmp_path: Path) -> Api:
    """A server with an outbox."""
    dsn = f"sqlite:///{tmp_path}/app.db"
    with Outbox.open(dsn) as outbox:
        outbox.init()
    return serve(outbox_dsn=dsn)


@pytest.fixture
def record(api: Api, tmp_path: Path) -> Record:
    def record(lane: str, *, state: str = "FAILED") -> str:
        connection = sqlite3.connect(tmp_path / "app.db")
        with connection:
            event = DomainEvent(type="transfers.submitted", key={"transferId": lane}, payload={"amount": 1})
            event_id = str(api.context.outbox.outbox.add(connection, event))
            connection.execute(
                "UPDATE outbox SET state = ?, lasterror = 'rejected: no', attempts = 10 WHERE event_id = ?",
                (state, event_id),
            )
        connection.close()
        return event_id

    return record


def test_the_outbox_shows_what_the_commands_print(api: Api, record: Record) -> None:
    event_id = record("tr_1")
    record("tr_2", state="PENDING")

    document = api.client.get("/outbox").json()

    assert list(document) == ["status", "keys"]
    assert (document["status"]["pending"], document["status"]["failed"]) == (1, 1)
    assert document["status"]["blocked_keys"] == 1
    [key] = document["keys"]["items"]
    assert (key["head"], key["state"]) == (event_id, "FAILED")
    assert list(key) == ["tenant_id", "lane", "head", "state", "reason", "waiting"]


def test_events_are_redriven_after_a_dry_run(api: Api, record: Record) -> None:
    event_id = record("tr_1")
    body = {"type": "transfers.submitted", "reason": "the topic is back"}

    dry = api.client.post("/outbox/redrive", json={**body, "dry_run": True}).json()
    between = api.client.get("/outbox").json()["status"]["failed"]
    wet = api.client.post("/outbox/redrive", json=body).json()

    assert dry == {"redriven": [event_id], "dry_run": True}
    assert between == 1
    assert wet == {"redriven": [event_id], "dry_run": False}
    assert api.client.get("/outbox").json()["status"]["failed"] == 0
    records = list(AuditLog(audit_path(api.backend.url)).read())
    assert [(each.action, each.actor) for each in records] == [
        ("outbox.redrive.start", "admin"),
        ("outbox.redrive.end", "admin"),
    ]


def test_an_event_is_skipped(api: Api, record: Record) -> None:
    event_id = record("tr_1")

    answer = api.client.post("/outbox/skip", json={"event_id": event_id, "reason": "refunded"})

    assert answer.json() == {"skipped": event_id}
    assert api.client.get("/outbox").json()["status"]["skipped"] == 1


def test_a_repeat_with_its_key_has_one_effect(api: Api, record: Record) -> None:
    event_id = record("tr_1")
    body, headers = {"event_id": event_id, "reason": "refunded"}, {"Idempotency-Key": "k"}

    first, again = (api.client.post("/outbox/skip", json=body, headers=headers) for _ in range(2))

    assert (first.status_code, again.status_code) == (200, 200)
    assert again.headers["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("redrive", {"reason": "x"}, 400, "event_ids"),
        ("redrive", {"type": "a"}, 400, "reason"),
        ("redrive", {"type": "a", "reason": ""}, 400, "reason"),
        ("redrive", {"type": "a", "reason": "x", "limit": 0}, 400, "limit"),
        ("redrive", {"type": "a", "reason": "x", "more": 0}, 400, "more"),
        ("redrive", {"event_ids": ["7"], "reason": "x"}, 409, None),
        ("skip", {"event_id": "7"}, 400, "reason"),
        ("skip", {"reason": "x"}, 400, "event_id"),
        ("skip", {"event_id": "7", "reason": "x"}, 404, "event_id"),
    ],
)
def test_what_is_wrong_changes_nothing(
    api: Api, record: Record, path: str, body: dict[str, Any], status: int, field: str | None
) -> None:
    record("tr_1")

    answer = api.client.post(f"/outbox/{path}", json=body)

    assert (answer.status_code, answer.json().get("field")) == (status, field), answer.text
    assert api.client.get("/outbox").json()["status"]["failed"] == 1


def test_an_event_that_did_not_fail_is_a_conflict(api: Api, record: Record) -> None:
    event_id = record("tr_1", state="PENDING")

    assert api.client.post("/outbox/skip", json={"event_id": event_id, "reason": "x"}).status_code == 409


def test_without_an_outbox_there_is_nothing(serve: Serve) -> None:
    api = serve()

    answers = [
        api.client.get("/outbox"),
        api.client.post("/outbox/redrive", json={"type": "a", "reason": "x"}),
        api.client.post("/outbox/redrive", json={"reason": "x"}),
        api.client.post("/outbox/skip", json={"event_id": "a", "reason": "x"}),
    ]

    assert [answer.status_code for answer in answers] == [404] * 4
    assert "outbox" in answers[0].json()["remedy"]


def test_repairs_need_the_scope_operate(api: Api) -> None:
    with api.as_caller(api.token("publish")) as publisher:
        assert publisher.get("/outbox").status_code == 200
        assert publisher.post("/outbox/redrive", json={"type": "a", "reason": "x"}).status_code == 403
