"""The code passes the tools that read it without running it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str, repair: str) -> None:
    """Run a tool of this environment; its output and the repair are the failure's text."""
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrepair: {repair}"


def test_the_code_is_formatted() -> None:
    run("ruff", "format", "--check", "--quiet", ".", repair="make format")


def test_the_code_is_free_of_lint() -> None:
    run("ruff", "check", "--quiet", ".", repair="make format, and by hand what it leaves")


@pytest.mark.timeout(300)
def test_types_hold_under_strict_mypy() -> None:
    run("mypy", "--strict", repair="correct the types named above")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_types_hold_under_pyright() -> None:
    run("pyright", repair="correct the types named above")


def test_imports_point_downwards() -> None:
    lint_imports = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run([sys.executable, "-c", lint_imports], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
