"""Alerts go to one checked address, and nowhere else."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.webhooks import Receiver, receiving
from tests.waiting import eventually

import postroad
from postroad.errors import AlertRefused
from postroad.jobs.dispatcher import worker_roles
from postroad.journal import JournalEvent
from postroad.lambdas import eventbridge_dlq_alert
from postroad.tasks.health import SlackAlerts
from postroad.tasks.threads import RoleThreads


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def test_sec06_a_text_is_escaped_and_taken(receiver: Receiver) -> None:
    result = SlackAlerts(receiver.url, allow_loopback=True).send("a <b> & c")

    assert (result.ok, result.status, result.reason) == (True, 200, None)
    assert receiver.bodies == [{"text": "a &lt;b&gt; &amp; c"}]


@pytest.mark.parametrize("status", [302, 400, 429, 500])
def test_sec06_only_2xx_is_ok_and_nothing_is_followed(receiver: Receiver, status: int) -> None:
    receiver.status = status

    result = SlackAlerts(receiver.url, allow_loopback=True).send("x")

    assert (result.ok, result.status) == (False, status)
    assert "secret" not in str(result)
    assert len(receiver.bodies) == 1


def test_sec06_of_an_endless_answer_64_kib_are_read(receiver: Receiver) -> None:
    receiver.length = 10**12

    result = SlackAlerts(receiver.url, allow_loopback=True).send("x")

    assert (result.ok, result.status) == (True, 200)


def test_a_receiver_that_is_down_is_a_result(receiver: Receiver) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        result = SlackAlerts(f"http://127.0.0.1:{closed.getsockname()[1]}/x", allow_loopback=True).send("x")

    assert (result.ok, result.status) == (False, None)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.slack.com/x",
        "file:///etc/passwd",
        "https://hooks.slack.com@evil.example/x",
        "https://evil.example/x",
        "https://169.254.169.254/latest",
        "https://[::1]/x",
        "https://0x7f.1/x",
        "https://hooks.slack.com.evil.example/x",
        "http://127.0.0.1/x",
        "https://hooks.slack.com:x/",
        "https://hooks.slack.com:0/",
        "https://[hooks.slack.com/",
        "https://hooks.slack.com/a b",
        "",
    ],
)
def test_sec06_an_address_that_may_lead_elsewhere_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(AlertRefused) as refused:
        SlackAlerts(url)

    assert "evil" not in str(refused.value)


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "fd00::1"])
def test_sec06_a_name_that_leads_inside_is_not_connected_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    public = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 443))
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [public, (family, socket.SOCK_STREAM, 6, "", (address, 443))]
    )

    result = SlackAlerts("https://hooks.slack.com/services/secret").send("x")

    assert (result.ok, result.status) == (False, None)


def _record(body: str) -> dict[str, Any]:
    return {"messageId": "m1", "body": body, "receiptHandle": "r"}


def test_a_lost_event_is_told_in_the_six_lines_of_the_seed(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_WEBHOOK_URL", receiver.url)
    monkeypatch.setenv("POSTROAD_ALERTS_ALLOW_LOOPBACK", "1")
    monkeypatch.delenv("ARCHIVE_QUEUE_URL", raising=False)
    body = json.dumps({"detail": {"eventType": "Task Completed", "GSI1PK": "TASK#r"}, "detail-type": "log-event"})

    answer = eventbridge_dlq_alert.handler({"Records": [_record(body), _record("not json")]})

    assert answer == {"batchItemFailures": []}
    assert receiver.bodies[0]["text"].splitlines() == [
        ":rotating_light: *EventBridge delivery failure*",
        "*Event type:* Task Completed",
        "*Detail type:* log-event",
        "*Task:* TASK#r",
        "*Time:* unknown",
        "*Message ID:* m1",
    ]
    assert "*Event type:* unknown" in receiver.bodies[1]["text"]


def test_an_event_whose_alert_failed_stays_in_its_queue(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_WEBHOOK_URL", receiver.url)
    monkeypatch.setenv("POSTROAD_ALERTS_ALLOW_LOOPBACK", "1")
    receiver.status = 500

    answer = eventbridge_dlq_alert.handler({"Records": [_record("{}")]})

    assert answer == {"batchItemFailures": [{"itemIdentifier": "m1"}]}


def test_a_worker_reports_silent_tasks_to_slack(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = {"requestId": "lost", "effectiveUntil": 1_800_000_000, "workerId": "w1", "processId": 1}
    long_ago = int(time.time() * 1_000) - 1_800_000
    with postroad.connect(f"sqlite:///{tmp_path / 'tasks.db'}") as backend:
        event = JournalEvent.create(
            "Task Processing Started",
            tenant_id="acme",
            app="shop",
            entity_id="lost",
            timestamp=long_ago,
            properties=started,
        )
        backend.journal().append([event])
        monkeypatch.setenv("SLACK_WEBHOOK_URL", receiver.url)
        monkeypatch.setenv("POSTROAD_ALERTS_ALLOW_LOOPBACK", "1")
        roles = worker_roles(backend, tenant_id="acme", app="shop", roles=["health"])
        with RoleThreads(roles):
            eventually(lambda: receiver.bodies)

    (alert,) = receiver.bodies
    assert "lost" in alert["text"]
