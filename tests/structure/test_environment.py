"""`make` sets everything up by itself, says what it does, and says how to repair what fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ("cat", "dirname", "rm", "sh", "flock")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the set-up reads of a clone, with a path on which no Python is found."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "environment", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "bin").mkdir()
    for program in PROGRAMS:
        if (found := shutil.which(program)) is not None:
            (tmp_path / "bin" / program).symlink_to(found)
    return tmp_path


def set_up(clone: Path, purpose: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(clone / "bin")}
    return subprocess.run(
        ["/bin/sh", "tools/environment", purpose], cwd=clone, env=environment, capture_output=True, text=True
    )


def pretend_python(path: Path, *, installs: bool) -> None:
    """A program in the place of Python that can import pip, and installs with it or not."""
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "no route to host"\nexit {0 if installs else 1}\n')
    path.chmod(0o755)


def test_without_a_python_that_is_new_enough_it_says_so(clone: Path) -> None:
    done = set_up(clone, "run")

    assert done.returncode == 1
    assert "no Python 3.11 or newer was found; repair: install one" in done.stderr.splitlines()[-1]


def test_a_failed_installation_ends_with_the_reason_and_the_repair(clone: Path) -> None:
    pretend_python(clone / ".venv" / "bin" / "python", installs=False)

    done = set_up(clone, "dev")

    assert done.returncode == 1
    assert "no route to host" in done.stderr
    assert re.match(r"failed: pip could not install .* repair: .*rm -rf \.venv", done.stderr.splitlines()[-1])


def test_a_second_time_there_is_nothing_to_do(clone: Path) -> None:
    pretend_python(clone / ".venv" / "bin" / "python", installs=True)

    first = set_up(clone, "dev")
    second = set_up(clone, "dev")
    to_run = set_up(clone, "run")

    assert "installing" in first.stderr
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert (to_run.returncode, to_run.stderr) == (0, "")


def test_changed_requirements_are_installed_anew(clone: Path) -> None:
    pretend_python(clone / ".venv" / "bin" / "python", installs=True)
    set_up(clone, "dev")
    marker = clone / ".venv" / ".made-for-dev"
    os.utime(clone / "pyproject.toml", (marker.stat().st_mtime + 5,) * 2)

    done = set_up(clone, "dev")

    assert "installing" in done.stderr


def test_progress_leaves_stdout_to_what_runs_afterwards(clone: Path) -> None:
    pretend_python(clone / ".venv" / "bin" / "python", installs=True)

    assert set_up(clone, "run").stdout == ""


def test_help_lists_every_target_with_one_line() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )

    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {line.split()[1] for line in done.stdout.splitlines()} == targets
    assert {"help", "up", "check", "test", "bench", "clean"} <= targets


def test_continuous_integration_runs_the_test_command() -> None:
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "exec make test"
