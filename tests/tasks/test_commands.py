"""Programs as tasks: one JSON document in, the last line out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.tasks.benches import Bench, working
from tests.waiting import NEVER_SECONDS

import postroad
from postroad.tasks import TaskRegistry

pytestmark = pytest.mark.slow

programs = TaskRegistry()


def program(*command: str, **settings: Any) -> str:
    """Register a command; the name under which the one worker of all these tests knows it."""
    name = f"program-{len(programs.names())}"
    programs.command(name, list(command), **settings)
    return name


def shell(script: str) -> str:
    return program("sh", "-c", script)


def python(script: str) -> str:
    return program(sys.executable, "-c", script)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One store is enough: the output of a program does not depend on it."""
    # No lease ends before the test does, however late its heartbeats are: the one attempt would count as lost.
    options: dict[str, Any] = {"max_attempts": 1, "visibility_extension": NEVER_SECONDS, "extension_interval": 0.2}
    with postroad.connect(f"sqlite:///{tmp_path_factory.mktemp('commands') / 'tasks.db'}") as backend:
        with working(Bench(backend), registry=programs, imports=(), **options) as bench:
            yield bench


TELL_ALL = python("import json, sys; print('working'); print(json.dumps({'output': json.load(sys.stdin)})); print()")


def test_a_command_reads_one_document_and_its_last_line_is_the_result(bench: Bench) -> None:
    state = bench.ended(TELL_ALL, {"n": 1}, request_id="r1")

    assert state.state == "completed"
    assert state.output == {
        "requestId": "r1",
        "taskId": None,
        "jobId": None,
        "name": TELL_ALL,
        "run": 1,
        "attempt": 1,
        "token": 1,
        "input": {"n": 1},
        "dependencyOutputs": {},
    }


SILENT = [
    program("printf", f"{printed}\n")
    for printed in ("", "done", "[1]", '{"result": 1}', '{"output": NaN}', '{"output": 1', "\\377")
]


@pytest.mark.parametrize("name", SILENT)
def test_a_command_without_a_result_completes_with_none(name: str, bench: Bench) -> None:
    state = bench.ended(name)

    assert (state.state, state.output) == ("completed", None)


FRUGAL = shell("""echo '{"output": [1], "usage": {"inputTokens": 5}}'""")


COSTLY = program("printf", """{"output": [1], "usage": {"inputTokens": 5, "costUsd": 0.25}}\n""")


def test_what_else_a_command_used_is_kept(bench: Bench) -> None:
    state = bench.ended(COSTLY)

    completed = bench.last(state.request_id, "Task Completed").properties
    assert (completed["output"], completed["usage"]) == ([1], {"inputTokens": 5, "costUsd": 0.25})


VAIN = program("printf", """{"output": 1, "usage": "much"}\n""", max_attempts=3)


def test_a_use_that_is_none_does_not_lose_the_result_in_silence(bench: Bench) -> None:
    state = bench.ended(VAIN)

    assert (state.state, state.attempt, state.error_category) == ("failed", 1, "validation")


def test_a_command_tells_what_it_used(bench: Bench) -> None:
    state = bench.ended(FRUGAL)

    completed = bench.last(state.request_id, "Task Completed").properties
    assert (completed["output"], completed["usage"]) == ([1], {"inputTokens": 5})


ODD = program("printf", """{"output": 1, "usage": {"inputTokens": -1}}\n""", max_attempts=3)


def test_a_result_that_the_journal_refuses_fails_the_task_after_one_attempt(bench: Bench) -> None:
    state = bench.ended(ODD)

    assert (state.state, state.attempt, state.error_category) == ("failed", 1, "validation")


DEAF = shell("""echo '{"output": "fine"}'""")


def test_a_command_that_does_not_read_its_input_is_no_trouble(bench: Bench) -> None:
    state = bench.ended(DEAF, {"large": "x" * 900_000})

    assert state.output == "fine"


MEASURE = python("import json, sys; print(json.dumps({'output': len(json.load(sys.stdin)['input']['large'])}))")


def test_a_large_document_arrives_whole(bench: Bench) -> None:
    assert bench.ended(MEASURE, {"large": "x" * 900_000}).output == 900_000


@pytest.mark.parametrize(
    ("name", "category", "error"),
    [
        (shell("echo 'connect ECONNREFUSED' >&2; exit 1"), "network", "connect ECONNREFUSED"),
        (shell("""echo '{"error": "no", "status": 401}' >&2; exit 1"""), "auth", "no"),
        (shell("""echo '{"error": "gone", "code": "ENOENT"}' >&2; exit 2"""), "not-found", "gone"),
        (shell("echo first >&2; echo 'Invalid API key' >&2; echo >&2; exit 9"), "auth", "Invalid API key"),
        (shell("exit 4"), "unknown", "exit code 4"),
        (shell("echo busy >&2; exit 75"), "server-error", "busy"),
        (shell("""echo '{"output": 1}'; exit 1"""), "unknown", "exit code 1"),
    ],
)
def test_a_failed_command_is_told_apart_by_its_last_words(name: str, category: str, error: str, bench: Bench) -> None:
    state = bench.ended(name)

    retryable = category in ("network", "server-error")
    event = bench.last(state.request_id, "Task Processing Failed" if retryable else "Task Failed")
    assert state.state == "failed"
    assert (event.properties["errorCategory"], event.properties["error"]) == (category, error)


ABSENT = program("no-such-program")


def test_a_program_that_is_not_there_fails_the_task(bench: Bench) -> None:
    state = bench.ended(ABSENT)

    assert (state.state, state.error_category) == ("failed", "not-found")


KILLED = shell("echo bye; kill -SEGV $$")


def test_a_command_that_is_killed_by_others_crashed(bench: Bench) -> None:
    state = bench.ended(KILLED)

    crash = bench.last(state.request_id, "Task Failed").properties["crash"]
    assert state.error_category == "crash"
    assert (crash["cause"], crash["signal"], crash["lastLines"]) == ("segv", "SIGSEGV", ["bye"])


LARGE = python("import json; print(json.dumps({'output': 'x' * 5_300_000}))")


def test_a_result_above_the_limit_fails_the_task(bench: Bench) -> None:
    state = bench.ended(LARGE)

    assert (state.state, state.error_category) == ("failed", "validation")


FLOOD = shell(
    "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | head -c 20000000; yes | head -c 20000000 >&2; echo; "
    """echo '{"output": "dry"}'"""
)


def test_a_flood_before_the_result_is_read_and_dropped(bench: Bench) -> None:
    assert bench.ended(FLOOD).output == "dry"


DEAF_TO_SIGTERM = shell("trap '' TERM; sleep 60 & wait; sleep 60")


def test_a_command_that_takes_too_long_is_ended(bench: Bench) -> None:
    state = bench.ended(DEAF_TO_SIGTERM, timeout=0.5)

    event = bench.last(state.request_id, "Task Timeout").properties
    assert state.state == "failed"
    assert (event["timeoutMs"], event["signal"]) == (500, "SIGKILL")
    assert event["elapsedMs"] >= 800


ACTIVE = shell(
    """echo '{"lastActivity": {"type": "waiting", "stepName": "pages", "timestamp": 1707300540}}'; sleep 1"""
)


def test_an_activity_that_a_command_prints_reaches_the_heartbeat(bench: Bench) -> None:
    state = bench.ended(ACTIVE)

    activity = bench.last(state.request_id, "Task Heartbeat").properties["lastActivity"]
    assert activity == {"type": "waiting", "stepName": "pages", "timestamp": 1707300540}
