"""The buses in the place of weakincentives' own: its events travel, its Session and MainLoop work on them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.environments import ROOT
from tests.outside import __main__ as outside
from tests.sessions.weakincentives_environment import run

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SOURCES = sorted((HERE.parents[1] / "src" / "postroad").rglob("*.py"))


@pytest.mark.slow
def test_its_session_and_its_main_loop_work_on_our_bus() -> None:
    done = run(HERE / "wink" / "on_one_bus.py")

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_its_telemetry_arrives_in_another_process_as_it_was_sent(tmp_path: Path) -> None:
    done = run(HERE / "wink" / "across_processes.py", f"sqlite:///{tmp_path}/b.db")

    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_its_own_tests_pass_on_our_buses() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.outside"], cwd=ROOT, capture_output=True, text=True)

    if done.stderr.startswith("not run: "):
        pytest.skip(f"absent: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"(\d+) passed, (\d+) deselected", done.stdout) == [("237", "1"), ("236", "2")]


@pytest.mark.parametrize(
    ("variables", "expected"), [({}, 0), ({"CI": "false"}, 0), ({"CI": "1"}, 1)], ids=["here", "not in CI", "in CI"]
)
def test_without_a_python_that_is_new_enough_its_tests_do_not_run_and_say_why(
    variables: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(outside, "installed_python", lambda: None)

    assert outside.main() == expected
    assert capsys.readouterr().err == "not run: no Python from 3.12.3 on is found, which weakincentives needs\n"


def test_nothing_is_imported_from_it() -> None:
    imported = {
        name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }

    assert not [name for name in imported if name.startswith("weakincentives")]
