"""How far a task is, as it reports it itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.benches import APP, TENANT, Bench, working
from tests.waiting import eventually

from postroad.journal import TaskProgress
from postroad.tasks import TaskRegistry, TaskWorker
from postroad.tasks.stories import task_story

pytestmark = pytest.mark.slow


def progress(bench: Bench, request_id: str) -> TaskProgress | None:
    return bench.state(request_id).progress


def test_the_progress_of_a_running_task_is_seen_before_its_first_heartbeat(bench: Bench, tmp_path: Path) -> None:
    wait = tmp_path / "wait"
    wait.touch()
    with working(bench, extension_interval=20):
        handle = bench.producer.submit("read-pages", {"wait": str(wait)})
        eventually(lambda: progress(bench, handle.request_id))
        # The second report follows the first at once, and must not be lost.
        eventually(lambda: str(progress(bench, handle.request_id)) == "40% page 4 of 10")
        story = task_story(bench.backend, TENANT, handle.request_id)
        status = handle.status()
        wait.unlink()
        eventually(lambda: bench.state(handle.request_id).state == "completed")

    assert story is not None
    assert story.summary.endswith(": 40% page 4 of 10")
    assert status is not None
    assert str(status.progress) == "40% page 4 of 10"
    assert "Task Heartbeat" not in bench.types(handle.request_id)
    assert progress(bench, handle.request_id) is None


def test_heartbeats_record_the_progress(bench: Bench, tmp_path: Path) -> None:
    wait = tmp_path / "wait"
    wait.touch()
    with working(bench, visibility_extension=1, extension_interval=0.1):
        handle = bench.producer.submit("read-pages", {"wait": str(wait)})
        eventually(lambda: bench.types(handle.request_id).count("Task Heartbeat") > 3)
        wait.unlink()

    beat = bench.last(handle.request_id, "Task Heartbeat")
    assert (beat.properties["progress"]["fraction"], beat.properties["progress"]["message"]) == (0.4, "page 4 of 10")
    then = bench.producer.status(handle.request_id, beat.timestamp)
    assert then is not None
    assert str(then.progress) == "40% page 4 of 10"


def test_a_failed_task_keeps_how_far_it_came_and_its_next_run_begins_anew(bench: Bench) -> None:
    failed = bench.run_one("read-pages", {"fail": True})

    bench.producer.retry(failed.request_id)

    assert str(failed.progress) == "40% page 4 of 10"
    assert progress(bench, failed.request_id) is None


@pytest.mark.parametrize("fraction", [40, -0.1, "half", True])
def test_what_is_no_fraction_fails_the_task_with_the_remedy(steady: Bench, fraction: Any) -> None:
    state = steady.ended("read-pages", {"fraction": fraction})

    assert state.state == "failed"
    assert state.error == f"InvalidTask: progress: {fraction!r} is not a number from 0 to 1"


def test_a_program_reports_its_progress_on_a_line(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    lines = [
        '{"progress": {"fraction": 2}}',
        '{"progress": {"fraction": 0.5, "message": "half"}}',
        '{"lastActivity": {"type": "x"}}',
    ]
    registry = TaskRegistry()
    registry.command("program", [sys.executable, "-c", f"print({chr(10).join(lines)!r}, flush=True); exit(1)"])
    handle = bench.producer.submit("program")

    TaskWorker(bench.backend, registry=registry, tenant_id=TENANT, app=APP).run(until_idle=True)

    assert str(progress(bench, handle.request_id)) == "50% half"
    printed = [line for line in capfd.readouterr().err.splitlines() if line.startswith(handle.request_id)]
    assert printed == [f'{handle.request_id}: {{"progress": {{"fraction": 2}}}}']
