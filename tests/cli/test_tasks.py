"""`postroad task` and `postroad worker`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.terminal import PROGRAM, Postroad

pytestmark = pytest.mark.slow

TASKS = """
from postroad.tasks import task

@task("double")
def double(input, ctx):
    return {"doubled": 2 * input["n"]}

@task("fail")
def fail(input, ctx):
    raise ValueError("no\\x1b[31m")

@task("reset")
def reset(input, ctx):
    raise ConnectionResetError("gone")

@task("sleep")
def sleep(input, ctx):
    import time
    time.sleep(60)
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A module of tasks in the working directory."""
    path = tmp_path / "shop_tasks.py"
    path.write_text(TASKS)
    return path


def work(postroad: Postroad, *options: str) -> None:
    done = postroad("worker", "--import", "shop_tasks", "--until-idle", "--retry-base", "0.01", *options)
    assert done.code == 0, done.err


def test_the_queues_of_tasks_are_made(postroad: Postroad) -> None:
    first, again = postroad("task", "init", "--json"), postroad("task", "init")

    assert first.document == {"ready": True, "queues": ["tasks-dlq", "tasks", "tasks-dispatch"]}
    assert again.code == 0


def test_a_task_is_submitted_run_and_shown(postroad: Postroad, tasks: Path) -> None:
    submitted = postroad("task", "submit", "double", "--input", '{"n": 21}')
    request_id = submitted.out.strip()

    work(postroad)

    status = postroad("task", "status", request_id, "--json").document
    assert status.pop("lastEventAt") > 10**12
    assert status == {
        "requestId": request_id,
        "state": "completed",
        "run": 1,
        "attempt": 1,
        "lastEventType": "Task Completed",
        "jobId": None,
        "taskId": None,
        "output": {"doubled": 42},
        "error": None,
        "errorCategory": None,
    }
    history = postroad("task", "history", request_id, "--json").document
    assert history["next_cursor"] is None
    assert [item["eventType"] for item in history["items"]] == [
        "Task Pending",
        "Task Processing Started",
        "Task Completed",
    ]
    assert '{"doubled": 42}' in postroad("task", "status", request_id).out
    assert "Task Completed" in postroad("task", "history", request_id).out


def test_the_same_request_again_is_told_as_such(postroad: Postroad) -> None:
    first = postroad("task", "submit", "double", "--request-id", "r1", "--json").document
    again = postroad("task", "submit", "double", "--request-id", "r1", "--json").document
    other = postroad("task", "submit", "double", "--request-id", "r1", "--input", '{"n": 1}')

    assert first == {"requestId": "r1", "state": "pending", "run": 1, "created": True}
    assert again == {"requestId": "r1", "state": "pending", "run": 1, "created": False}
    assert other.code == 1


def test_an_input_comes_from_a_file_or_stdin(postroad: Postroad, tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "input.json").write_text('{"n": 1}')
    postroad("task", "submit", "double", "--request-id", "file", "--input", "@input.json")
    postroad("task", "submit", "double", "--request-id", "stdin", "--input", "-", stdin='{"n": 2}')

    work(postroad)

    outputs = [postroad("task", "status", name, "--json").document["output"] for name in ("file", "stdin")]
    assert outputs == [{"doubled": 2}, {"doubled": 4}]


@pytest.mark.parametrize(
    "args",
    [
        ["task", "submit", "os:system"],
        ["task", "submit", "a/b"],
        ["task", "submit", "x" * 65],
        ["task", "submit", "double", "--input", "[1]"],
        ["task", "submit", "double", "--input", "5"],
        ["task", "submit", "double", "--input", '{"n": 1e999}'],
        ["task", "submit", "double", "--input", "not json"],
        ["task", "submit", "double", "--input", "@missing.json"],
        ["task", "submit", "double", "--request-id", "a.b"],
        ["task", "submit", "double", "--request-id", "a b"],
        ["task", "cancel", "r1"],
        ["worker"],
        ["worker", "--import", "x", "--timeout", "0"],
        ["worker", "--import", "x", "--concurrency", "0"],
        ["worker", "--import", "x", "--max-attempts", "0"],
        ["worker", "--import", "x", "--visibility-extension", "10"],
        ["worker", "--import", "x", "--roles", "cook"],
        ["worker", "--import", "x", "--roles", ","],
        ["worker", "--import", "no_such_module", "--until-idle"],
    ],
)
def test_wrong_input_is_exit_2_and_nothing_is_submitted(args: list[str], postroad: Postroad) -> None:
    postroad("task", "submit", "double", "--request-id", "r1")

    outcome = postroad(*args)

    assert (outcome.code, outcome.out) == (2, "")
    assert 2 <= len(outcome.err.splitlines()) <= 3
    assert postroad("queue", "show", "tasks", "--json").document["visible"] == 1


@pytest.mark.parametrize("args", ["status nobody", "history nobody", "retry nobody", "cancel nobody --confirm nobody"])
def test_an_unknown_task_is_exit_1(args: str, postroad: Postroad) -> None:
    postroad("queue", "create", "other")

    outcome = postroad("task", *args.split())

    assert outcome.code == 1
    assert "nobody" in outcome.err


def test_a_failed_task_is_shown_without_its_escape_characters_and_retried(postroad: Postroad, tasks: Path) -> None:
    postroad("task", "submit", "fail", "--request-id", "r1")
    work(postroad)

    shown = postroad("task", "status", "r1")
    retried = postroad("task", "retry", "r1", "--json").document

    assert "validation: ValueError: no" in shown.out
    assert "\x1b" not in shown.out
    assert retried == {"requestId": "r1", "state": "pending", "run": 2, "created": True}
    assert postroad("task", "retry", "r1").code == 1


def test_dead_letters_are_handled_by_the_same_worker(postroad: Postroad, tasks: Path) -> None:
    postroad("task", "submit", "reset", "--request-id", "r1")

    work(postroad, "--max-attempts", "2")

    status = postroad("task", "status", "r1", "--json").document
    assert (status["state"], status["attempt"], status["errorCategory"]) == ("failed", 2, "max-retries")


def test_a_worker_with_other_roles_only_runs_no_task(postroad: Postroad) -> None:
    postroad("task", "submit", "double", "--request-id", "r1")

    done = postroad("worker", "--roles", "dlq,reconciler", "--until-idle", "--json")

    assert (done.code, done.document) == (0, {"stopped": True, "worker": None})
    assert postroad("task", "status", "r1", "--json").document["state"] == "pending"


def test_a_task_is_cancelled_once_confirmed(postroad: Postroad) -> None:
    postroad("task", "submit", "double", "--request-id", "r1")

    cancelled = postroad("task", "cancel", "r1", "--confirm", "r1", "--json")
    again = postroad("task", "cancel", "r1", "--confirm", "r1", "--json")

    assert (cancelled.code, cancelled.document) == (0, {"requestId": "r1", "cancelled": True})
    assert (again.code, again.document) == (1, {"requestId": "r1", "cancelled": False})
    assert postroad("task", "status", "r1", "--json").document["state"] == "cancelled"


def test_a_state_is_shown_as_it_was(postroad: Postroad) -> None:
    postroad("task", "submit", "double", "--request-id", "r1")

    assert postroad("task", "status", "r1", "--at", "1000000000000").code == 1


def test_a_worker_program_stops_clean_on_sigterm(postroad: Postroad, tasks: Path) -> None:
    postroad("task", "submit", "sleep", "--request-id", "r1")
    command = [*PROGRAM, "worker", "--import", "shop_tasks", "--drain-timeout", "0.1", "--json"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ))

    deadline = time.monotonic() + 20
    while postroad("task", "status", "r1", "--json").document["state"] != "processing":
        assert time.monotonic() < deadline
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=20)

    assert running.returncode == 0, err
    assert json.loads(out)["stopped"] is True
    assert postroad("task", "status", "r1", "--json").document["state"] == "pending"
    assert any(b"worker_stopped" in line for line in err.splitlines())


ENDS = """
import sys
from postroad.jobs import JobDispatcher
JobDispatcher.reconcile = lambda self: sys.exit(0)
sys.argv = ["postroad", "worker", *sys.argv[1:]]
from postroad.cli import main
main()
"""


@pytest.mark.parametrize("roles", [(), ("--roles", "dispatcher")])
def test_a_worker_program_exits_with_1_when_the_thread_of_its_roles_ends(
    roles: tuple[str, ...], postroad: Postroad, tasks: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS, "--import", "shop_tasks", *roles], capture_output=True, text=True, timeout=60
    )

    assert ended.returncode == 1, ended.stderr
    assert "worker_roles_ended" in ended.stderr
