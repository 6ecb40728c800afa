"""Redrive for operators, on memory and on one file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.operations.dead_letters import bodies, bury, make_queues

from postroad.errors import AmbiguousSource, ConfigurationError, InvalidInput, InvalidName, NotSupported, QueueNotFound
from postroad.operations import AuditLog, Match, RedriveReport, redrive, redrive_tasks
from postroad.queues import OutgoingMessage, Queue, QueueSpec
from postroad.wiring import Backend, connect

KILLED = """
import sys
from postroad import failpoints
from postroad.operations import redrive
from postroad.wiring import connect

failpoints.load("queue.redrive.mid=kill9#2")
redrive(connect(sys.argv[1]), "dead", reason="try", actor="ada")
"""
BESIDE = """
import sys
from postroad.operations import redrive
from postroad.wiring import connect

print("ready", flush=True)
sys.stdin.readline()
with connect(sys.argv[1]) as backend:
    print(redrive(backend, "dead", rate=100_000).moved)
"""


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    monkeypatch.setenv("POSTROAD_AUDIT_LOG", str(tmp_path / "audit.jsonl"))
    with connect("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/x.db") as opened:
        yield opened


@pytest.fixture
def jobs(backend: Backend) -> Queue:
    return make_queues(backend)[0]


@pytest.fixture
def dead(backend: Backend, jobs: Queue) -> Queue:
    return backend.queue("dead")


def records() -> list[tuple[str, str]]:
    return [(record.action, record.target) for record in AuditLog().read()]


def handling(queue: Queue) -> Callable[[RedriveReport], None]:
    """A worker who handles all there is whenever the redrive tells how far it is."""

    def work(_: RedriveReport) -> None:
        queue.ack(queue.receive())

    return work


def test_a_redrive_is_recorded_before_and_after(backend: Backend, jobs: Queue, dead: Queue) -> None:
    bury(jobs, "a", "b")

    report = redrive(backend, "dead", match=Match(event_type=None), reason="mended", actor="ada", rate=50)

    start, end = AuditLog().read()
    assert (start.action, start.target, start.actor) == ("queue.redrive.start", "dead", "ada")
    assert (start.detail["reason"], start.detail["rate"], start.detail["run_id"]) == ("mended", 50, report.run_id)
    assert (end.action, end.detail["moved"], end.detail["status"]) == ("queue.redrive.end", 2, "done")
    assert end.detail["destinations"] == {"jobs": 2}
    assert AuditLog().verify().ok


def test_without_a_record_nothing_moves(
    backend: Backend, jobs: Queue, dead: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(jobs, "a")
    monkeypatch.setenv("POSTROAD_AUDIT_LOG", "/nowhere/audit.jsonl")

    with pytest.raises(ConfigurationError, match="cannot be written"):
        redrive(backend, "dead")

    assert bodies(dead) == ["a"]


def test_a_dry_run_says_what_a_run_would_do_and_leaves_no_record(backend: Backend, jobs: Queue, dead: Queue) -> None:
    bury(jobs, "a", "b")
    before = dead.peek()

    report = redrive(backend, "dead", limit=1, dry_run=True)
    real = redrive(backend, "dead", limit=1)

    assert (report.status, report.matched, report.moved, report.destinations) == ("dry_run", 2, 0, {"jobs": 1})
    assert (real.status, real.matched, real.moved, real.destinations) == ("limit", 2, 1, {"jobs": 1})
    assert [message.receive_count for message in before] == [0, 0]
    assert [action for action, _ in records()] == ["queue.redrive.start", "queue.redrive.end"]


def test_a_canary_that_is_handled_lets_the_others_follow(backend: Backend, jobs: Queue, dead: Queue) -> None:
    bury(jobs, *"abcde")
    seen: list[list[str]] = []

    def work(report: RedriveReport) -> None:
        seen.append(bodies(jobs))
        jobs.ack(jobs.receive(max_messages=2))

    report = redrive(backend, "dead", canary=2, canary_wait=30, progress=work)

    assert seen[0] == ["a", "b"]
    assert (report.status, report.matched, report.moved, report.returned) == ("done", 5, 5, 0)
    assert bodies(jobs) == ["c", "d", "e"]


def test_a_canary_that_comes_back_stops_the_run(backend: Backend, jobs: Queue, dead: Queue) -> None:
    bury(jobs, *"abcde")

    def fail(report: RedriveReport) -> None:
        jobs.reject(jobs.receive(max_messages=1), reason="still broken")

    report = redrive(backend, "dead", canary=2, canary_wait=30, progress=fail)

    assert (report.status, report.moved, report.returned) == ("canary_failed", 2, 1)
    assert bodies(dead) == ["c", "d", "e", "a"]
    assert [action for action, _ in records()] == ["queue.redrive.start", "queue.redrive.end"]


def test_a_canary_that_nobody_handles_in_time_stops_the_run(backend: Backend, jobs: Queue, dead: Queue) -> None:
    bury(jobs, *"abc")

    report = redrive(backend, "dead", canary=1, canary_wait=0)

    assert (report.status, report.moved, report.returned) == ("canary_failed", 1, 0)
    assert (bodies(jobs), bodies(dead)) == (["a"], ["b", "c"])


def test_a_canary_that_dies_elsewhere_stops_the_run(backend: Backend, jobs: Queue, dead: Queue) -> None:
    backend.create_queue(QueueSpec("review-dead"))
    review = backend.create_queue(QueueSpec("review", dead_letter="review-dead"))
    bury(jobs, *"abc")

    def fail(report: RedriveReport) -> None:
        review.reject(review.receive(), reason="no")

    report = redrive(backend, "dead", to="review", canary=1, canary_wait=0.1, progress=fail)

    assert (report.status, bodies(dead)) == ("canary_failed", ["b", "c"])


def test_a_canary_larger_than_the_queue_is_all_of_it(backend: Backend, jobs: Queue, dead: Queue) -> None:
    bury(jobs, *"ab")

    report = redrive(backend, "dead", canary=10, canary_wait=30, progress=handling(jobs))

    assert (report.status, report.moved) == ("done", 2)
    assert redrive(backend, "dead", canary=10).status == "done"


def test_a_limit_counts_the_canary_too(backend: Backend, jobs: Queue, dead: Queue) -> None:
    bury(jobs, *"abcde")

    report = redrive(backend, "dead", canary=2, limit=3, canary_wait=30, progress=handling(jobs))

    assert (report.status, report.matched, report.moved) == ("limit", 5, 3)
    assert bodies(dead) == ["d", "e"]


def test_what_comes_back_stops_the_run_and_is_never_sent_twice(backend: Backend, jobs: Queue, dead: Queue) -> None:
    bury(jobs, *(f"{number:02}" for number in range(30)))

    def fail(report: RedriveReport) -> None:
        jobs.reject(jobs.receive(max_messages=5), reason="still broken")

    report = redrive(backend, "dead", rate=10, stop_after=5, progress=fail)

    assert report.status == "returned"
    assert (report.returned, report.moved) == (5, 20)
    assert bodies(dead) == [*(f"{number:02}" for number in range(20, 30)), *(f"{number:02}" for number in range(5))]


def test_ten_attributes_leave_no_room_for_a_marker_and_a_run_still_knows_its_own(
    backend: Backend, jobs: Queue, dead: Queue
) -> None:
    ten = {f"a{number}": "v" for number in range(10)}
    bury(jobs, *"abc", attributes=ten)

    def fail(report: RedriveReport) -> None:
        jobs.reject(jobs.receive(), reason="still broken")

    report = redrive(backend, "dead", rate=1_000_000, canary=1, canary_wait=30, progress=fail)

    assert (report.status, report.returned) == ("canary_failed", 1)
    assert all(message.attributes == ten for message in dead.peek())


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("rate", {"rate": 0}),
        ("rate", {"rate": -1}),
        ("rate", {"rate": float("nan")}),
        ("limit", {"limit": 0}),
        ("stop_after", {"stop_after": None}),
        ("canary", {"canary": -1}),
        ("canary", {"canary": True}),
        ("canary_wait", {"canary_wait": -1}),
        ("canary_wait", {"canary_wait": float("inf")}),
        ("stop_after", {"stop_after": -1}),
        ("max_redrives", {"max_redrives": 0}),
    ],
)
def test_a_number_out_of_range_is_refused_and_nothing_moves(
    backend: Backend, jobs: Queue, dead: Queue, field: str, options: dict[str, Any]
) -> None:
    bury(jobs, "a")

    with pytest.raises(InvalidInput) as refused:
        redrive(backend, "dead", **options)

    assert refused.value.field == field
    assert bodies(dead) == ["a"]
    assert records() == []


@pytest.mark.parametrize(
    ("queue", "to", "error"),
    [
        ("lonely", None, AmbiguousSource),
        ("empty", None, AmbiguousSource),
        ("dead", "dead", InvalidName),
        ("dead", "nowhere", QueueNotFound),
        ("nowhere", None, QueueNotFound),
        ("dead", "a.fifo", ConfigurationError),
    ],
)
def test_a_destination_that_cannot_be_is_refused_before_anything_moves(
    backend: Backend, jobs: Queue, dead: Queue, queue: str, to: str | None, error: type[Exception]
) -> None:
    bury(jobs, "a")
    backend.create_queue(QueueSpec("empty"))
    backend.create_queue(QueueSpec("lonely")).send([OutgoingMessage("x")])
    backend.create_queue(QueueSpec("a.fifo", fifo=True))

    with pytest.raises(error):
        redrive(backend, queue, to=to)

    assert (bodies(dead), bodies(backend.queue("lonely"))) == (["a"], ["x"])
    assert records() == []


def test_dead_letters_of_two_queues_each_go_home(backend: Backend, jobs: Queue, dead: Queue) -> None:
    other = backend.create_queue(QueueSpec("other", dead_letter="dead"))
    bury(jobs, "a")
    bury(other, "b")

    report = redrive(backend, "dead")

    assert report.destinations == {"jobs": 1, "other": 1}
    assert (bodies(jobs), bodies(other)) == (["a"], ["b"])


@pytest.mark.parametrize("marker", [{"DeadLetter": "{"}, {"DeadLetter": '{"source": 1}'}, {"Redrive": "x:y"}])
def test_a_marker_that_is_not_ours_counts_as_absent(
    backend: Backend, jobs: Queue, dead: Queue, marker: dict[str, str]
) -> None:
    dead.send([OutgoingMessage("a", marker)])

    report = redrive(backend, "dead")

    assert report.destinations == {"jobs": 1}
    assert jobs.peek()[0].attributes == {"Redrive": f"1:{report.run_id}"}


def test_only_a_store_that_can_move_by_itself_is_asked_to(backend: Backend, jobs: Queue, dead: Queue) -> None:
    bury(jobs, "a")

    with pytest.raises(NotSupported):
        redrive(backend, "dead", native=True)

    assert redrive_tasks(backend, "dead") == []
    assert bodies(dead) == ["a"]


def test_an_interruption_gets_its_end_in_the_record(backend: Backend, jobs: Queue, dead: Queue) -> None:
    bury(jobs, *(str(number) for number in range(600)))

    def interrupt(report: RedriveReport) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        redrive(backend, "dead", progress=interrupt)

    end = list(AuditLog().read())[-1]
    assert (end.action, end.detail["moved"]) == ("queue.redrive.end", 500)
    assert "KeyboardInterrupt" in end.detail["error"]
    assert redrive(backend, "dead").moved == 100


def test_two_redrives_at_once_move_each_message_once_and_add_up(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    with connect(url) as backend:
        jobs, dead = make_queues(backend)
        texts = [f"{number:04}" for number in range(2_000)]
        bury(jobs, *texts)
        start = threading.Barrier(2)

        def run(_: int) -> RedriveReport:
            with connect(url) as mine:
                start.wait()
                return redrive(mine, "dead", rate=100_000)

        with ThreadPoolExecutor(2) as pool:
            reports = list(pool.map(run, range(2)))

        assert sum(report.moved for report in reports) == 2_000
        assert sum(report.destinations.get("jobs", 0) for report in reports) == 2_000
        assert sorted(bodies(jobs)) == texts
        assert bodies(dead) == []


@pytest.mark.slow
def test_a_redrive_that_was_killed_goes_on_and_the_chain_holds(tmp_path: Path) -> None:
    url, texts = f"sqlite:///{tmp_path}/x.db", [f"{number:04}" for number in range(1_200)]
    with connect(url) as backend:
        bury(make_queues(backend)[0], *texts)
    environment = {**os.environ, "POSTROAD_AUDIT_LOG": str(tmp_path / "audit.jsonl")}

    killed = subprocess.run([sys.executable, "-c", KILLED, url], env=environment, check=False, timeout=60)
    with connect(url) as backend:
        halves = [bodies(backend.queue(name)) for name in ("jobs", "dead")]
        log = AuditLog(tmp_path / "audit.jsonl")
        begun = [record.action for record in log.read()]
        report = redrive(backend, "dead")
        after = bodies(backend.queue("jobs"))

    assert killed.returncode == -signal.SIGKILL
    assert halves == [texts[:1_000], texts[1_000:]]
    assert begun == ["queue.redrive.start"]
    assert log.verify().ok
    assert (report.moved, after) == (200, texts)


@pytest.mark.slow
def test_two_processes_redrive_one_queue_and_their_counts_add_up(tmp_path: Path) -> None:
    url, texts = f"sqlite:///{tmp_path}/x.db", [f"{number:04}" for number in range(3_000)]
    environment = {**os.environ, "POSTROAD_AUDIT_LOG": str(tmp_path / "audit.jsonl")}
    command = [sys.executable, "-c", BESIDE, url]
    with connect(url) as backend:
        bury(make_queues(backend)[0], *texts)
        beside = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert beside.stdout is not None
        beside.stdout.readline()
        assert beside.stdin is not None
        beside.stdin.write("go\n")
        beside.stdin.flush()
        mine = redrive(backend, "dead", rate=100_000).moved
        theirs = int(beside.communicate(timeout=120)[0])
        after = bodies(backend.queue("jobs"))

    assert mine + theirs == 3_000
    assert sorted(after) == texts
