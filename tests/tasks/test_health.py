"""Health checks find silent and endless tasks, and send each alert once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.benches import APP, TENANT

import postroad
from postroad import Backend
from postroad.errors import AlertRefused, ConfigurationError
from postroad.journal import JournalEvent
from postroad.tasks.health import AlertResult, HealthCheck, classify_health, health_role
from postroad.testing import FakeClock

T = 1_800_000_000_000
MINUTE = 60_000


class RecordedAlerts:
    """Alerts that keep what is sent."""

    def __init__(self, *, ok: bool = True) -> None:
        self.sent: list[str] = []
        self._ok = ok

    def send(self, text: str) -> AlertResult:
        self.sent.append(text)
        return AlertResult(self._ok, 200 if self._ok else 500)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    with postroad.connect(f"sqlite:///{tmp_path / 'health.db'}") as opened:
        yield opened


def _record(backend: Backend, request_id: str, event_type: str, minute: float, **properties: Any) -> None:
    given = {
        "Task Pending": {"name": "x"},
        "Task Processing Started": {"effectiveUntil": 1_800_000_045, "workerId": "w1", "processId": 1},
        "Task Heartbeat": {
            "effectiveUntil": 1_800_000_045,
            "heartbeatNumber": 1,
            "elapsedMs": 1,
            "workerId": "w1",
            "processId": 1,
            "memoryUsage": {"rss": 1},
            "lastActivity": {"type": "step", "stepName": "s", "timestamp": 1},
        },
        "Task Processing Failed": {"attemptNumber": 1, "error": "busy", "errorCategory": "network"},
        "Task Timeout": {"timeoutMs": 1, "elapsedMs": 1, "signal": "SIGTERM"},
    }[event_type]
    event = JournalEvent.create(
        event_type,
        tenant_id=TENANT,
        app=APP,
        entity_id=request_id,
        timestamp=T + int(minute * MINUTE),
        properties={"requestId": request_id, **given, **properties},  # type: ignore[dict-item]  # a table of examples
    )
    assert backend.journal().append([event])[0].ok


def _at(minute: float) -> datetime:
    return datetime.fromtimestamp((T + minute * MINUTE) / 1_000, UTC)


def _check(backend: Backend, **options: Any) -> HealthCheck:
    return HealthCheck(backend, tenant_id=TENANT, app=APP, **options)


@pytest.mark.parametrize(
    ("elapsed", "since", "health"),
    [
        (0, 0, "healthy"),
        (10 * MINUTE, 5 * MINUTE, "healthy"),
        (10 * MINUTE, 5 * MINUTE + 1, "warning"),
        (20 * MINUTE, 10 * MINUTE, "warning"),
        (20 * MINUTE, 10 * MINUTE + 1, "critical"),
        (60 * MINUTE, 0, "healthy"),
        (60 * MINUTE + 1, 0, "overtime"),
        (61 * MINUTE, 61 * MINUTE, "overtime"),
    ],
)
def test_health_is_judged_by_silence_and_by_duration(elapsed: int, since: int, health: str) -> None:
    assert classify_health(elapsed, since) == health


def test_every_running_task_is_counted_once_by_its_latest_start(backend: Backend) -> None:
    for request_id in ("busy", "silent", "lost", "endless", "done"):
        _record(backend, request_id, "Task Pending", -70)
    _record(backend, "busy", "Task Processing Started", -65)
    _record(backend, "busy", "Task Processing Started", -20)
    _record(backend, "busy", "Task Heartbeat", -1)
    _record(backend, "silent", "Task Processing Started", -7)
    _record(backend, "lost", "Task Processing Started", -30)
    _record(backend, "endless", "Task Processing Started", -65)
    _record(backend, "endless", "Task Heartbeat", 0)
    _record(backend, "done", "Task Processing Started", -65)
    _record(backend, "done", "Task Timeout", -60)

    report = _check(backend).check(now=_at(0))

    assert report.summary == {"totalProcessing": 4, "healthy": 1, "warning": 1, "critical": 1, "overtime": 1}
    by_id = {task["requestId"]: task for task in report.tasks}
    assert {name: task["health"] for name, task in by_id.items()} == {
        "busy": "healthy",
        "silent": "warning",
        "lost": "critical",
        "endless": "overtime",
    }
    assert by_id["busy"] == {
        "requestId": "busy",
        "health": "healthy",
        "elapsed": 20 * MINUTE,
        "timeSinceLastEvent": MINUTE,
        "lastEventType": "Task Heartbeat",
        "workerId": "w1",
        "lastActivity": {"type": "step", "stepName": "s", "timestamp": 1},
    }
    (recorded,) = backend.journal().query("GSI1", tenant=TENANT, entity=("HEALTH", APP)).events
    assert (recorded.event_type, recorded.properties["summary"]) == ("Task Health Check", report.summary)
    assert recorded.context["origin"] == "health-check"


def test_a_look_reads_as_much_with_a_long_history_as_with_none(backend: Backend) -> None:
    _record(backend, "busy", "Task Processing Started", -1)
    check, steps = _check(backend), count()
    queues: Any = backend.ports.queues
    queues.engine.read(lambda each: each.set_progress_handler(lambda: next(steps) < 0, 10))

    def looked() -> int:
        before = next(steps)
        assert [task["requestId"] for task in check.look(now=_at(0), limit=5).tasks] == ["busy"]
        return next(steps) - before

    alone = looked()
    for number in range(500):
        _record(backend, f"done-{number}", "Task Processing Started", -65)
        _record(backend, f"done-{number}", "Task Timeout", -60)

    assert 10 < looked() <= alone * 1.2


def test_without_kept_states_a_short_look_examines_the_tasks_that_started_last(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.journal.store.StoredJournal.states", lambda *_, **__: None)
    for minute in (-5, -4, -3):
        _record(backend, f"since{minute}", "Task Processing Started", minute)

    report = _check(backend).look(now=_at(0), limit=2)

    assert [task["requestId"] for task in report.tasks] == ["since-3", "since-4"]


def test_tasks_that_started_before_the_lookback_are_left_out(backend: Backend) -> None:
    _record(backend, "old", "Task Processing Started", -30)

    assert _check(backend, lookback=60).check(now=_at(0)).summary["totalProcessing"] == 0


def test_an_alert_is_sent_once_for_the_same_tasks_within_a_quarter_of_an_hour(backend: Backend) -> None:
    alerts = RecordedAlerts()
    check = _check(backend, alerts=alerts)
    _record(backend, "lost", "Task Processing Started", -30)
    _record(backend, "silent", "Task Processing Started", -6)

    check.check(now=_at(0))
    check.check(now=_at(1))
    assert len(alerts.sent) == 2
    assert "lost" in alerts.sent[0]
    assert "silent" in alerts.sent[1]
    _record(backend, "lost2", "Task Processing Started", -30)
    check.check(now=_at(2))
    assert len(alerts.sent) == 3
    check.check(now=_at(18))
    assert len(alerts.sent) > 3


def test_the_same_tasks_are_told_of_again_when_the_quarter_of_an_hour_is_over(backend: Backend) -> None:
    alerts = RecordedAlerts()
    check = _check(backend, alerts=alerts)
    _record(backend, "lost", "Task Processing Started", -30)

    sent = []
    for minute in (0, 14, 15):
        check.check(now=_at(minute))
        sent.append(len(alerts.sent))

    assert sent == [1, 1, 2]


def test_an_alert_that_fails_does_not_fail_the_check_and_is_sent_again_by_the_next(backend: Backend) -> None:
    _record(backend, "lost", "Task Processing Started", -30)
    failing, alerts = RecordedAlerts(ok=False), RecordedAlerts()

    assert _check(backend, alerts=failing).check(now=_at(0)).summary["critical"] == 1
    _check(backend, alerts=alerts).check(now=_at(5))
    _check(backend, alerts=alerts).check(now=_at(10))

    assert (len(failing.sent), len(alerts.sent)) == (1, 1)


def test_one_task_is_looked_at_by_its_id(backend: Backend) -> None:
    _record(backend, "r", "Task Processing Started", -7)

    assert _check(backend).check_single("nobody") == {"requestId": "nobody", "status": "not_found"}
    assert _check(backend).check_single("r", now=_at(0)) == {
        "requestId": "r",
        "currentState": "processing",
        "health": "warning",
        "elapsed": 7 * MINUTE,
        "timeSinceLastEvent": 7 * MINUTE,
        "lastEventType": "Task Processing Started",
        "workerId": "w1",
        "lastActivity": None,
    }


def test_a_task_that_waits_long_for_its_next_attempt_is_healthy_until_that_is_overdue(backend: Backend) -> None:
    _record(backend, "later", "Task Processing Started", 0)
    _record(backend, "later", "Task Processing Failed", 1, retryAt=T + 120 * MINUTE)

    health = [_check(backend).check_single("later", now=_at(minute))["health"] for minute in (30, 119, 124, 127, 135)]

    assert health == ["healthy", "healthy", "healthy", "warning", "critical"]


def test_a_moment_may_be_told_in_milliseconds(backend: Backend) -> None:
    _record(backend, "r", "Task Processing Started", -7)
    moment = int(_at(0).timestamp() * 1_000)

    assert _check(backend).check_single("r", now=moment) == _check(backend).check_single("r", now=_at(0))
    assert _check(backend).check(now=moment).summary["warning"] == 1


@pytest.mark.parametrize("name", ["heartbeat_max_age", "alert_threshold", "task_max_duration", "lookback"])
def test_limits_that_are_no_seconds_are_refused(backend: Backend, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        _check(backend, **{name: -1})


def test_one_of_all_processes_with_the_role_checks_every_five_minutes(tmp_path: Path) -> None:
    clock = FakeClock()
    with postroad.connect(f"sqlite:///{tmp_path / 'role.db'}", clock=clock) as backend:
        roles = [health_role(backend, tenant_id=TENANT, app=APP) for _ in range(2)]

        def checks() -> int:
            for role in roles:
                assert role.run_once() == 0
            return len(backend.journal().query("GSI1", tenant=TENANT, entity=("HEALTH", APP)).events)

        found = [checks(), checks()]
        for seconds in (299, 1, 300):
            clock.advance(seconds)
            found.append(checks())

    assert found == [1, 1, 1, 2, 3]


def test_the_role_logs_which_tasks_are_silent(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    _record(backend, "lost", "Task Processing Started", (time.time() * 1_000 - T) / MINUTE - 30)

    health_role(backend, tenant_id=TENANT, app=APP).run_once()

    (line,) = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert (line["event"], line["critical"], line["request_ids"]) == ("tasks_unhealthy", 1, ["lost"])


def test_the_role_refuses_a_webhook_that_is_not_allowed(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_WEBHOOK_URL", "http://example.com/hook")

    with pytest.raises(AlertRefused):
        health_role(backend, tenant_id=TENANT, app=APP)
