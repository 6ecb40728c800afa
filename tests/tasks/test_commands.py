"""Programs as tasks: one JSON document in, the last line out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.tasks.benches import APP, TENANT, Bench

from postroad import Backend
from postroad.journal.folding import TaskState
from postroad.tasks import TaskRegistry, TaskWorker

Run = Callable[..., TaskState]


@pytest.fixture
def bench(on_sqlite: Backend) -> Bench:
    """One ground is enough: what a program prints does not know where it is recorded."""
    return Bench(on_sqlite)


@pytest.fixture
def run_command(bench: Bench) -> Run:
    def run(command: list[str], input: dict[str, Any] | None = None, **options: Any) -> TaskState:
        registry = TaskRegistry()
        registry.command("program", command)
        handle = bench.producer.submit("program", input, request_id="r1")
        given = {"max_attempts": 1, "kill_grace": 0.3, **options}
        TaskWorker(bench.backend, registry=registry, tenant_id=TENANT, app=APP, **given).run(until_idle=True)
        bench.bury()
        return bench.state(handle.request_id)

    return run


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_a_command_reads_one_document_and_its_last_line_is_the_result(run_command: Run) -> None:
    script = "import json, sys; print('working'); print(json.dumps({'output': json.load(sys.stdin)})); print()"

    state = run_command(python(script), {"n": 1})

    assert state.state == "completed"
    assert state.output == {
        "requestId": "r1", "taskId": None, "jobId": None, "name": "program", "run": 1, "attempt": 1, "token": 1,
        "input": {"n": 1}, "dependencyOutputs": {},
    }  # fmt: skip


@pytest.mark.parametrize("printed", ["", "done", "[1]", '{"result": 1}', '{"output": NaN}', '{"output": 1', "\\377"])
def test_a_command_without_a_result_completes_with_none(printed: str, run_command: Run) -> None:
    state = run_command(["printf", f"{printed}\n"])

    assert (state.state, state.output) == ("completed", None)


def test_a_command_tells_what_it_used(run_command: Run, bench: Bench) -> None:
    run_command(shell("""echo '{"output": [1], "usage": {"inputTokens": 5}}'"""))

    completed = bench.last("r1", "Task Completed").properties
    assert (completed["output"], completed["usage"]) == ([1], {"inputTokens": 5})


def test_a_result_that_the_journal_refuses_fails_the_task_after_one_attempt(run_command: Run) -> None:
    odd = """{"output": 1, "usage": {"inputTokens": -1}}"""

    state = run_command(["printf", f"{odd}\n"], max_attempts=3)

    assert (state.state, state.attempt, state.error_category) == ("failed", 1, "validation")


def test_a_command_that_does_not_read_its_input_is_no_trouble(run_command: Run) -> None:
    state = run_command(shell("""echo '{"output": "fine"}'"""), {"large": "x" * 900_000})

    assert state.output == "fine"


def test_a_large_document_arrives_whole(run_command: Run) -> None:
    script = "import json, sys; print(json.dumps({'output': len(json.load(sys.stdin)['input']['large'])}))"

    assert run_command(python(script), {"large": "x" * 900_000}).output == 900_000


@pytest.mark.parametrize(
    ("script", "category", "error"),
    [
        ("echo 'connect ECONNREFUSED' >&2; exit 1", "network", "connect ECONNREFUSED"),
        ("""echo '{"error": "no", "status": 401}' >&2; exit 1""", "auth", "no"),
        ("""echo '{"error": "gone", "code": "ENOENT"}' >&2; exit 2""", "not-found", "gone"),
        ("echo first >&2; echo 'Invalid API key' >&2; echo >&2; exit 9", "auth", "Invalid API key"),
        ("exit 4", "unknown", "exit code 4"),
        ("echo busy >&2; exit 75", "server-error", "busy"),
        ("""echo '{"output": 1}'; exit 1""", "unknown", "exit code 1"),
    ],
)
def test_a_failed_command_is_told_apart_by_its_last_words(
    script: str, category: str, error: str, run_command: Run, bench: Bench
) -> None:
    state = run_command(shell(script))

    retryable = category in ("network", "server-error")
    event = bench.last("r1", "Task Processing Failed" if retryable else "Task Failed")
    assert state.state == "failed"
    assert (event.properties["errorCategory"], event.properties["error"]) == (category, error)


def test_a_program_that_is_not_there_fails_the_task(run_command: Run) -> None:
    state = run_command(["no-such-program"])

    assert (state.state, state.error_category) == ("failed", "not-found")


def test_a_command_that_is_killed_by_others_crashed(run_command: Run, bench: Bench) -> None:
    state = run_command(shell("echo bye; kill -SEGV $$"))

    crash = bench.last("r1", "Task Failed").properties["crash"]
    assert state.error_category == "crash"
    assert (crash["cause"], crash["signal"], crash["lastLines"]) == ("segv", "SIGSEGV", ["bye"])


def test_a_result_above_the_limit_fails_the_task(run_command: Run) -> None:
    script = "import json; print(json.dumps({'output': 'x' * 5000}))"

    state = run_command(python(script), max_output_bytes=1_000)

    assert (state.state, state.error_category) == ("failed", "validation")


def test_a_flood_before_the_result_is_read_and_dropped(run_command: Run) -> None:
    script = "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | head -c 20000000; yes | head -c 20000000 >&2; echo; "

    assert run_command(shell(script + """echo '{"output": "dry"}'""")).output == "dry"


def test_a_command_that_takes_too_long_is_ended(run_command: Run, bench: Bench) -> None:
    state = run_command(shell("trap '' TERM; sleep 60 & wait; sleep 60"), timeout=0.5)

    event = bench.last("r1", "Task Timeout").properties
    assert state.state == "failed"
    assert (event["timeoutMs"], event["signal"]) == (500, "SIGKILL")
    assert event["elapsedMs"] >= 800


def test_an_activity_that_a_command_prints_reaches_the_heartbeat(run_command: Run, bench: Bench) -> None:
    script = """echo '{"lastActivity": {"type": "waiting", "stepName": "pages", "timestamp": 1707300540}}'; sleep 1"""

    run_command(shell(script), visibility_extension=1.0, extension_interval=0.2)

    activity = bench.last("r1", "Task Heartbeat").properties["lastActivity"]
    assert activity == {"type": "waiting", "stepName": "pages", "timestamp": 1707300540}
