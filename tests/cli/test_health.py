"""`postroad health`."""

from __future__ import annotations

import time

from tests.cli.terminal import Postroad

from postroad import connect
from postroad.journal import JournalEvent


def _started(request_id: str, *, minutes_ago: int) -> None:
    event = JournalEvent.create(
        "Task Processing Started",
        tenant_id="default",
        entity_id=request_id,
        timestamp=int(time.time() * 1_000) - minutes_ago * 60_000,
        properties={"requestId": request_id, "effectiveUntil": 1, "workerId": "w", "processId": 1},
    )
    with connect("sqlite:///postroad.db") as backend:
        backend.journal().append([event])


def test_the_age_the_silence_the_worker_and_the_step_of_each_task_are_shown(postroad: Postroad) -> None:
    _started("lost", minutes_ago=20)
    beat = JournalEvent.create(
        "Task Heartbeat",
        tenant_id="default",
        entity_id="lost",
        timestamp=int(time.time() * 1_000) - 18 * 60_000,
        properties={
            "requestId": "lost",
            "effectiveUntil": 1,
            "heartbeatNumber": 1,
            "elapsedMs": 1,
            "workerId": "w-1",
            "processId": 1,
            "memoryUsage": {"rss": 1},
            "lastActivity": {"type": "tool", "stepName": "fetch\x1b[2J"},
        },
    )
    with connect("sqlite:///postroad.db") as backend:
        backend.journal().append([beat])

    for command in (("health",), ("health", "lost")):
        headings, row = postroad(*command).out.splitlines()
        assert headings.split() == ["TASK", "HEALTH", "RUNNING", "FOR", "SILENT", "FOR", "WORKER", "STEP"]
        assert row.split()[:5] == ["lost", "critical", "20m", "18m", "w-1"]
        assert "fetch" in row
        assert "\x1b" not in row
    assert postroad("health", "nobody").out.splitlines()[1].split() == ["nobody", "not_found", "-", "-", "-", "-"]


def test_quiet_tasks_make_the_answer_no(postroad: Postroad) -> None:
    postroad("queue", "create", "jobs")
    assert postroad("health").out == "no task runs\n"
    _started("busy", minutes_ago=1)
    assert postroad("health", "--json").document["summary"]["healthy"] == 1
    _started("lost", minutes_ago=20)

    found = postroad("health", "--json")

    assert found.code == 1
    assert found.document["summary"]["critical"] == 1
    assert postroad("health", "lost", "--json").document["health"] == "critical"
    assert postroad("health", "nobody", "--json").document == {"requestId": "nobody", "status": "not_found"}
