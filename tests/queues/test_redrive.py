"""Redrive on both stores of its own process: the rules that do not depend on the adapter."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.memory import memory_queues

from postroad import failpoints
from postroad.engine.engine import Engine
from postroad.errors import (
    AmbiguousSource,
    ConfigurationError,
    InvalidInput,
    InvalidName,
    NotSupported,
    QueueNotFound,
    Unavailable,
)
from postroad.queues import Match, OutgoingMessage, Queue, QueueSpec, RedriveReport, fingerprint, purge, redrive
from postroad.queues.markers import read_dead, redriven_by, redrives
from postroad.queues.port import QueueStore
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing.clock import FakeClock

KILLED_REDRIVE = """
import sys
from pathlib import Path
from postroad import failpoints
from postroad.engine.engine import Engine
from postroad.queues import redrive
from postroad.queues.sqlite import SQLiteQueues

failpoints.load("queue.redrive.mid=kill9")
redrive(SQLiteQueues(Engine(Path(sys.argv[1]))), "dead")
"""
TEN = {f"attribute{n}": "v" for n in range(10)}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> Iterator[QueueStore]:
    if request.param == "memory":
        yield memory_queues(clock)
        return
    engine = Engine(tmp_path / "postroad.db", clock=clock)
    yield SQLiteQueues(engine)
    engine.close()


@pytest.fixture
def dead(store: QueueStore) -> Queue:
    return store.create_queue(QueueSpec("dead"))


@pytest.fixture
def jobs(store: QueueStore, dead: Queue) -> Queue:
    return store.create_queue(QueueSpec("jobs", dead_letter="dead", max_receives=1))


def dead_letter(queue: Queue, *texts: str, error: str | None = None, **fields: Any) -> list[str]:
    """Send the messages and reject them; their ids."""
    sent = queue.send([OutgoingMessage(body=text, **fields) for text in texts])
    held = queue.receive(max_messages=1_000)
    assert all(result.ok for result in queue.reject(held, reason="test", error=error))
    return [result.message_id for result in sent if result.message_id is not None]


def bodies(queue: Queue) -> list[str]:
    return [message.body.decode() for message in queue.peek(limit=1_000)]


def test_dead_letters_go_back_in_order_to_where_they_came_from(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    ids = dead_letter(jobs, "a", "b", "c")

    report = redrive(store, "dead", run_id="run-1")

    assert report == RedriveReport(
        run_id="run-1", status="done", matched=3, moved=3, returned=0, skipped={}, destinations={"jobs": 3}
    )
    assert bodies(jobs) == ["a", "b", "c"]
    assert [message.message_id for message in jobs.peek()] == ids
    assert [message.receive_count for message in jobs.peek()] == [0, 0, 0]
    assert bodies(dead) == []


def test_a_redriven_message_carries_redrive_in_place_of_dead_letter(
    store: QueueStore, dead: Queue, jobs: Queue
) -> None:
    dead_letter(jobs, "a", attributes={"EventType": "Placed"})

    redrive(store, "dead", run_id="run-1")
    [message] = jobs.peek()

    assert message.attributes == {"EventType": "Placed", "Redrive": "1:run-1"}
    assert read_dead(message.attributes) is None


def test_a_message_that_dies_again_still_tells_how_often_it_was_redriven(
    store: QueueStore, dead: Queue, jobs: Queue
) -> None:
    dead_letter(jobs, "a")
    redrive(store, "dead", run_id="run-1")

    jobs.reject(jobs.receive(), reason="again")
    [message] = dead.peek()

    assert redrives(message.attributes) == 1
    assert redriven_by(message.attributes) == "run-1"
    assert read_dead(message.attributes) is not None


def test_a_message_with_ten_attributes_goes_back_without_a_marker(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    dead_letter(jobs, "a", attributes=TEN)

    report = redrive(store, "dead")

    assert report.moved == 1
    assert jobs.peek()[0].attributes == TEN


def test_fifo_messages_go_behind_what_waits_and_keep_their_order(store: QueueStore) -> None:
    store.create_queue(QueueSpec("dead.fifo", fifo=True))
    jobs = store.create_queue(QueueSpec("jobs.fifo", fifo=True, content_dedup=True, dead_letter="dead.fifo"))
    dead_letter(jobs, "1", "2", "3", group="g")
    jobs.send([OutgoingMessage(body="waits", group="g")])

    redrive(store, "dead.fifo")

    assert [delivery.body for delivery in jobs.receive()] == [b"waits", b"1", b"2", b"3"]


def test_a_given_destination_goes_before_the_source(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    store.create_queue(QueueSpec("repaired"))
    dead_letter(jobs, "a")

    report = redrive(store, "dead", to="repaired")

    assert report.destinations == {"repaired": 1}
    assert bodies(store.queue("repaired")) == ["a"]


def test_a_message_without_a_marker_goes_to_the_only_queue_that_names_its_dead_letters(
    store: QueueStore, dead: Queue, jobs: Queue
) -> None:
    dead.send([OutgoingMessage(body="a", attributes={"DeadLetter": "not ours"})])

    report = redrive(store, "dead")

    assert report.destinations == {"jobs": 1}


def test_without_a_source_to_be_told_nothing_moves(store: QueueStore, dead: Queue) -> None:
    dead.send([OutgoingMessage(body="a")])

    with pytest.raises(AmbiguousSource) as refused:
        redrive(store, "dead")

    assert refused.value.slug == "ambiguous-source"
    assert bodies(dead) == ["a"]


def test_between_two_possible_sources_nothing_moves(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    store.create_queue(QueueSpec("other", dead_letter="dead"))
    dead_letter(jobs, "with a source")
    dead.send([OutgoingMessage(body="without")])

    with pytest.raises(AmbiguousSource, match="jobs, other"):
        redrive(store, "dead")

    assert bodies(dead) == ["with a source", "without"]


@pytest.mark.parametrize(
    ("to", "error"), [("dead", InvalidName), ("nowhere", QueueNotFound), ("jobs.fifo", ConfigurationError)]
)
def test_a_destination_that_cannot_be_is_refused_before_anything_moves(
    store: QueueStore, dead: Queue, jobs: Queue, to: str, error: type[Exception]
) -> None:
    store.create_queue(QueueSpec("jobs.fifo", fifo=True))
    dead_letter(jobs, "a")

    with pytest.raises(error):
        redrive(store, "dead", to=to)

    assert bodies(dead) == ["a"]


def test_a_source_that_was_deleted_is_refused_before_anything_moves(
    store: QueueStore, dead: Queue, jobs: Queue
) -> None:
    gone = store.create_queue(QueueSpec("gone", dead_letter="dead"))
    dead_letter(jobs, "a")
    dead_letter(gone, "b")
    store.delete_queue("gone")

    with pytest.raises(QueueNotFound, match="gone"):
        redrive(store, "dead")

    assert bodies(dead) == ["a", "b"]


def test_an_unknown_dead_letter_queue_is_not_found(store: QueueStore) -> None:
    with pytest.raises(QueueNotFound):
        redrive(store, "nowhere")


def test_a_limit_counts_moved_messages_and_says_that_more_matched(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    dead_letter(jobs, "a", "b", "c")

    first = redrive(store, "dead", limit=2)
    second = redrive(store, "dead", limit=1)

    assert (first.status, first.matched, first.moved) == ("limit", 3, 2)
    assert (second.status, second.matched, second.moved) == ("done", 1, 1)
    assert bodies(jobs) == ["a", "b", "c"]


def test_only_matching_messages_move(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    dead_letter(jobs, "a", error="ValueError: bad 1", attributes={"EventType": "Placed"})
    dead_letter(jobs, "b", error="KeyError: bad", attributes={"EventType": "Placed"})
    dead_letter(jobs, "c", error="ValueError: bad 2", attributes={"EventType": "Placed"})

    report = redrive(store, "dead", match=Match(fingerprint=fingerprint("ValueError: bad 7", "Placed")))

    assert (report.matched, report.moved) == (2, 2)
    assert bodies(jobs) == ["a", "c"]
    assert bodies(dead) == ["b"]


def test_a_failure_group_that_nobody_is_in_moves_nothing(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    dead_letter(jobs, "a")

    report = redrive(store, "dead", match=Match(fingerprint="000000000000"))

    assert (report.status, report.matched, report.moved) == ("done", 0, 0)


def test_a_message_redriven_too_often_is_skipped(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    dead_letter(jobs, "a")
    for _ in range(3):
        redrive(store, "dead")
        jobs.reject(jobs.receive(), reason="again")

    report = redrive(store, "dead")

    assert (report.matched, report.moved, report.skipped) == (1, 0, {"max_redrives": 1})
    assert redrive(store, "dead", max_redrives=4).moved == 1


def test_messages_leased_by_somebody_else_are_skipped(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    dead_letter(jobs, "a", "b")
    held = dead.receive(max_messages=1)

    report = redrive(store, "dead")

    assert (report.moved, report.skipped) == (1, {"in_flight": 1})
    assert dead.ack(held)[0].ok


def test_a_dry_run_tells_what_a_run_would_do_and_changes_nothing(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    other = store.create_queue(QueueSpec("other", dead_letter="dead"))
    dead_letter(jobs, "a", "b")
    dead_letter(other, "c")
    before = dead.peek()

    report = redrive(store, "dead", run_id="r", dry_run=True)

    assert report == RedriveReport(
        run_id="r", status="dry_run", matched=3, moved=0, returned=0, skipped={}, destinations={"jobs": 2, "other": 1}
    )
    assert dead.peek() == before


def test_a_dry_run_refuses_what_a_run_would_refuse(store: QueueStore, dead: Queue) -> None:
    dead.send([OutgoingMessage(body="a")])

    with pytest.raises(AmbiguousSource):
        redrive(store, "dead", dry_run=True)


def test_messages_that_come_back_stop_the_run_and_are_not_sent_twice(
    store: QueueStore, dead: Queue, jobs: Queue
) -> None:
    texts = [f"{n:04}" for n in range(1_200)]
    for start in range(0, 1_200, 100):
        dead_letter(jobs, *texts[start : start + 100])

    def fail_again(report: RedriveReport) -> None:
        jobs.reject(jobs.receive(max_messages=3), reason="still broken")

    report = redrive(store, "dead", stop_after=5, progress=fail_again)

    assert report.status == "returned"
    assert report.returned == 6
    assert report.moved == 1_200
    assert dead.stats().visible == 6


def test_messages_that_come_back_are_seen_before_the_rest_has_moved(
    store: QueueStore, dead: Queue, jobs: Queue, clock: FakeClock
) -> None:
    dead_letter(jobs, *(str(n) for n in range(50)))

    def fail_again(report: RedriveReport) -> None:
        jobs.reject(jobs.receive(), reason="still broken")

    report = redrive(
        store, "dead", rate=2, stop_after=5, progress=fail_again, monotonic=clock.monotonic, sleep=clock.advance
    )

    assert report.status == "returned"
    assert report.moved < 10


def test_with_stop_after_off_what_came_back_stays_for_the_next_run(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    dead_letter(jobs, *(str(n) for n in range(10)))

    def fail_again(report: RedriveReport) -> None:
        jobs.reject(jobs.receive(), reason="still broken")

    report = redrive(store, "dead", rate=1_000_000, stop_after=0, progress=fail_again)

    assert report.status == "done"
    assert report.moved == 10
    assert report.moved - report.returned == len(bodies(jobs))


def test_going_on_under_the_same_run_id_sends_nothing_twice(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    dead_letter(jobs, "canary", "rest")
    redrive(store, "dead", run_id="run-1", limit=1)
    jobs.reject(jobs.receive(), reason="still broken")

    report = redrive(store, "dead", run_id="run-1")

    assert (report.moved, report.returned) == (1, 1)
    assert bodies(jobs) == ["rest"]
    assert bodies(dead) == ["canary"]


@pytest.mark.parametrize(("rate", "seconds"), [(10, 4.0), (2.5, 24.0), (0.5, 98.0)])
def test_a_rate_is_a_ceiling_over_any_second(
    store: QueueStore, dead: Queue, jobs: Queue, clock: FakeClock, rate: float, seconds: float
) -> None:
    dead_letter(jobs, *(str(n) for n in range(50)))
    started = clock.monotonic()
    moves: list[tuple[float, int]] = []

    redrive(
        store,
        "dead",
        rate=rate,
        progress=lambda report: moves.append((clock.monotonic(), report.moved)),
        monotonic=clock.monotonic,
        sleep=clock.advance,
    )

    assert clock.monotonic() - started == pytest.approx(seconds, abs=0.2)
    window = max(1.0, 1 / rate)
    for at, moved in moves:
        before = max((count for moment, count in moves if moment <= at - window), default=0)
        assert moved - before <= max(1, rate)


def test_a_run_that_was_cut_off_goes_on_where_it_ended(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    texts = [f"{n:04}" for n in range(700)]
    for start in range(0, 700, 100):
        dead_letter(jobs, *texts[start : start + 100])
    failpoints.load("queue.redrive.mid=raise#1")
    try:
        with pytest.raises(Unavailable):
            redrive(store, "dead")
    finally:
        failpoints.load(None)
    half = len(bodies(jobs))

    report = redrive(store, "dead")

    assert (half, report.moved) == (500, 200)
    assert [message.decode() for message in _all(jobs)] == texts


def test_a_run_that_was_killed_left_every_message_in_exactly_one_queue(tmp_path: Path) -> None:
    path, texts = tmp_path / "postroad.db", [f"{n:04}" for n in range(700)]
    engine = Engine(path)
    store = SQLiteQueues(engine)
    store.create_queue(QueueSpec("dead"))
    jobs = store.create_queue(QueueSpec("jobs", dead_letter="dead"))
    for start in range(0, 700, 100):
        dead_letter(jobs, *texts[start : start + 100])
    engine.close()

    killed = subprocess.run([sys.executable, "-c", KILLED_REDRIVE, str(path)], check=False, timeout=60)
    engine = Engine(path)
    store = SQLiteQueues(engine)
    halves = [len(bodies(store.queue(name))) for name in ("jobs", "dead")]
    redrive(store, "dead")
    after = [message.decode() for message in _all(store.queue("jobs"))]
    engine.close()

    assert killed.returncode == -signal.SIGKILL
    assert halves == [500, 200]
    assert after == texts


def test_a_redrive_is_one_span(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("postroad.telemetry.tracing._tracer", lambda: provider.get_tracer("test"))
    store = memory_queues()
    store.create_queue(QueueSpec("dead"))
    jobs = store.create_queue(QueueSpec("jobs", dead_letter="dead"))
    dead_letter(jobs, "a")

    redrive(store, "dead")

    [span] = exporter.get_finished_spans()
    assert span.name == "redrive dead"
    assert dict(span.attributes or {}) == {"messaging.system": "postroad", "messaging.destination.name": "dead"}


def test_progress_tells_what_has_moved_so_far(store: QueueStore, dead: Queue, jobs: Queue) -> None:
    for start in range(0, 600, 100):
        dead_letter(jobs, *(str(n) for n in range(start, start + 100)))
    reports: list[RedriveReport] = []

    redrive(store, "dead", progress=reports.append)

    assert [(report.status, report.moved) for report in reports] == [("running", 500)]


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("limit", {"limit": 0}),
        ("limit", {"limit": True}),
        ("rate", {"rate": 0}),
        ("rate", {"rate": -1}),
        ("rate", {"rate": float("nan")}),
        ("rate", {"rate": float("inf")}),
        ("stop_after", {"stop_after": -1}),
        ("max_redrives", {"max_redrives": 0}),
        ("run_id", {"run_id": "a b"}),
    ],
)
def test_an_option_out_of_range_is_refused(
    store: QueueStore, dead: Queue, jobs: Queue, field: str, options: dict[str, Any]
) -> None:
    dead_letter(jobs, "a")

    with pytest.raises(InvalidInput) as refused:
        redrive(store, "dead", **options)

    assert refused.value.field == field
    assert bodies(dead) == ["a"]


def test_purging_removes_everything(jobs: Queue) -> None:
    jobs.send([OutgoingMessage(body=text) for text in "abc"])

    assert purge(jobs) == 3
    assert bodies(jobs) == []


def test_a_queue_that_cannot_move_its_messages_says_so() -> None:
    class Fixed:
        name = "fixed"

    with pytest.raises(NotSupported, match="fixed"):
        purge(Fixed())  # type: ignore[arg-type]  # what an adapter without moving looks like


def _all(queue: Queue) -> list[bytes]:
    """Every body the queue holds, page by page."""
    found = queue.peek(limit=500)
    while page := queue.peek(limit=500, after=found[-1].message_id):
        found += page
    return [message.body for message in found]
