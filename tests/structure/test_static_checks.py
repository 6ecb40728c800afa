"""The code passes the tools that read it without running it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own
from tests.sharing import one_at_a_time

ROOT = Path(__file__).parents[2]
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
BEFORE_A_COMMIT = [hook for hook in HOOKS if hook["stages"] == ["pre-commit"]]


def run(command: list[str], *, wanted: str) -> None:
    """Run a tool of this environment; its output and what it wants are the failure's text."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nwanted: {wanted}"


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("hook", BEFORE_A_COMMIT, ids=lambda hook: hook["id"])
def test_the_code_passes_what_runs_before_each_commit(
    hook: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    program, *arguments = shlex.split(hook["entry"])

    # Where mypy runs twice, the second run reads what the first one has found out.
    with one_at_a_time(tmp_path_factory, hook["id"]):
        run([str(Path(sys.executable).parent / Path(program).name), *arguments], wanted=hook["name"])


def test_before_each_push_everything_is_checked() -> None:
    assert [hook["id"] for hook in BEFORE_A_COMMIT] == ["format", "lint", "types", "layers"]
    assert [hook["entry"] for hook in HOOKS if hook["stages"] == ["pre-push"]] == ["make check"]
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in HOOKS)


def test_pre_commit_reads_the_hooks() -> None:
    run([sys.executable, "-m", "pre_commit", "validate-config"], wanted="hooks that pre-commit understands")
