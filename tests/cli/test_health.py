"""`postroad health`."""

from __future__ import annotations

import time

from tests.cli.terminal import Postroad

from postroad import connect
from postroad.journal import JournalEvent


def _started(request_id: str, *, minutes_ago: int) -> None:
    event = JournalEvent.create(
        "Task Processing Started", tenant_id="default", entity_id=request_id,
        timestamp=int(time.time() * 1_000) - minutes_ago * 60_000,
        properties={"requestId": request_id, "effectiveUntil": 1, "workerId": "w", "processId": 1},
    )  # fmt: skip
    with connect("sqlite:///postroad.db") as backend:
        backend.journal().append([event])


def test_quiet_tasks_make_the_answer_no(postroad: Postroad) -> None:
    assert postroad("health").out == "no task runs\n"
    _started("busy", minutes_ago=1)
    assert postroad("health", "--json").document["summary"]["healthy"] == 1
    _started("lost", minutes_ago=20)

    found = postroad("health", "--json")

    assert found.code == 1
    assert found.document["summary"]["critical"] == 1
    assert postroad("health", "lost", "--json").document["health"] == "critical"
    assert postroad("health", "nobody", "--json").document == {"requestId": "nobody", "status": "not_found"}
