"""`postroad schedule`, and the role `scheduler` of `postroad worker`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.cli.terminal import PROGRAM, Postroad
from tests.waiting import eventually

pytestmark = pytest.mark.slow

TASKS = """
from postroad.tasks import task

@task("nightly", schedule="0 3 * * *", tz="Europe/Athens")
def nightly(input, ctx):
    return "done"

@task("beat", every="1s")
def beat(input, ctx):
    return "beaten"
"""


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path) -> Path:
    """A module of tasks in the working directory."""
    path = tmp_path / "shop_schedules.py"
    path.write_text(TASKS)
    return path


def work(postroad: Postroad) -> None:
    done = postroad("worker", "--import", "shop_schedules", "--until-idle")
    assert done.code == 0, done.err


def test_a_worker_registers_schedules_which_are_listed_paused_resumed_and_run(postroad: Postroad) -> None:
    work(postroad)

    beat, nightly = postroad("schedule", "list", "--json").document["items"]
    table = postroad("schedule", "list").out
    paused = postroad("schedule", "pause", "nightly", "--json").document
    shown = postroad("schedule", "list").out
    request_id = postroad("schedule", "run", "nightly").out.strip()
    resumed = postroad("schedule", "resume", "nightly")

    assert (beat["name"], beat["schedule"]) == ("beat", "every 1s")
    assert (nightly["task"], nightly["tz"], nightly["paused"]) == ("nightly", "Europe/Athens", False)
    assert "Europe/Athens" in table
    assert "paused" not in table
    assert (paused["paused"], paused["next_at"]) == (True, None)
    assert "paused" in shown
    assert "nightly runs next at 20" in resumed.out
    work(postroad)
    assert postroad("task", "status", request_id, "--json").document["output"] == "done"


def test_a_schedule_that_is_not_there_is_exit_2_with_the_nearest_name(postroad: Postroad) -> None:
    work(postroad)

    refused = postroad("schedule", "pause", "nigtly")

    assert refused.code != 0
    assert "nightly" in refused.err


def test_where_no_worker_was_there_are_no_schedules(postroad: Postroad) -> None:
    postroad("task", "init")

    assert "no schedules" in postroad("schedule", "list").out


@pytest.mark.parametrize("roles", [(), ("--roles", "scheduler")], ids=["all roles", "the scheduler alone"])
def test_a_worker_submits_a_run_each_second(postroad: Postroad, tmp_path: Path, roles: tuple[str, ...]) -> None:
    postroad("task", "init")
    command = [*PROGRAM, "worker", "--import", "shop_schedules", *roles]
    with subprocess.Popen(command, cwd=tmp_path) as started:
        try:
            eventually(lambda: last(postroad) is not None)
            first = last(postroad)
            eventually(lambda: last(postroad) != first)
            state = postroad("task", "status", str(first), "--json").document["state"]
            eventually(lambda: roles or postroad("task", "status", str(first), "--json").document["output"])
        finally:
            started.terminate()

    assert started.returncode == 0
    assert state in (("pending",) if roles else ("pending", "processing", "completed"))


def last(postroad: Postroad) -> str | None:
    """The last run of the schedule of a second."""
    items = postroad("schedule", "list", "--json").document["items"]
    return next((item["last_request_id"] for item in items if item["name"] == "beat"), None)
