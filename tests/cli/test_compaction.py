"""`postroad compact`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.terminal import Postroad

from postroad import OutgoingMessage, QueueSpec
from postroad.connections.application_file import FileState
from postroad.operations.diagnosis import file_state_findings
from postroad.queues import purge
from postroad.wiring import connect


@pytest.fixture(autouse=True)
def _drained() -> None:
    with connect("sqlite:///postroad.db") as backend:
        queue = backend.create_queue(QueueSpec("orders"))
        for _ in range(10):
            queue.send([OutgoingMessage("x" * 50_000) for _ in range(10)])
        purge(queue)


def test_compact_tells_what_it_gave_back(postroad: Postroad) -> None:
    told = postroad("compact", "--json")
    again = postroad("compact")

    assert told.code == 0
    assert told.document["given_back_bytes"] > 4_000_000
    assert told.document["after_bytes"] == told.document["before_bytes"] - told.document["given_back_bytes"]
    assert Path("postroad.db").stat().st_size < 1_000_000
    assert again.out.startswith("gave back 0.0 MB; 0.")


def test_memory_cannot_be_compacted(postroad: Postroad) -> None:
    told = postroad("compact", "--url", "memory://", "--json")

    assert told.code != 0
    assert "no file" in told.problem["detail"]


def test_the_doctor_finds_a_file_of_which_most_holds_nothing() -> None:
    def found(size: int, free: int) -> list[str]:
        state = FileState("3.53.0", "wal", size=size * 1_000_000, free=free * 1_000_000)
        return [finding.code for finding in file_state_findings(Path("p.db"), state)]

    assert found(1_026, 1_020) == ["file-bloat"]
    assert found(1_026, 400) == found(120, 90) == []
