"""What the plugin does to other projects: nothing until a test asks for a fixture."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

IDLE = """
import sys


def test_nothing_of_postroad_is_loaded():
    loaded = sorted(name for name in sys.modules if name.split(".")[0] == "postroad")
    assert loaded == ["postroad", "postroad.lazy", "postroad.testing", "postroad.testing.pytest_plugin"]
"""
USING = """
import pytest
from postroad import OutgoingMessage, QueueSpec
from postroad.errors import Unavailable


@pytest.mark.parametrize("number", range(2))
def test_the_fixtures_work(number, postroad_backend, postroad_sqlite, postroad_clock, postroad_faults):
    for backend in (postroad_backend, postroad_sqlite):
        postroad_faults.fail("queue.send")
        queue = backend.create_queue(QueueSpec("orders"))
        with pytest.raises(Unavailable):
            queue.send([OutgoingMessage("1")])
        assert queue.send([OutgoingMessage("2", delay=60)])[0].ok
        assert queue.receive() == []
    postroad_clock.advance(61)
    assert [backend.queue("orders").receive()[0].body for backend in (postroad_backend, postroad_sqlite)] == [b"2"] * 2
"""


def run(folder: Path, test: str, *flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_project.py").write_text(test)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "POSTROAD_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "--basetemp", "temporary", *flags]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)


def test_it_is_registered_under_its_own_name() -> None:
    (found,) = entry_points(group="pytest11", name="postroad")

    assert found.value == "postroad.testing.pytest_plugin"


@pytest.mark.slow
def test_a_project_that_does_not_use_it_loads_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, IDLE)

    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-n", "2"), ("-p", "no:randomly", "-p", "no:xdist")], ids=["with", "without"])
def test_its_fixtures_work_with_and_without_other_plugins(tmp_path: Path, flags: tuple[str, ...]) -> None:
    for name in ("xdist", "pytest_randomly"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")

    done = run(tmp_path, USING, *flags)

    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.slow
def test_it_can_be_turned_off(tmp_path: Path) -> None:
    done = run(tmp_path, USING, "-p", "no:postroad")

    assert "fixture 'postroad_backend' not found" in done.stdout
