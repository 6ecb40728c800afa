"""`postroad verify`: its plan, what it refuses, and what it leaves behind when it is interrupted or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from postroad.cli.app import run

COMMAND = [sys.executable, "-m", "postroad", "verify"]
SMALL = ["--scenario", "queue", "--messages", "60", "--seconds", "2", "--seed", "1"]


def _start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start it with its temporary files below the directory, since nobody removes those of a killed one."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(directory)},
    )


def _report(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "report.json").read_text())
    return found


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_one_seed_gives_the_same_plan_byte_for_byte(capsys: pytest.CaptureFixture[str]) -> None:
    plans = []
    for seed in ("7", "7", "8"):
        assert run(["verify", "plan", "--seed", seed, "--size", "gate", "--json"]) == 0
        plans.append(capsys.readouterr().out)

    assert plans[0] == plans[1]
    assert plans[0] != plans[2]


def test_a_plan_has_all_kills_half_of_them_on_holders_and_a_quiet_quarter(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "plan", "--scenario", "queue", "--seed", "3", "--kills", "15", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["items"]

    kills = [each for each in plan["actions"] if each["do"] == "kill"]
    quiet = [each for each in plan["actions"] if each["do"] == "quiet"]
    assert len(kills) == 15
    assert sum(each.get("who") == "holder" for each in kills) == 8
    assert sum(each["seconds"] for each in quiet) == pytest.approx(plan["seconds"] / 4, rel=0.01)
    assert [each["at"] for each in plan["actions"]] == sorted(each["at"] for each in plan["actions"])
    assert all(0.1 <= each["seconds"] <= 5 for each in plan["actions"] if each["do"] == "pause")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--messages", "0"], "messages"),
        (["--messages", "-5"], "messages"),
        (["--messages", "abc"], "messages"),
        (["--seconds", "0"], "seconds"),
        (["--seconds", "nan"], "seconds"),
        (["--seconds", "inf"], "seconds"),
        (["--seconds", "9" * 400], "seconds"),
        (["--kills", "-1"], "kills"),
        (["--scenario", "nope"], "queue"),
        (["--store", "oracle"], "postgres"),
        (["--size", "huge"], "gate"),
        (["--mutant", "nope"], "ack-before-handling"),
        (["--mutant", "ack-before-handlin"], 'did you mean "ack-before-handling"?'),
        (["--scenario", "tasks", "--store", "postgres"], "does not run on postgres"),
        (["--load", "no_such_module_at_all"], "no_such_module_at_all"),
    ],
)
def test_wrong_usage_is_exit_2_and_names_the_option(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_database_that_does_not_answer_is_exit_3_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    dsn = "postgresql://nobody@127.0.0.1:9/none"

    assert run(["verify", "--scenario", "queue", "--store", "postgres", "--dsn", dsn, "--messages", "1"]) == 3
    assert len(capsys.readouterr().err.splitlines()) >= 2


def test_a_directory_with_other_files_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    assert run(["verify", "--report", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("place", ["thesis.txt", "thesis.txt/report"])
def test_a_report_that_cannot_be_a_directory_is_exit_2(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    assert run(["verify", "--report", str(tmp_path / place)]) == 2
    assert "--report" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.slow
def test_a_run_without_faults_delivers_nothing_twice_and_its_report_can_be_replaced(tmp_path: Path) -> None:
    report = tmp_path / "report"
    for _ in range(2):
        done = subprocess.run(
            [*COMMAND, "run", *SMALL, "--kills", "0", "--report", str(report), "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert found == _report(report)
        assert found["counts"]["messages"] == 60
        # Messages that fail on purpose are delivered again, and nothing else.
        assert found["violations"]["unexplained_duplicates"] == 0
        assert found["command"].startswith("postroad verify run --scenario queue")
    assert {path.name for path in report.iterdir()} == {"report.json", "report.md", "run.json", "history"}
    again = subprocess.run([*COMMAND, "check", str(report)], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_all_children_and_writes_an_inconclusive_report(
    tmp_path: Path, number: signal.Signals
) -> None:
    report = tmp_path / "report"
    running = _start(tmp_path, *SMALL, "--kills", "4", "--seconds", "600", "--report", str(report))
    eventually(lambda: list((report / "history").glob("consumer-*.jsonl")))
    children = _children(running.pid)

    running.send_signal(number)
    said, _ = running.communicate()

    assert running.returncode == 1
    assert "inconclusive" in said
    assert _report(report)["verdict"] == "inconclusive"
    assert len(children) >= 5
    assert all(_is_gone(child) for child in children)


@pytest.mark.slow
def test_killed_it_takes_its_children_along_and_leaves_a_history_that_can_be_checked(tmp_path: Path) -> None:
    report = tmp_path / "report"
    running = _start(tmp_path, *SMALL, "--kills", "4", "--seconds", "600", "--report", str(report))
    eventually(lambda: list((report / "history").glob("consumer-*.jsonl")))
    children = _children(running.pid)

    os.kill(running.pid, signal.SIGKILL)
    running.communicate()

    eventually(lambda: all(_is_gone(child) for child in children))
    checked = subprocess.run([*COMMAND, "check", str(report), "--json"], capture_output=True, text=True, check=False)
    assert checked.returncode == 1
    assert json.loads(checked.stdout)["verdict"] == "inconclusive"
