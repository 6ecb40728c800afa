"""`postroad why` for tasks, jobs and messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import Postroad

from postroad import connect
from postroad.settings import load
from postroad.tasks import DeadLetterHandler, TaskWorker

pytestmark = pytest.mark.slow

FIELDS = {"id", "kind", "verdict", "summary", "steps", "related", "next"}


def work(**options: Any) -> None:
    """Let a worker run what there is, without the other roles."""
    with connect(load().url) as backend:
        TaskWorker(backend, imports=("tests.tasks.chores",), retry_base=0.01, **options).run(until_idle=True)


def test_a_task_is_told_from_its_submission_to_its_end(postroad: Postroad) -> None:
    postroad("task", "submit", "echo", "--request-id", "good", "--input", '{"secret": "x1y2"}')
    postroad("task", "submit", "fail-with", "--request-id", "bad", "--input", '{"type": "ValueError"}')
    waiting = postroad("why", "good", "--json").document
    work()
    done, failed = postroad("why", "good", "--json").document, postroad("why", "bad", "--json").document

    assert set(waiting) == FIELDS
    assert (waiting["id"], waiting["kind"], waiting["verdict"]) == ("good", "task", "waiting")
    assert waiting["next"] == "a worker takes it: postroad worker --load MODULE"
    assert (done["verdict"], done["next"]) == ("completed", "nothing: done")
    assert [step["what"] for step in done["steps"]] == ["Task Pending", "Task Processing Started", "Task Completed"]
    assert set(done["steps"][0]) == {"at", "what", "where", "by", "ok", "detail"}
    assert "x1y2" not in json.dumps(done)
    assert (failed["verdict"], failed["next"]) == ("failed", "run it again: postroad task retry bad")
    assert (failed["steps"][-1]["ok"], failed["steps"][-1]["detail"]) == (False, "validation: ValueError: no")


def test_a_task_whose_message_is_dead_is_told_by_its_dead_letter(postroad: Postroad) -> None:
    postroad("task", "submit", "fail-with", "--request-id", "r", "--input", '{"type": "ConnectionResetError"}')
    work(max_attempts=1)

    dead = postroad("why", "r", "--json").document
    with connect(load().url) as backend:
        DeadLetterHandler(backend).run_once()

    assert dead["verdict"] == "dead"
    assert "tasks-dlq: network: ConnectionResetError: no" in dead["summary"]
    assert "--roles dlq" in dead["next"]
    assert postroad("why", "r", "--json").document["verdict"] == "failed"


def test_a_job_is_told_with_its_tasks_and_a_task_with_its_job(postroad: Postroad) -> None:
    tasks = [{"taskId": "a", "name": "echo"}, {"taskId": "b", "name": "echo", "dependsOn": ["a"]}]
    Path("job.json").write_text(json.dumps({"tasks": tasks, "jobId": "j"}))
    postroad("job", "submit", "job.json")

    job = postroad("why", "j", "--json").document
    postroad("worker", "--import", "tests.tasks.chores", "--until-idle")
    task = postroad("why", "j.b", "--json").document

    assert (job["kind"], job["verdict"]) == ("job", "waiting")
    assert job["next"] == "a worker takes a: postroad worker --load MODULE"
    assert job["related"] == [{"id": name, "relation": "causes", "type": "task"} for name in ("j.a", "j.b")]
    assert task["related"] == [
        {"id": "j", "relation": "caused_by", "type": "job"},
        {"id": "j.a", "relation": "caused_by", "type": "task"},
    ]
    assert "2 of 2 tasks are completed" in postroad("why", "j").out
    assert postroad("why", "j").out.splitlines()[-1] == "next: nothing: done"


def test_nothing_is_promised_for_a_task_that_was_cancelled_with_its_job(postroad: Postroad) -> None:
    Path("job.json").write_text(json.dumps({"tasks": [{"taskId": "a", "name": "echo"}], "jobId": "j"}))
    postroad("job", "submit", "job.json")
    postroad("job", "cancel", "j", "--confirm", "j")

    assert postroad("why", "j.a", "--json").document["next"] == "nothing: its job was cancelled"


def test_a_message_is_told_to_people_with_the_place_of_each_step(postroad: Postroad) -> None:
    postroad("queue", "create", "jobs")
    message_id = postroad("queue", "send", "jobs", "--body", "secret-body", "--json").document["message_id"]

    document = postroad("why", message_id, "--json").document
    lines = postroad("why", message_id).out.splitlines()

    assert (set(document), document["kind"], document["verdict"]) == (FIELDS, "message", "waiting")
    assert lines[0] == f"waiting  message {message_id}: it waits in queue jobs"
    assert lines[1].endswith("✓ sent · jobs")
    assert lines[-1] == "next: a receiver of queue jobs takes it"
    assert "secret-body" not in json.dumps(document)


@pytest.mark.parametrize("name", ["nobody", "not-an-id", "a b#c", "x" * 400])
def test_an_id_that_names_nothing_is_exit_1_with_one_line_and_a_remedy(postroad: Postroad, name: str) -> None:
    postroad("queue", "create", "other")

    outcome = postroad("why", name)

    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("error: nothing is known of")


@pytest.mark.parametrize(
    "look",
    [
        ("why", "nobody"),
        ("task", "status", "nobody"),
        ("task", "history", "nobody"),
        ("task", "cancel", "nobody", "--confirm", "nobody"),
        ("job", "status", "nobody"),
        ("job", "graph", "nobody"),
        ("job", "cancel", "nobody", "--confirm", "nobody"),
        ("job", "list"),
        ("health", "nobody"),
    ],
    ids=" ".join,
)
def test_looking_for_what_is_not_there_makes_no_queue(postroad: Postroad, look: tuple[str, ...]) -> None:
    postroad(*look)

    with connect(load().url) as backend:
        assert backend.queues() == []
