"""The zygote of a worker: it is replaced when it dies, and its death costs no task an attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.tasks.benches import Bench, is_alive, lines, ours, parent_of, working
from tests.tasks.test_children import order, output, pool, ready, report, run
from tests.waiting import eventually

from postroad import Backend
from postroad.errors import ConfigurationError
from postroad.tasks.pool import ChildPool
from postroad.tasks.processes import RESULT
from postroad.tasks.registry import TaskRegistry, default_tasks
from postroad.tasks.task_child import rehearse
from postroad.tasks.verdicts import Completed, verdict_of

pytestmark = pytest.mark.slow


def test_a_zygote_that_ends_before_it_reads_its_plan_is_a_configuration_error() -> None:
    made = ChildPool((), imports=(), environment={"PYTHONHOME": "/nowhere"}, child_reuse=1, max_output_bytes=100_000)

    with pytest.raises(ConfigurationError, match="it ended at once"):
        made.start()

    made.close()


def test_a_zygote_loads_only_what_its_children_need() -> None:
    program = "import sys, postroad.tasks.zygote; from postroad.tasks import TaskContext, task; print(*sys.modules)"

    loaded = set(subprocess.check_output([sys.executable, "-c", program], text=True).split())

    heavy = {"journal", "queues", "engine", "settings", "telemetry", "tasks.worker", "tasks.producer"}
    assert not loaded & {f"postroad.{name}" for name in heavy}
    assert not loaded & {"apsw", "logging", "random", "subprocess", "multiprocessing"}


def test_a_running_task_keeps_its_directory_when_the_zygote_is_replaced() -> None:
    before = set(ours(os.getpid()))
    registry = TaskRegistry()
    registry.command("slow", ["sh", "-c", 'sleep 1; touch here && echo \'{"output": "kept"}\''])
    with pool(registry) as made:
        slot = made.slot()
        ready(slot)
        (zygote,) = [pid for pid in set(ours(os.getpid())) - before if parent_of(pid) == os.getpid()]
        slot.order(order("slow"))

        os.kill(zygote, 9)
        eventually(lambda: not is_alive(zygote))
        other = made.slot()

        assert verdict_of(report(slot), is_command=True) == Completed("kept", None)
        assert output(run(other, "echo")) == {}
        slot.close()
        other.close()


def test_a_zygote_that_dies_is_started_again(tmp_path: Path) -> None:
    before = set(ours(os.getpid()))
    with pool() as made:
        slot = made.slot()
        ready(slot)
        (zygote,) = [pid for pid in set(ours(os.getpid())) - before if parent_of(pid) == os.getpid()]

        os.kill(zygote, 9)
        slot.close()
        eventually(lambda: not is_alive(zygote))
        other = made.slot()

        assert output(run(other, "echo")) == {}
        other.close()


def test_a_zygote_that_dies_under_a_running_task_costs_no_attempt(on_sqlite: Backend, tmp_path: Path) -> None:
    notes, go, bench = tmp_path / "notes", tmp_path / "go", Bench(on_sqlite)
    before = set(ours(os.getpid()))
    with working(bench, concurrency=1):
        running = bench.producer.submit("wait-for-file", {"notes": str(notes), "until": str(go)})
        eventually(lambda: lines(notes))
        (zygote,) = [pid for pid in set(ours(os.getpid())) - before if parent_of(pid) == os.getpid()]

        os.kill(zygote, 9)
        eventually(lambda: not is_alive(zygote))
        go.touch()
        following = bench.ended("echo", {"n": 1})

    assert (bench.state(running.request_id).state, bench.state(running.request_id).attempt) == ("completed", 1)
    assert (following.output, following.attempt) == ({"n": 1}, 1)
    eventually(lambda: not set(ours(os.getpid())) - before)


def test_a_zygote_that_dies_under_an_idle_worker_costs_no_attempt(on_sqlite: Backend) -> None:
    bench, before = Bench(on_sqlite), set(ours(os.getpid()))
    with working(bench, concurrency=1, max_attempts=1):
        bench.ended("echo", {"n": 1})
        processes = set(ours(os.getpid())) - before
        (zygote,) = [pid for pid in processes if parent_of(pid) == os.getpid()]

        os.kill(zygote, 9)
        eventually(lambda: not any(is_alive(pid) for pid in processes))
        following = bench.ended("echo", {"n": 2})

    assert (following.state, following.attempt, following.output) == ("completed", 1, {"n": 2})


def test_tasks_that_cannot_be_loaded_name_the_line_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_tasks.py").write_text("import postroad\nimport no_such_driver\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = ChildPool((), imports=("broken_tasks",), environment={}, child_reuse=1, max_output_bytes=100_000)

    with pytest.raises(ConfigurationError, match=r"No module named 'no_such_driver' \[broken_tasks\.py, line 2\]"):
        made.start()

    made.close()


def test_a_worker_that_dies_while_its_tasks_are_imported_leaves_no_directory(tmp_path: Path) -> None:
    (tmp_path / "slow_tasks.py").write_text(
        "import pathlib, time\n"
        "pathlib.Path('importing').touch()\n"
        "while not pathlib.Path('go').exists():\n"
        "    time.sleep(0.01)\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "postroad", "worker", "--load", "slow_tasks"]
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as worker:
        eventually(lambda: (tmp_path / "importing").exists() and list(scratch.iterdir()))
        worker.kill()

    (tmp_path / "go").touch()

    eventually(lambda: not list(scratch.iterdir()))


def test_a_rehearsal_runs_its_tasks_and_leaves_nothing_behind(capfd: pytest.CaptureFixture[str]) -> None:
    before = default_tasks.names(), dict(os.environ), Path.cwd()

    replies = rehearse()

    assert {reply[:1] for reply in replies} == {RESULT}
    assert {msgspec.json.decode(reply[1:])["output"] for reply in replies} == {None, 1}
    assert (default_tasks.names(), dict(os.environ), Path.cwd()) == before
    assert capfd.readouterr() == ("", "")
