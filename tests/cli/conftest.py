from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from tests.cli.terminal import Outcome, Postroad

from postroad.cli.app import run
from postroad.tasks.registry import default_tasks


@pytest.fixture(autouse=True)
def _a_directory_and_an_environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("POSTROAD_") or name == "NO_COLOR"]:
        monkeypatch.delenv(variable)


@pytest.fixture(autouse=True)
def _no_tasks_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command is a program of its own, which knows only the tasks that it imports."""
    monkeypatch.setattr(default_tasks, "_tasks", {})


@pytest.fixture(autouse=True)
def _logs_of_its_own(logs_as_they_were: None) -> None:
    """A command sets up where its log lines go."""


@pytest.fixture
def postroad(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Postroad:
    """Run a command in this process, on `postroad.db` in the test's own directory."""

    def call(*args: str, stdin: str = "") -> Outcome:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capsys.readouterr()
        code = run(args)
        written = capsys.readouterr()
        return Outcome(code, written.out, written.err)

    return call
