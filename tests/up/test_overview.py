"""The overview of a running `postroad up`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.up.conftest import StartUp
from tests.waiting import eventually

import postroad
from postroad import OutgoingMessage, QueueSpec

pytestmark = pytest.mark.slow


def test_the_charts_survive_a_server_that_is_killed_and_a_part_that_is_down_needs_attention(
    start_up: StartUp, tmp_path: Path
) -> None:
    up = start_up()
    with postroad.connect(f"sqlite:///{tmp_path}/data.db") as backend:
        queue = backend.create_queue(QueueSpec("orders"))
        queue.send([OutgoingMessage("a")] * 7)
        eventually(lambda: up.get("/overview").json()["totals"]["sent"] == 7)

        os.kill(up.parts()["server"]["pid"], signal.SIGKILL)
        queue.send([OutgoingMessage("b")] * 2)
        eventually(lambda: up.get("/overview").json()["totals"]["sent"] == 9)

    document = up.get("/overview").json()
    assert sum(document["series"]["sent"]) == 9
    os.kill(up.parts()["bus"]["pid"], signal.SIGKILL)
    seen = []
    until = time.monotonic() + 60
    while "part-down" not in seen and time.monotonic() < until:
        seen += [item["kind"] for item in up.get("/overview").json()["attention"]]
        time.sleep(0.02)
    assert "part-down" in seen
