"""`postroad job`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import Postroad

TASKS: list[dict[str, Any]] = [
    {"taskId": "a", "name": "echo", "input": {"n": 1}},
    {"taskId": "b", "name": "echo", "dependsOn": ["a"]},
]


@pytest.fixture(autouse=True)
def _files() -> None:
    Path("job.json").write_text(json.dumps({"tasks": TASKS, "jobId": "j"}))
    Path("more.json").write_text(json.dumps({"tasks": [{"taskId": "c", "name": "echo"}]}))


def test_a_job_is_submitted_extended_shown_and_cancelled(postroad: Postroad) -> None:
    made = postroad("job", "submit", "job.json", "--json").document
    assert (made["jobId"], made["status"], made["rootTasks"]) == ("j", "created", ["a"])
    assert postroad("job", "submit", "-", stdin=Path("job.json").read_text()).out == "j\n"

    added = postroad("job", "add", "j", "more.json", "--json").document
    assert (added["addedTasks"], added["totalTasksNow"]) == (["c"], 3)

    shown = postroad("job", "status", "j", "--json").document
    assert (shown["status"], shown["progress"]["waiting"]) == ("processing", 1)
    assert "○ a  echo  pending" in postroad("job", "status", "j").out
    assert "graph TD" in postroad("job", "graph", "j", "--format", "mermaid").out
    assert [job["jobId"] for job in postroad("job", "list", "--json").document["items"]] == ["j"]
    assert postroad("job", "resume", "j").code == 1
    assert postroad("job", "cancel", "j").code == 2
    assert postroad("job", "cancel", "j", "--confirm", "j", "--json").document["cancelledTasks"] == ["a", "b", "c"]
    assert postroad("job", "cancel", "j", "--confirm", "j").code == 1


def test_jobs_are_listed_for_people_with_the_way_to_the_next_page(postroad: Postroad) -> None:
    for name in ("first", "second"):
        postroad("job", "submit", "-", stdin=json.dumps({"tasks": TASKS, "jobId": name}))

    headings, newest, told = postroad("job", "list", "--limit", "1").out.splitlines()
    rest = postroad("job", "list", *told.removeprefix("more: ").split()).out

    assert headings.split() == ["JOB", "STATUS", "TASKS", "CREATED"]
    assert newest.split()[:3] == ["second", "processing", "2"]
    assert rest.splitlines()[1].split()[0] == "first"


def test_a_status_that_no_job_has_is_said_so(postroad: Postroad) -> None:
    postroad("job", "submit", "job.json")

    assert postroad("job", "list", "--status", "completed").out == "no such jobs\n"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"tasks": []}', '{"tasks": [{"taskId": "a", "name": "x", "dependsOn": ["a"]}]}', '{"evil": 1}'],
)
def test_a_file_that_is_no_job_is_exit_2_with_the_reason(text: str, postroad: Postroad) -> None:
    refused = postroad("job", "submit", "-", stdin=text)

    assert refused.code == 2
    assert refused.err.startswith("error: ")


def test_what_is_not_there_is_exit_1_and_a_missing_file_exit_2(postroad: Postroad) -> None:
    postroad("queue", "create", "jobs")

    assert postroad("job", "status", "nobody").code == 1
    assert postroad("job", "graph", "nobody").code == 1
    assert postroad("job", "submit", "nowhere.json").code == 2
    assert postroad("job", "list", "--status", "done").code == 2


def test_a_worker_that_runs_until_idle_brings_a_job_to_its_end(postroad: Postroad) -> None:
    postroad("job", "submit", "job.json")

    assert postroad("worker", "--import", "tests.tasks.chores", "--until-idle").code == 0

    assert postroad("job", "status", "j", "--json").document["status"] == "completed"


def test_a_waiting_task_of_a_job_is_cancelled_and_the_job_shows_it(postroad: Postroad) -> None:
    postroad("job", "submit", "job.json")

    cancelled = postroad("task", "cancel", "j.b", "--confirm", "j.b", "--json")

    assert (cancelled.code, cancelled.document) == (0, {"requestId": "j.b", "cancelled": True})
    assert postroad("task", "cancel", "j.x", "--confirm", "j.x").code == 1
    shown = postroad("job", "status", "j", "--json").document
    assert (shown["status"], shown["progress"]["cancelled"]) == ("partial_failure", 1)
