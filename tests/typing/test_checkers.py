"""Type checkers help users: they accept the package and right code, and find every wrong line."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.sharing import made_once, one_at_a_time
from tests.typing.lines import ACCEPTED, BUS, EVENTS, MODULES, REFUSED, TASKS, WRONG_EVENTS, WRONG_TASKS

ROOT = Path(__file__).parents[2]
CHECKED = {"mypy": ("--strict",), "pyright": ("src", "tests/typing")}
"""The arguments of each checker beside the modules: all that it has to accept. For mypy that is a check of its own."""

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module", params=CHECKED)
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The errors that a type checker finds. It runs once for all tests: it reads the whole package each time."""
    # The check before each commit is called `types`; mypy reads what that has found out.
    with one_at_a_time(tmp_path_factory, "types" if request.param == "mypy" else request.param):
        folder = made_once(tmp_path_factory, f"types-{request.param}", partial(_check, request.param))
    lines = (folder / "said").read_text().splitlines()
    assert lines, "the checker has not run"
    return [line for line in lines if " error: " in line]


def _check(checker: str, folder: Path) -> None:
    for name, (head, lines) in MODULES.items():
        (folder / f"{name}.py").write_text("\n".join([head.rstrip("\n"), *lines, ""]))
    paths = [*CHECKED[checker], *(str(folder / f"{name}.py") for name in MODULES)]
    done = subprocess.run([sys.executable, "-m", checker, *paths], cwd=ROOT, capture_output=True, text=True)
    (folder / "said").write_text(done.stdout)


def found(said: list[str], module: str) -> list[int]:
    """Return the numbers of the lines of a module that are errors."""
    return [int(line.split(f"{module}.py:")[1].split(":")[0]) for line in said if f"{module}.py:" in line]


def test_the_package_and_the_samples_are_accepted(said: list[str]) -> None:
    assert [line for line in said if not any(f"{name}.py:" in line for name in MODULES)] == []


def test_right_lines_are_accepted(said: list[str]) -> None:
    assert len(ACCEPTED) >= 40
    assert found(said, "accepted") == []


@pytest.mark.parametrize(
    ("module", "head", "wrong"),
    [("refused", BUS, REFUSED), ("wrong_events", EVENTS, WRONG_EVENTS), ("wrong_tasks", TASKS, WRONG_TASKS)],
)
def test_wrong_lines_are_refused_each_at_its_place(
    module: str, head: str, wrong: dict[str, str], said: list[str]
) -> None:
    first = head.rstrip("\n").count("\n") + 2
    refused = found(said, module)

    missed = [what for number, what in enumerate(wrong, first) if number not in refused]

    assert len(REFUSED) >= 40
    assert missed == []
    assert min(refused) >= first
