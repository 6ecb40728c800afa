"""`make` sets everything up by itself, says what it does, and says how to repair what fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ("awk", "cat", "dirname", "flock", "grep", "rm", "sh", "sort")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the set-up reads of a clone, with a path on which no Python is found."""
    (tmp_path / "tools").mkdir()
    for script in ("environment", "check-all"):
        shutil.copy(ROOT / "tools" / script, tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "bin").mkdir()
    for program in PROGRAMS:
        if (found := shutil.which(program)) is not None:
            (tmp_path / "bin" / program).symlink_to(found)
    return tmp_path


def set_up(clone: Path, purpose: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(clone / "bin"), **variables}
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


def check_all(clone: Path, *, failing: str = "none") -> subprocess.CompletedProcess[str]:
    """Run it with a make that says what it was asked for, and fails for one environment."""
    make = clone / "bin" / "make"
    make.write_text(f'#!/bin/sh\necho "$2 $3"\ncase "$3" in *{failing}) exit 2 ;; esac\n')
    make.chmod(0o755)
    environment = {"PATH": str(clone / "bin"), "PYENV_ROOT": str(clone / "pyenv")}
    return subprocess.run(["/bin/sh", "tools/check-all"], cwd=clone, env=environment, capture_output=True, text=True)


def pretend_version(path: Path, version: str) -> None:
    """A program in the place of a Python of that version, which says what check-all asks it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "{version} $0"\n')
    path.chmod(0o755)


def test_check_all_checks_once_under_each_python_on_the_path_and_of_pyenv(clone: Path) -> None:
    pretend_version(clone / "bin" / "python3.13", "3.13")
    pretend_version(clone / "pyenv" / "versions" / "3.13.1" / "bin" / "python", "3.13")
    pretend_version(clone / "pyenv" / "versions" / "3.12.9" / "bin" / "python", "3.12")

    done = check_all(clone)

    assert (done.returncode, done.stderr) == (0, "")
    asked = [line for line in done.stdout.splitlines() if line.startswith("check ")]
    assert asked == ["check VENV=.venv-3.12", "check VENV=.venv-3.13"]
    assert done.stdout.splitlines()[-1] == "passed: 3.12 3.13"


def test_check_all_goes_on_after_a_failure_and_names_the_versions_that_failed(clone: Path) -> None:
    pretend_version(clone / "bin" / "python3.11", "3.11")
    pretend_version(clone / "bin" / "python3.12", "3.12")

    done = check_all(clone, failing="3.11")

    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "passed: 3.12"
    assert done.stderr == "failed: 3.11\n"


def test_check_all_wants_a_classifier_for_each_version_that_passes(clone: Path) -> None:
    pretend_version(clone / "bin" / "python3.99", "3.99")
    (clone / "bin" / "python3").symlink_to("python3.99")

    done = check_all(clone)

    assert done.returncode == 1
    assert "repair: add its classifier to pyproject.toml" in done.stderr


def test_check_all_without_a_python_says_so(clone: Path) -> None:
    done = check_all(clone)

    assert done.returncode == 1
    assert "no Python 3.11 or newer was found" in done.stderr


def test_an_environment_can_have_another_name(clone: Path) -> None:
    pretend_python(clone / ".venv-3.12" / "bin" / "python", installs=True)

    done = set_up(clone, "dev", VENV=".venv-3.12")

    assert done.returncode == 0
    assert (clone / ".venv-3.12" / ".made-for-dev").exists()
    assert not (clone / ".venv").exists()


def test_the_classifiers_name_every_version_from_the_least_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [int(found[1]) for each in project["classifiers"] if (found := re.search(r"Python :: 3\.(\d+)$", each))]

    assert project["requires-python"] == f">=3.{named[0]}"
    assert named == list(range(named[0], named[-1] + 1))


def test_help_lists_every_target_with_one_line() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )

    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {line.split()[1] for line in done.stdout.splitlines()} == targets
    assert {"help", "up", "check", "test", "bench", "clean"} <= targets


def test_continuous_integration_runs_the_test_command() -> None:
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "exec make test"
