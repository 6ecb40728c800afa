"""The size `gate` of `postroad verify`, split over scenarios and stores: nothing is lost, doubled or reordered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from postroad.testing.verify.plan import SIZES
from postroad.testing.verify.scenario import SCENARIOS

pytestmark = pytest.mark.slow
SEED = "20"
# Messages and kills of each run; a job is three tasks, and each task is a process.
RUNS = {
    ("queue", "sqlite"): (4_000, 14),
    ("topic", "sqlite"): (3_500, 14),
    ("stream", "sqlite"): (5_000, 14),
    ("bus", "sqlite"): (2_500, 12),
    ("outbox", "sqlite"): (2_000, 12),
    ("agents", "sqlite"): (1_500, 12),
    ("tasks", "sqlite"): (400, 8),
    ("jobs", "sqlite"): (200, 6),
    ("outbox", "postgres"): (500, 4),
    ("queue", "aws"): (400, 4),
}
MARKS = {"sqlite": (), "postgres": (pytest.mark.postgres,), "aws": (pytest.mark.aws,)}


def _verify(scenario: str, store: str, tmp_path: Path) -> dict[str, Any]:
    messages, kills = RUNS[scenario, store]
    command = [sys.executable, "-m", "postroad", "verify", "run", "--scenario", scenario, "--store", store]
    numbers = ["--size", "gate", "--messages", str(messages), "--kills", str(kills), "--seconds", "15", "--seed", SEED]
    where = ["--report", str(tmp_path / "report"), "--json"]
    # Killed workers leave temporary files, which nobody else removes. The path is short for the sockets in it.
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TMPDIR": folder}
        words = [*command, *numbers, *where]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _lines(report: Path, op: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a history that are about one operation; a killed process may have cut its last one."""
    for path in sorted(report.glob("history/*.jsonl")):
        for text in path.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                if (line := json.loads(text))["op"] == op:
                    yield line


def test_the_runs_are_the_gate() -> None:
    size = SIZES["gate"]

    assert {scenario for scenario, _ in RUNS} == set(SCENARIOS)
    assert sum(messages for messages, _ in RUNS.values()) == size.messages
    assert sum(kills for _, kills in RUNS.values()) == size.kills


@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "store"), [pytest.param(*run, marks=MARKS[run[1]], id=" on ".join(run)) for run in RUNS]
)
def test_nothing_is_lost_doubled_or_reordered(scenario: str, store: str, tmp_path: Path) -> None:
    report = _verify(scenario, store, tmp_path)

    counts = report["counts"]
    assert report["verdict"] == "ok", (report["reasons"], report["findings"][:10], report["command"])
    messages, kills = RUNS[scenario, store]
    assert counts["messages"] >= messages
    assert counts["kills"] == kills
    if scenario not in ("stream", "tasks", "jobs"):
        # Without its receipt, a handler that ends after its lease cannot be told from the one that holds the message.
        assert [line for line in _lines(tmp_path / "report", "handled") if not line.get("receipt")] == []
    if store == "postgres":
        assert counts["restarts"] >= SIZES["gate"].server_restarts
    if store == "aws":
        assert counts["proxy_faults"] >= SIZES["gate"].proxy_faults
