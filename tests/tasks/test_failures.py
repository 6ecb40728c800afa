"""What a failed attempt leaves behind: in the log, in the journal and on the worker's standard error."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
from tests.tasks.benches import APP, TENANT, Bench

from postroad.errors import ConfigurationError
from postroad.journal.events import TaskFailed
from postroad.tasks import TaskRegistry, TaskWorker
from postroad.tasks.stories import task_story


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The fields of all log lines of this name."""
    return [record.msg for record in caplog.records if isinstance(record.msg, dict) and record.msg["event"] == event]


def test_the_line_of_a_failed_task_has_the_error_with_its_place(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "postroad.tasks"):
        bench.run_one("fail-loudly")

    (line,) = lines(caplog, "task_failed")
    assert line["error"] == "ValueError: no such order, password=*** [chores.py:place]"
    assert (line["attempt"], line["task"]) == (1, "fail-loudly")
    assert line["traceback"][1].endswith("in fail_loudly")
    assert line["traceback"][-1] == "ValueError: no such order, password=***"
    assert sorted(line["last_lines"]) == ["api_key=***", "looking for the order"]
    assert lines(caplog, "task_traceback") == []


def test_the_line_of_a_failed_group_names_what_is_in_it(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "postroad.tasks"):
        state = bench.run_one("fail-together")

    (line,) = lines(caplog, "task_failed")
    members = "ValueError: no such order, password=***; KeyError: 'x'; ValueError: 3"
    assert line["error"] == f"ExceptionGroup: several (2 sub-exceptions): {members} [chores.py:fail_together]"
    assert state.error == f"ExceptionGroup: several (2 sub-exceptions): {members}"


def test_the_lines_of_retries_tell_which_attempt_and_when_the_next_one_is(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "postroad.tasks"):
        bench.run_one("fail-loudly", {"again": True}, max_attempts=2)

    (retried,), (quarantined,), (dead,) = (lines(caplog, f"task_{what}") for what in ("retried", "quarantined", "dead"))
    assert retried["error"] == quarantined["error"] == "Retryable: no such order, password=*** [chores.py:place]"
    assert (retried["attempt"], quarantined["attempt"], dead["attempt"]) == (1, 2, 2)
    assert 0 < retried["retry_in_seconds"] <= 0.05
    assert dead["error"].startswith("Max retries exhausted")
    for line in (retried, quarantined, dead):
        assert any("in place" in each for each in line["traceback"])
        assert "looking for the order" in line["last_lines"]


def test_tracebacks_are_logged_at_debug_and_redacted(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "postroad.tasks"):
        bench.run_one("fail-loudly")

    (line,) = lines(caplog, "task_traceback")
    assert "in place" in line["traceback"]
    assert "hunter22" not in caplog.text


def test_traceback_and_last_lines_are_in_the_journal(bench: Bench) -> None:
    handle = bench.producer.submit("fail-loudly", {"again": True})

    bench.work(max_attempts=2)
    bench.bury()

    history = bench.producer.history(handle.request_id)
    failed = [event for event in history if event.event_type in ("Task Processing Failed", "Task Failed")]
    assert len(failed) == 3
    for event in failed:
        step = event.properties
        assert step["traceback"][-1].endswith("Retryable: no such order, password=***")
        assert step["traceback"][1].endswith("in fail_loudly")
        assert len(step["traceback"]) <= 20
        assert sorted(step["lastLines"]) == ["api_key=***", "looking for the order"]
        assert "crash" not in step


def test_a_task_that_is_killed_for_its_time_leaves_its_last_lines(bench: Bench) -> None:
    state = bench.run_one("linger", timeout=0.3)

    assert bench.last(state.request_id, "Task Timeout").properties["lastLines"] == ["still here"]


def test_the_state_of_a_failed_task_tells_where_and_what_it_printed(bench: Bench) -> None:
    failed, hung = bench.run_one("fail-loudly"), bench.run_one("linger", timeout=0.3)

    assert failed.traceback[-1] == "ValueError: no such order, password=***"
    assert len(failed.traceback) <= 20
    assert sorted(failed.last_lines) == ["api_key=***", "looking for the order"]
    assert (hung.error_category, hung.last_lines) == ("timeout", ["still here"])


def test_the_state_of_a_completed_task_forgets_its_failed_attempts(bench: Bench) -> None:
    handle = bench.producer.submit("fail-loudly", {"again": True, "until": 2})
    bench.work()

    state = bench.state(handle.request_id)

    assert (state.state, state.attempt) == ("completed", 2)
    assert (state.error, state.traceback, state.last_lines) == (None, [], [])


def test_a_story_shows_what_a_failed_attempt_raised_and_printed(bench: Bench) -> None:
    state = bench.run_one("fail-loudly")

    story = task_story(bench.backend, TENANT, state.request_id)

    assert story is not None
    step = story.to_dict()["steps"][-1]
    assert "looking for the order" in step["lastLines"]
    assert any("in place" in line for line in step["traceback"])
    assert set(story.to_dict()["steps"][0]) == {"at", "what", "where", "by", "ok", "detail"}


def test_what_a_task_prints_goes_to_standard_error_with_its_request_id(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    state = bench.run_one("fail-loudly")

    printed = capfd.readouterr().err.splitlines()
    assert f"{state.request_id}: looking for the order" in printed
    assert f"{state.request_id}: api_key=***" in printed


def test_the_result_of_a_program_is_not_printed(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    registry = TaskRegistry()
    script = 'print(\'at work\'); print(\'{"lastActivity": {"type": "x"}}\'); print(\'{"output": "secret"}\')'
    registry.command("program", [sys.executable, "-c", script])
    handle = bench.producer.submit("program")

    TaskWorker(bench.backend, registry=registry, tenant_id=TENANT, app=APP).run(until_idle=True)

    assert bench.state(handle.request_id).output == "secret"
    printed = [line for line in capfd.readouterr().err.splitlines() if line.startswith(handle.request_id)]
    assert printed == [f"{handle.request_id}: at work"]


def test_dropped_output_is_kept_in_the_journal_only(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    state = bench.run_one("fail-loudly", task_output="drop")

    assert "looking for the order" not in capfd.readouterr().err
    assert "looking for the order" in state.last_lines


def test_inherited_output_is_printed_as_it_is(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    state = bench.run_one("fail-loudly", task_output="inherit")

    printed = capfd.readouterr().err.splitlines()
    assert {"looking for the order", "api_key=abcdef123456"} <= set(printed)
    assert not any(line.startswith(state.request_id) for line in printed)
    assert "api_key=***" in state.last_lines


def test_an_unknown_way_of_output_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="task_output: 'loud' is not one of log, inherit, drop"):
        bench.worker(task_output="loud")


@pytest.mark.parametrize("name", ["sleep-a-little", "sleep-anew"])
def test_an_async_task_runs_to_its_end(bench: Bench, name: str) -> None:
    state = bench.run_one(name)

    assert (state.state, state.output) == ("completed", {"slept": state.request_id})


def test_an_async_task_that_fails_tells_where(bench: Bench) -> None:
    state = bench.run_one("sleep-a-little", {"fail": True})

    step = bench.last(state.request_id, "Task Failed").properties
    assert (step["error"], step["errorCategory"]) == ("ValueError: no", "validation")
    assert step["traceback"][1].endswith("in sleep_a_little")


def test_the_class_of_a_failure_has_both() -> None:
    assert {"traceback", "last_lines"} <= set(TaskFailed.__struct_fields__)


def test_an_error_whose_text_cannot_be_made_fails_the_task_as_any_other(bench: Bench) -> None:
    state = bench.run_one("fail-without-words")

    assert (state.state, state.error_category, state.attempt) == ("failed", "unknown", 1)
    assert state.error == "Unspeakable: (its text cannot be shown: __str__ raises RuntimeError)"
    assert state.traceback[1].endswith("in fail_without_words")
