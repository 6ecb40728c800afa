"""Workers run tasks and write down what becomes of them."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.benches import APP, TENANT, Bench, lines, working
from tests.waiting import eventually

from postroad import Backend, OutgoingMessage
from postroad.errors import Unavailable
from postroad.journal import AppendResult, Journal, JournalEvent
from postroad.queues.markers import read_dead
from postroad.tasks import TaskProducer, TaskRegistry, TaskWorker, task

pytestmark = pytest.mark.slow

here = TaskRegistry()


@task("defined-here", registry=here)
def defined_here(input: dict[str, Any], ctx: Any) -> Any:
    return {"from": __name__}


def test_a_task_runs_in_a_child_and_its_result_is_recorded(steady: Bench) -> None:
    state = steady.ended("echo", {"n": [1, None, "ü"]})

    completed = steady.last(state.request_id, "Task Completed")
    started = steady.last(state.request_id, "Task Processing Started")
    assert (state.state, state.attempt, state.output) == ("completed", 1, {"n": [1, None, "ü"]})
    assert steady.types(state.request_id) == ["Task Pending", "Task Processing Started", "Task Completed"]
    assert completed.properties["exitCode"] == 0
    assert completed.properties["durationMs"] >= 0
    assert started.properties["attemptNumber"] == started.properties["run"] == started.properties["token"] == 1
    assert abs(started.properties["startedAt"] - started.timestamp) < 1_000
    assert started.properties["workerId"] == started.context["workerId"]
    assert started.context["origin"] == "sqs-worker"
    assert started.properties["effectiveUntil"] >= started.timestamp / 1000 + 45
    queue = steady.backend.queue("tasks")
    eventually(lambda: (stats := queue.stats()).visible + stats.in_flight + stats.delayed == 0)


def test_the_context_tells_which_attempt_of_which_run_it_is(steady: Bench) -> None:
    before = time.time()

    state = steady.ended("show-context", timeout=30)

    shown = state.output
    assert 0 < shown.pop("deadline") - before <= 60
    assert shown == {
        "request_id": state.request_id,
        "name": "show-context",
        "tenant_id": TENANT,
        "run": 1,
        "attempt": 1,
        "token": 1,
        "job_id": None,
        "task_id": None,
    }


def test_what_a_task_used_is_recorded(steady: Bench) -> None:
    state = steady.ended("use-tokens")

    usage = steady.last(state.request_id, "Task Completed").properties["usage"]
    assert usage == {"inputTokens": 7, "outputTokens": 1}


def test_a_task_of_a_registry_of_ones_own_is_found_by_children(on_sqlite: Backend) -> None:
    bench = Bench(on_sqlite)
    handle = bench.producer.submit("defined-here")

    TaskWorker(bench.backend, registry=here, tenant_id=TENANT, app=APP).run(until_idle=True)

    assert bench.state(handle.request_id).output["from"].endswith("test_worker")


def test_the_tenant_of_the_message_decides_under_which_the_task_runs(steady: Bench) -> None:
    other = TaskProducer(steady.backend, tenant_id="other", app=APP)
    handle = other.submit("show-context")

    eventually(lambda: (found := other.status(handle.request_id)) and found.state == "completed")

    state = other.status(handle.request_id)
    assert state is not None
    assert state.output["tenant_id"] == "other"
    assert steady.producer.status(handle.request_id) is None


def test_an_error_that_may_pass_is_tried_again(steady: Bench) -> None:
    state = steady.ended("retry-until", {"attempt": 3})

    failed = steady.last(state.request_id, "Task Processing Failed")
    assert (state.state, state.attempt, state.output) == ("completed", 3, {"attempt": 3})
    assert (failed.properties["attemptNumber"], failed.properties["errorCategory"]) == (2, "rate-limit")
    assert failed.properties["error"] == "not yet"
    assert steady.types(state.request_id).count("Task Processing Started") == 3


def test_an_error_that_stays_fails_the_task_at_once(steady: Bench) -> None:
    state = steady.ended("fail-with", {"type": "ValueError", "message": "no such store"})

    failed = steady.last(state.request_id, "Task Failed")
    assert (state.state, state.attempt, state.error_category) == ("failed", 1, "validation")
    assert failed.properties["error"] == "ValueError: no such store"
    assert (failed.properties["source"], failed.properties["retryCount"]) == ("worker", 1)
    assert steady.types(state.request_id).count("Task Processing Started") == 1
    assert steady.backend.queue("tasks-dlq").stats().visible == 0


def test_an_errors_text_is_cut_and_free_of_control_characters(steady: Bench) -> None:
    state = steady.ended("give-up")

    assert state.error is not None
    assert (state.error_category, len(state.error)) == ("auth", 500)
    assert state.error.startswith("never [31m x")
    assert state.error.isprintable()


def test_after_the_last_attempt_a_task_is_moved_to_the_dead_letters_and_fails_there(bench: Bench) -> None:
    handle = bench.producer.submit("fail-with", {"type": "ConnectionResetError"})

    bench.work(max_attempts=2)

    assert bench.state(handle.request_id).state == "processing"
    [letter] = bench.backend.queue("tasks-dlq").peek()
    dead = read_dead(letter.attributes)
    assert dead is not None
    assert (dead.reason, dead.error) == ("max attempts", "ConnectionResetError: no")
    assert bench.bury() == 1
    assert bench.bury() == 0
    failed = bench.last(handle.request_id, "Task Failed")
    assert failed.properties["error"].startswith("Max retries exhausted")
    assert failed.properties["errorCategory"] == "max-retries"
    assert (failed.properties["source"], failed.properties["retryCount"]) == ("dlq", 2)
    assert failed.context["origin"] == "dlq-processor"
    assert bench.types(handle.request_id).count("Task Processing Started") == 2
    assert bench.backend.queue("tasks-dlq").stats().visible == 0


def test_a_tasks_own_limit_of_attempts_counts_before_the_workers(on_sqlite: Backend) -> None:
    bench = Bench(on_sqlite)
    registry = TaskRegistry()
    registry.command("flaky", ["sh", "-c", "exit 75"], max_attempts=4)
    handle = bench.producer.submit("flaky")

    TaskWorker(bench.backend, registry=registry, tenant_id=TENANT, app=APP, retry_base=0.01).run(until_idle=True)

    assert bench.types(handle.request_id).count("Task Processing Started") == 4


def test_a_result_that_json_cannot_hold_fails_the_task_after_one_attempt(steady: Bench) -> None:
    kinds = ("set", "nan", "bytes", "surrogate", "deep", "self")

    states = [steady.ended("return-what-json-cannot-hold", {"kind": kind}) for kind in kinds]

    assert {(state.state, state.attempt, state.error_category) for state in states} == {("failed", 1, "validation")}
    assert all("result" in str(state.error) for state in states)


def test_a_result_above_the_limit_fails_the_task_after_one_attempt(on_sqlite: Backend) -> None:
    bench = Bench(on_sqlite)
    state = bench.run_one("return-megabytes", {"size": 2_000}, max_output_bytes=1_000)

    assert (state.state, state.attempt, state.error_category) == ("failed", 1, "validation")
    assert "above the limit" in str(state.error)


def test_a_large_result_and_a_large_input_arrive_whole(steady: Bench) -> None:
    large = "ü" * 1_500_000

    assert steady.ended("echo", {"large": large}).output == {"large": large}


def test_several_tasks_run_at_a_time(steady: Bench, tmp_path: Path) -> None:
    notes, go = tmp_path / "notes", tmp_path / "go"
    handles = [steady.producer.submit("wait-for-file", {"notes": str(notes), "until": str(go)}) for _ in range(3)]

    eventually(lambda: len(lines(notes)) == 3)
    go.touch()
    eventually(lambda: all(steady.state(handle.request_id).state == "completed" for handle in handles))

    assert len({line.split()[1] for line in lines(notes)}) == 3


def test_a_heartbeat_keeps_message_and_lease_and_tells_how_the_child_is(bench: Bench, tmp_path: Path) -> None:
    notes, go = tmp_path / "notes", tmp_path / "go"
    handle = bench.producer.submit("report-activity", {"notes": str(notes), "until": str(go)})
    worker = bench.worker(visibility_extension=0.6, extension_interval=0.2)
    running = threading.Thread(target=lambda: worker.run(until_idle=True))
    running.start()

    eventually(lambda: bench.types(handle.request_id).count("Task Heartbeat") >= 6)
    go.touch()
    running.join()

    beats = [event.properties for event in bench.producer.history(handle.request_id)][2:-1]
    pid = int(lines(notes)[0].split()[1])
    assert [beat["heartbeatNumber"] for beat in beats] == list(range(1, len(beats) + 1))
    assert all(one["elapsedMs"] < other["elapsedMs"] for one, other in itertools.pairwise(beats))
    assert all(beat["memoryUsage"]["rss"] > 1_000_000 and beat["processId"] == pid for beat in beats)
    assert beats[-1]["lastActivity"]["stepName"] == "fonts"
    assert beats[-1]["effectiveUntil"] > beats[0]["effectiveUntil"]
    assert bench.types(handle.request_id).count("Task Processing Started") == 1
    assert bench.state(handle.request_id).state == "completed"


def test_a_child_that_never_stops_talking_keeps_its_lease(on_sqlite: Backend, tmp_path: Path) -> None:
    notes, go, bench = tmp_path / "notes", tmp_path / "go", Bench(on_sqlite)
    handle = bench.producer.submit("chatter", {"notes": str(notes), "until": str(go)})
    with working(bench, visibility_extension=0.6, extension_interval=0.2):
        eventually(lambda: bench.types(handle.request_id).count("Task Heartbeat") >= 4)
        go.touch()
        eventually(lambda: bench.state(handle.request_id).state == "completed")

    assert len(lines(notes)) == 1
    activity = bench.last(handle.request_id, "Task Heartbeat").properties["lastActivity"]
    assert (activity["type"], activity["stepName"]) == ("step_running", "x" * 200)


def test_a_running_task_that_is_cancelled_is_killed_and_what_it_returns_is_dropped(
    bench: Bench, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    handle = bench.producer.submit("sleep", {"notes": str(notes)})
    worker = bench.worker(visibility_extension=0.6, extension_interval=0.1)
    running = threading.Thread(target=lambda: worker.run(until_idle=True))
    running.start()
    eventually(lambda: lines(notes))

    assert bench.producer.cancel(handle.request_id) is True
    running.join()

    kept = [kind for kind in bench.types(handle.request_id) if kind != "Task Heartbeat"]
    assert kept == ["Task Pending", "Task Processing Started", "Task Cancelled"]
    assert bench.state(handle.request_id).state == "cancelled"


def send(backend: Backend, body: Any, **attributes: str) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    backend.queue("tasks").send([OutgoingMessage(text, {"tenantId": TENANT, **attributes})])


UNNAMED = (
    "not json",
    "[]",
    "{}",
    '"x"',
    {"name": "echo"},
    {"requestId": "a b", "name": "echo"},
    {"requestId": 7},
    {"requestId": "a#b", "name": "echo", "run": 1},
    {"requestId": "a", "name": "echo", "run": "x"},
    "[" * 5_000,
)


def test_messages_that_name_no_task_go_to_the_dead_letters_and_stay_there(bench: Bench) -> None:
    letters = bench.backend.queue("tasks-dlq")
    for body in UNNAMED:
        send(bench.backend, body)

    bench.work()

    found = letters.peek(limit=100)
    assert len(found) == len(UNNAMED)
    assert {dead.reason for letter in found if (dead := read_dead(letter.attributes))} == {"not a task"}
    assert bench.bury() == 0
    assert letters.stats().visible == 0
    assert len(letters.peek(limit=100)) == len(UNNAMED)
    assert bench.backend.journal().query("PK", tenant=TENANT).events == []


UNFIT: tuple[dict[str, Any], ...] = (
    {"name": "os:system"},
    {"name": "no-such-task"},
    {"name": 7},
    {"input": [1]},
    {"timeoutMs": 0},
    {"timeoutMs": 43_200_001},
)


def test_a_message_that_names_a_task_and_cannot_be_run_fails_that_task(bench: Bench) -> None:
    for number, changes in enumerate(UNFIT):
        send(bench.backend, {"requestId": f"r{number}", "name": "echo", "input": {}, "run": 1, **changes})

    bench.work()

    letters = bench.backend.queue("tasks-dlq").peek(limit=100)
    failed = [bench.last(f"r{number}", "Task Failed").properties for number in range(len(UNFIT))]
    failures = {(one["errorCategory"], one["source"], one["retryCount"]) for one in failed}
    assert failures == {("validation", "worker", 0)}
    assert all((dead := read_dead(letter.attributes)) and dead.reason for letter in letters)
    assert [bench.types(f"r{number}") for number in range(len(UNFIT))] == [["Task Failed"]] * len(UNFIT)
    assert bench.bury() == 0
    assert bench.backend.queue("tasks-dlq").stats().visible == 0


def test_a_message_of_an_impossible_tenant_goes_to_the_dead_letters(bench: Bench) -> None:
    send(bench.backend, {"requestId": "r1", "name": "echo", "run": 1}, tenantId="a/b")

    bench.work()

    assert bench.backend.queue("tasks-dlq").stats().visible == 1


def test_a_message_that_comes_twice_runs_once(bench: Bench, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    handle = bench.producer.submit("note", {"notes": str(notes)})
    [message] = bench.backend.queue("tasks").peek()
    bench.backend.queue("tasks").send([OutgoingMessage(message.body, message.attributes)] * 3)

    bench.work(visibility_extension=0.6, extension_interval=0.2)

    assert len(lines(notes)) == 1
    assert bench.types(handle.request_id) == ["Task Pending", "Task Processing Started", "Task Completed"]


def test_a_message_of_an_older_run_is_forgotten(steady: Bench) -> None:
    failed = steady.ended("fail-with", {"type": "ValueError"})
    steady.producer.retry(failed.request_id)
    eventually(lambda: steady.types(failed.request_id).count("Task Failed") == 2)
    send(steady.backend, {"requestId": failed.request_id, "name": "echo", "run": 1})

    queue = steady.backend.queue("tasks")
    eventually(lambda: (stats := queue.stats()).visible + stats.in_flight + stats.delayed == 0)

    assert steady.state(failed.request_id).run == 2
    assert steady.types(failed.request_id).count("Task Processing Started") == 2


class DownJournal:
    """A journal that takes nothing until it is repaired."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.is_down = True

    def append(self, events: Sequence[JournalEvent]) -> list[AppendResult]:
        if self.is_down:
            raise Unavailable("no journal at the moment")
        return self._journal.append(events)


@pytest.mark.parametrize("large", [10, 400_000])
def test_a_journal_that_is_down_makes_no_finished_child_run_again(large: int, bench: Bench, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    handle = bench.producer.submit("note", {"notes": str(notes), "padding": "x" * large})
    down = DownJournal(bench.backend.journal())
    with working(bench, journal=down):
        eventually(lambda: lines(notes))
        eventually(lambda: bench.backend.queue("tasks").peek()[0].receive_count > 1)

        down.is_down = False
        eventually(lambda: bench.state(handle.request_id).state == "completed")

    assert len(lines(notes)) == 1
    assert bench.types(handle.request_id) == ["Task Pending", "Task Processing Started", "Task Completed"]
    assert bench.state(handle.request_id).output == {"attempt": 1}


def test_a_large_result_survives_a_journal_that_is_down(bench: Bench) -> None:
    handle = bench.producer.submit("return-megabytes", {"size": 400_000})
    down = DownJournal(bench.backend.journal())
    with working(bench, journal=down):
        eventually(lambda: (found := bench.backend.queue("tasks").peek()) and found[0].receive_count > 1)

        down.is_down = False
        eventually(lambda: bench.state(handle.request_id).state == "completed")

    assert bench.state(handle.request_id).output == "x" * 400_000


def test_events_of_two_workers_tell_them_apart(on_sqlite: Backend) -> None:
    bench = Bench(on_sqlite)
    handle = bench.producer.submit("echo")

    bench.work(worker_id="worker-7")

    assert bench.last(handle.request_id, "Task Completed").context["workerId"] == "worker-7"
