"""Every example runs alone, soon, and says something."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
MOST_LINES = 60
# Alone they take less than ten; the other tests of a run share the machine.
MOST_SECONDS = 30.0
LOGGED = {"07_task_worker.py": {"task_retried"}}
"""The failures that an example provokes, which the log reports."""


def test_there_are_examples() -> None:
    assert [path.name[:2] for path in EXAMPLES][:2] == ["01", "02"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_alone_and_prints_something(path: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    started = time.monotonic()

    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stderr.splitlines()} == LOGGED.get(path.name, set()), done.stderr
    assert len(done.stdout.splitlines()) >= 2
    assert time.monotonic() - started < MOST_SECONDS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_read_in_a_minute(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES
