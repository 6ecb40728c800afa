"""Workers that are killed, paused and stopped: attempts, tokens and outcomes stay right, and nothing lives on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.benches import APP, TENANT, Bench, is_alive, lines, ours
from tests.tasks.processes import worker
from tests.waiting import eventually

from postroad import Backend
from postroad.journal.states import TERMINAL
from postroad.tasks import Reconciler

pytestmark = pytest.mark.slow

SHORT: dict[str, Any] = {"visibility_extension": 1.0, "extension_interval": 0.3}


@pytest.fixture
def bench(on_sqlite: Backend) -> Bench:
    return Bench(on_sqlite)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def terminals(bench: Bench, request_id: str) -> list[str]:
    return [kind for kind in bench.types(request_id) if kind in TERMINAL]


def wait_for_lines(notes: Path, wanted: int) -> None:
    eventually(lambda: len(lines(notes)) == wanted)


def kill(pid: int) -> list[int]:
    """Kill a worker and return its former descendants."""
    descendants = ours(pid)
    os.kill(pid, signal.SIGKILL)
    return descendants


def test_nothing_of_a_killed_worker_lives_two_seconds_later(bench: Bench, notes: Path) -> None:
    bench.producer.submit("leave-grandchildren", {"notes": str(notes), "then": "hang"})
    bench.producer.submit("ignore-sigterm", {"notes": str(notes)})
    bench.producer.submit("sleep", {"notes": str(notes)})
    with worker(bench.backend.url) as running:
        eventually(lambda: len(lines(notes)) == 5)

        descendants = kill(running.pid)

        eventually(lambda: not any(map(is_alive, [*descendants, *map(int, lines(notes))])))
    assert len(descendants) >= 8


def test_nothing_of_a_killed_worker_with_an_exec_d_program_lives_on(bench: Bench, notes: Path) -> None:
    bench.producer.submit("count-up-freshly")
    bench.producer.submit("sleep", {"notes": str(notes)})
    with worker(bench.backend.url, child_reuse=5) as running:
        eventually(lambda: lines(notes))

        descendants = kill(running.pid)

        eventually(lambda: not any(map(is_alive, descendants)))


def test_a_killed_workers_task_runs_again_after_the_lease_with_a_higher_token(
    bench: Bench, notes: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    handle = bench.producer.submit("wait-for-file", {"notes": str(notes), "until": str(go)})
    with worker(bench.backend.url, **SHORT) as first:
        eventually(lambda: lines(notes))
        kill(first.pid)
    go.touch()

    bench.work(**SHORT)

    state = bench.state(handle.request_id)
    assert (state.state, state.attempt, state.output) == ("completed", 2, {"token": 2})
    assert terminals(bench, handle.request_id) == ["Task Completed"]


def test_a_task_whose_workers_are_all_lost_is_quarantined_and_not_run(bench: Bench, notes: Path) -> None:
    handle = bench.producer.submit("sleep", {"notes": str(notes)})
    for attempt in (1, 2):
        with worker(bench.backend.url, **SHORT) as running:
            wait_for_lines(notes, attempt)
            kill(running.pid)

    bench.work(max_attempts=2, **SHORT)

    bench.bury()
    failed = bench.last(handle.request_id, "Task Failed").properties
    assert (failed["errorCategory"], failed["retryCount"]) == ("crash", 2)
    assert failed["crash"] == {
        "cause": "worker-lost",
        "signal": None,
        "exitCode": None,
        "peakRssBytes": None,
        "lastLines": [],
        "lastActivity": None,
    }
    assert failed["error"].startswith("Max retries exhausted")
    assert len(lines(notes)) == 2
    assert terminals(bench, handle.request_id) == ["Task Failed"]


@pytest.mark.parametrize("ends", ["during the pause", "after it"])
def test_a_worker_paused_past_its_lease_changes_nothing_when_it_wakes(
    ends: str, bench: Bench, notes: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    handle = bench.producer.submit("wait-for-file", {"notes": str(notes), "until": str(go)})
    with worker(bench.backend.url, **SHORT) as paused:
        eventually(lambda: lines(notes))
        os.kill(paused.pid, signal.SIGSTOP)
        with worker(bench.backend.url, **SHORT):
            eventually(lambda: len(lines(notes)) == 2)
            if ends == "during the pause":
                go.touch()
                eventually(lambda: bench.state(handle.request_id).state == "completed")
            os.kill(paused.pid, signal.SIGCONT)
            first = int(lines(notes)[0].split()[1])
            eventually(lambda: not is_alive(first))
            go.touch()
            eventually(lambda: bench.state(handle.request_id).state == "completed")
    state = bench.state(handle.request_id)
    assert (state.attempt, state.output) == (2, {"token": 2})
    assert terminals(bench, handle.request_id) == ["Task Completed"]
    assert state.stale == []


def test_a_stopped_worker_lets_children_finish(bench: Bench, notes: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    running_task = bench.producer.submit("wait-for-file", {"notes": str(notes), "until": str(go)})
    with worker(bench.backend.url, concurrency=1) as running:
        eventually(lambda: lines(notes))
        waiting = bench.producer.submit("echo")
        running.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        go.touch()

        assert running.wait(120) == 0

    assert bench.state(running_task.request_id).state == "completed"
    assert bench.state(waiting.request_id).state == "pending"
    stats = bench.backend.queue("tasks").stats()
    assert (stats.visible, stats.in_flight) == (1, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_does_not_finish_in_time_is_interrupted_and_costs_no_attempt(
    number: signal.Signals, bench: Bench, notes: Path
) -> None:
    handle = bench.producer.submit("sleep", {"notes": str(notes), "seconds": 60})
    with worker(bench.backend.url, drain_timeout=0.2) as running:
        eventually(lambda: lines(notes))
        running.send_signal(number)

        assert running.wait(120) == 0

    assert bench.types(handle.request_id) == ["Task Pending", "Task Processing Started", "Task Interrupted"]
    assert bench.state(handle.request_id).state == "pending"
    assert bench.backend.queue("tasks").stats().visible == 1
    assert not is_alive(int(lines(notes)[0]))
    bench.work(max_attempts=1, timeout=0.2)
    started = bench.last(handle.request_id, "Task Processing Started").properties
    assert (started["attemptNumber"], started["token"]) == (1, 2)
    assert terminals(bench, handle.request_id) == ["Task Timeout"]


def test_a_second_signal_kills_at_once_with_the_same_bookkeeping(bench: Bench, notes: Path) -> None:
    handle = bench.producer.submit("ignore-sigterm", {"notes": str(notes)})
    with worker(bench.backend.url, drain_timeout=60, kill_grace=60) as running:
        eventually(lambda: lines(notes))
        running.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        running.send_signal(signal.SIGTERM)

        assert running.wait(120) == 0

    assert bench.types(handle.request_id)[-1] == "Task Interrupted"
    assert bench.backend.queue("tasks").stats().visible == 1
    assert not is_alive(int(lines(notes)[0]))


def test_a_worker_killed_between_start_and_result_is_made_good(bench: Bench, notes: Path) -> None:
    handle = bench.producer.submit("note", {"notes": str(notes)})
    with worker(bench.backend.url, failpoints="worker.before_result=kill9", **SHORT) as running:
        assert running.wait(120) == -signal.SIGKILL

    bench.work(**SHORT)

    state = bench.state(handle.request_id)
    assert (state.state, state.attempt) == ("completed", 2)
    assert len(lines(notes)) == 2
    assert terminals(bench, handle.request_id) == ["Task Completed"]


def test_a_worker_killed_right_after_the_order_is_made_good(bench: Bench, notes: Path) -> None:
    handle = bench.producer.submit("note", {"notes": str(notes)})
    with worker(bench.backend.url, failpoints="worker.after_spawn=kill9", **SHORT) as running:
        assert running.wait(120) == -signal.SIGKILL

    bench.work(**SHORT)

    assert (bench.state(handle.request_id).state, bench.state(handle.request_id).attempt) == ("completed", 2)


def test_many_workers_that_keep_dying_end_every_task_once(bench: Bench, notes: Path) -> None:
    handles = [bench.producer.submit("note", {"notes": str(notes), "n": n}) for n in range(24)]
    patient = {**SHORT, "max_attempts": 10}
    for number in (7, 4):
        failpoints = f"worker.before_result=kill9#{number}"
        with worker(bench.backend.url, failpoints=failpoints, **patient) as one:
            with worker(bench.backend.url, failpoints=failpoints, **patient) as other:
                one.wait(120)
                other.wait(120)

    bench.work(**patient)
    bench.bury()

    for handle in handles:
        state = bench.state(handle.request_id)
        starts = bench.types(handle.request_id).count("Task Processing Started")
        tokens = [e.properties["token"] for e in bench.producer.history(handle.request_id) if "token" in e.properties]
        assert state.state == "completed"
        assert len(terminals(bench, handle.request_id)) == 1
        assert starts == state.attempt
        assert tokens == sorted(tokens)


def test_a_restarted_worker_costs_no_attempt_however_often(bench: Bench, notes: Path) -> None:
    handle = bench.producer.submit("sleep", {"notes": str(notes), "seconds": 60})
    for restart in (1, 2):
        with worker(bench.backend.url, drain_timeout=0, max_attempts=1) as running:
            wait_for_lines(notes, restart)
            running.send_signal(signal.SIGTERM)
            assert running.wait(120) == 0

    assert bench.types(handle.request_id).count("Task Interrupted") == 2
    assert bench.state(handle.request_id).state == "pending"
    assert Reconciler(bench.backend, tenant_id=TENANT, app=APP, stale_after=0).run_once() == 0


def test_a_signal_to_the_whole_service_costs_no_attempt(bench: Bench, notes: Path) -> None:
    handle = bench.producer.submit("sleep", {"notes": str(notes)})
    with worker(bench.backend.url) as running:
        eventually(lambda: lines(notes))
        for pid in [*ours(running.pid), running.pid]:
            os.kill(pid, signal.SIGTERM)

        assert running.wait(120) == 0

    assert bench.types(handle.request_id) == ["Task Pending", "Task Processing Started", "Task Interrupted"]
    assert bench.backend.queue("tasks").stats().visible == 1
