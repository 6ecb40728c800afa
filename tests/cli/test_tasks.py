"""`postroad task` and `postroad worker`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest
from tests.cli.terminal import PROGRAM, Postroad
from tests.waiting import eventually

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
    done = postroad("worker", "--load", "shop_tasks", "--until-idle", "--retry-base", "0.01", *options)
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
        ["worker", "--import", "x", "--child-reuse", "0"],
        ["worker", "--import", "x", "--pass-env", "A B"],
        ["worker", "--import", "x", "--task-output", "loud"],
        ["worker", "--import", "x", "--queue", "a", "--queue", "a"],
        ["task", "list", "--state", "faild"],
        ["task", "list", "--since", "yesterday"],
        ["task", "retry"],
        ["task", "retry", "r1", "--state", "failed"],
        ["task", "retry", "--state", "completed", "--yes"],
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
    out, err = running.communicate(timeout=120)

    assert running.returncode == 0, err
    assert json.loads(out)["stopped"] is True
    assert postroad("task", "status", "r1", "--json").document["state"] == "pending"
    assert any(b"worker_stopped" in line for line in err.splitlines())


def test_a_failed_task_tells_where_and_what_it_printed(postroad: Postroad, tasks: Path) -> None:
    postroad("task", "submit", "fail", "--request-id", "r1")
    work(postroad)

    status = postroad("task", "status", "r1", "--json").document

    assert status["traceback"][-1].startswith("ValueError: no")
    assert "shop_tasks.py" in "".join(status["traceback"])
    assert "shop_tasks.py" in postroad("task", "status", "r1").out


def test_tasks_are_listed_by_state_and_name(postroad: Postroad, tasks: Path) -> None:
    for name, request_id in (("double", "r1"), ("fail", "r2"), ("double", "r3")):
        postroad("task", "submit", name, "--request-id", request_id, "--input", '{"n": 1}')
    work(postroad)
    postroad("task", "submit", "double", "--request-id", "r4", "--input", '{"n": 2}')

    def ids(*options: str) -> list[str]:
        return [item["requestId"] for item in postroad("task", "list", *options, "--json").document["items"]]

    assert ids() == ["r4", "r3", "r2", "r1"]
    assert ids("--state", "failed", "--since", "1h") == ["r2"]
    assert ids("--name", "double", "--state", "pending") == ["r4"]
    shown = postroad("task", "list", "--limit", "1").out
    assert "r4" in shown
    assert "double" in shown
    cursor = postroad("task", "list", "--limit", "1", "--json").document["next_cursor"]
    assert ids("--cursor", cursor) == ["r3", "r2", "r1"]
    assert "no such tasks" in postroad("task", "list", "--state", "cancelled").out


def test_a_list_goes_on_until_it_finds_a_task_or_has_seen_all(
    postroad: Postroad, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.tasks.listing._MOST_EXAMINED", 1)
    for request_id in ("r1", "r2", "r3"):
        postroad("task", "submit", "double", "--request-id", request_id)
    for request_id in ("r2", "r3"):
        postroad("task", "cancel", request_id, "--confirm", request_id)

    found = postroad("task", "list", "--state", "pending", "--json").document

    assert ([item["requestId"] for item in found["items"]], found["next_cursor"]) == (["r1"], None)


def test_waiting_for_a_task_shows_how_it_ended(postroad: Postroad, tasks: Path) -> None:
    for name, request_id in (("double", "good"), ("fail", "bad")):
        postroad("task", "submit", name, "--request-id", request_id, "--input", '{"n": 1}')
    late = postroad("task", "wait", "good", "--timeout", "0.1")
    work(postroad)

    good, bad = postroad("task", "wait", "good", "--json"), postroad("task", "wait", "bad", "--json")

    assert (late.code, "still pending" in late.out) == (1, True)
    assert (good.code, good.document["state"], good.document["output"]) == (0, "completed", {"doubled": 2})
    assert (bad.code, bad.document["state"]) == (1, "failed")
    assert postroad("task", "wait", "nobody").code == 1


def test_many_failed_tasks_are_retried_once_confirmed(postroad: Postroad, tasks: Path) -> None:
    for number in range(3):
        postroad("task", "submit", "fail", "--request-id", f"r{number}")
    nothing = postroad("task", "retry", "--state", "failed")
    work(postroad)

    refused = postroad("task", "retry", "--state", "failed")
    dry = postroad("task", "retry", "--state", "failed", "--name", "fail", "--dry-run", "--json").document
    some = postroad("task", "retry", "--state", "failed", "--yes", "--limit", "2", "--json").document
    rest = postroad("task", "retry", "--state", "failed", "--yes", "--reason", "mended")

    assert (nothing.code, nothing.out.strip()) == (0, "there is nothing to retry")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert (dry["status"], dry["matched"], dry["retried"]) == ("dry_run", 3, 0)
    assert (some["status"], some["retried"]) == ("limit", 2)
    assert (rest.code, rest.out.strip()) == (0, "retried 1 task")
    audit = postroad("audit", "list", "--json").document["items"]
    assert {"task.retry.start", "task.retry.end"} <= {record["action"] for record in audit}
    assert [postroad("task", "status", f"r{number}", "--json").document["run"] for number in range(3)] == [2, 2, 2]


def test_a_worker_takes_its_options_from_the_file_and_runs_several_queues(
    postroad: Postroad, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "postroad.toml").write_text('[tasks]\nqueues = ["tasks", "slow"]\npass_env = ["SHOP_*"]\n')
    tasks.write_text(TASKS + '\n@task("see")\ndef see(input, ctx):\n    import os\n    return os.environ["SHOP_KEY"]\n')
    monkeypatch.setenv("SHOP_KEY", "k")
    postroad("task", "submit", "see", "--request-id", "r1", "--queue", "slow")
    postroad("task", "submit", "see", "--request-id", "r2")

    work(postroad)

    assert [postroad("task", "status", name, "--json").document["output"] for name in ("r1", "r2")] == ["k", "k"]


def test_the_output_of_tasks_is_printed_as_wanted(postroad: Postroad, tasks: Path) -> None:
    tasks.write_text('from postroad.tasks import task\n@task("say")\ndef say(input, ctx):\n    print("hello there")\n')
    printed = {}
    for mode in ("log", "inherit", "drop"):
        postroad("task", "submit", "say", "--request-id", mode)
        command = [*PROGRAM, "worker", "--import", "shop_tasks", "--until-idle", "--task-output", mode]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        printed[mode] = [line for line in done.stderr.splitlines() if "hello there" in line]

    assert printed == {"log": ["log: hello there"], "inherit": ["hello there"], "drop": []}


def test_a_worker_program_runs_changed_code_without_a_restart(postroad: Postroad, tasks: Path) -> None:
    code = 'from postroad.tasks import task\n\n@task("say")\ndef say(input, ctx):\n    return "{}"\n'
    tasks.write_text(code.format("old"))
    command = [*PROGRAM, "worker", "--import", "shop_tasks", "--reload", "--json"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ))
    ids = count()

    def said() -> object:
        request_id = f"r{next(ids)}"
        postroad("task", "submit", "say", "--request-id", request_id)
        return postroad("task", "wait", request_id, "--timeout", "60s", "--json").document["output"]

    try:
        before = said()
        tasks.write_text(code.format("new code"))
        eventually(lambda: said() == "new code")
    finally:
        running.terminate()
        _, err = running.communicate(timeout=120)

    assert before == "old"
    assert running.returncode == 0, err
    assert b"worker_reloaded" in err


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
