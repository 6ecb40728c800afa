"""`GET /overview`: what waits, what happened and what needs attention."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.http.api import ADMIN, Api, Serve
from tests.waiting import eventually

from postroad import OutgoingMessage, QueueSpec
from postroad.dashboard import NAVIGATION
from postroad.events import DomainEvent
from postroad.http.overview import Paced
from postroad.http.samples import Sample, Samples
from postroad.outbox import Outbox
from postroad.queues import Queue
from postroad.testing.clock import FakeClock
from postroad.views import Part
from postroad.wiring import connect


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def timed(serve: Serve, clock: FakeClock) -> Api:
    """A server whose clock the test moves, which is measured with every request."""
    return serve(options={"clock": clock})


@pytest.fixture
def look(timed: Api, clock: FakeClock) -> Callable[..., dict[str, Any]]:
    def look(window: int = 300) -> dict[str, Any]:
        clock.advance(1.01)
        answer = timed.client.get("/overview", params={"window": window})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    return look


def with_dead_letters(api: Api) -> Queue:
    api.backend.create_queue(QueueSpec("orders-dlq"))
    return api.backend.create_queue(QueueSpec("orders", dead_letter="orders-dlq", max_receives=3))


def kinds(document: dict[str, Any]) -> list[str]:
    return [item["kind"] for item in document["attention"]]


def test_a_new_store_has_nothing_to_show(timed: Api, look: Callable[..., dict[str, Any]]) -> None:
    document = look()

    assert list(document) == [
        *("at", "window_seconds", "step_seconds", "series", "totals", "backlog", "lag_seconds", "work", "attention")
    ]
    assert (document["window_seconds"], document["step_seconds"]) == (300, 5)
    assert document["series"] == {"sent": [0] * 60, "acked": [0] * 60, "dead": [0] * 60}
    assert document["totals"] == dict.fromkeys(("sent", "received", "acked", "dead", "redriven", "expired"), 0)
    assert document["backlog"] == {"visible": 0, "in_flight": 0, "delayed": 0, "outbox_pending": 0, "dead": 0}
    assert document["lag_seconds"] == {"publish": 0, "consumer": 0, "oldest": 0}
    assert document["work"].pop("unhealthy") == kinds(document).count("disk-space")
    assert document["work"] == dict.fromkeys(
        ("failed_tasks", "schedules", "workers", "agents", "events", "jobs", "queues", "notifications", "audits"), 0
    )
    assert [kind for kind in kinds(document) if kind != "disk-space"] == []


def test_what_happens_is_counted_whoever_did_it(
    timed: Api, look: Callable[..., dict[str, Any]], clock: FakeClock
) -> None:
    look()
    with_dead_letters(timed)
    with connect(timed.backend.url, clock=clock) as other:
        queue = other.queue("orders")
        queue.send([OutgoingMessage(str(n)) for n in range(6)] + [OutgoingMessage("later", delay=60)])
        first, second, _ = queue.receive(max_messages=3)
        queue.ack([first])
        queue.reject([second], reason="invalid")

    document = look()

    assert document["backlog"] == {"visible": 3, "in_flight": 1, "delayed": 1, "outbox_pending": 0, "dead": 1}
    assert document["totals"]["sent"] == sum(document["series"]["sent"]) == 7
    assert document["totals"]["received"] == 3
    assert document["totals"]["acked"] == sum(document["series"]["acked"]) == 1
    assert document["totals"]["dead"] == sum(document["series"]["dead"]) == 1


def test_the_totals_do_not_decrease_when_a_queue_is_deleted(timed: Api, look: Callable[..., dict[str, Any]]) -> None:
    with_dead_letters(timed).send([OutgoingMessage("a"), OutgoingMessage("b")])
    before = look()
    timed.backend.delete_queue("orders")

    after = look()

    assert before["totals"]["sent"] == after["totals"]["sent"] == 2
    assert min(after["series"]["sent"]) == 0


def test_the_charts_survive_a_restart_and_count_what_happened_meanwhile(
    serve: Serve, clock: FakeClock, tmp_path: Path
) -> None:
    def look(api: Api) -> dict[str, Any]:
        clock.advance(1.01)
        return dict(api.client.get("/overview").json())

    first = serve(options={"clock": clock})
    look(first)
    queue = with_dead_letters(first)
    queue.send([OutgoingMessage("a")] * 3)
    clock.advance(30)
    look(first)
    first.stop()
    queue.send([OutgoingMessage("b")] * 2)
    clock.advance(20)

    document = look(serve(options={"clock": clock}))

    assert [number for number in document["series"]["sent"] if number] == [3, 2]


def test_an_hour_and_a_day_have_longer_steps(timed: Api, look: Callable[..., dict[str, Any]], clock: FakeClock) -> None:
    look()
    queue = with_dead_letters(timed)
    for _ in range(3):
        clock.advance(1_200)
        queue.send([OutgoingMessage("a")])
        look()

    minutes, hour, day = look(300), look(3_600), look(86_400)

    assert (hour["step_seconds"], len(hour["series"]["sent"]), sum(hour["series"]["sent"])) == (60, 60, 3)
    assert (day["step_seconds"], len(day["series"]["sent"]), sum(day["series"]["sent"])) == (1_440, 60, 3)
    assert sum(minutes["series"]["sent"]) == 1


def test_dead_letters_and_old_messages_lead_to_their_page(
    timed: Api, look: Callable[..., dict[str, Any]], clock: FakeClock
) -> None:
    queue = with_dead_letters(timed)
    queue.send([OutgoingMessage("a"), OutgoingMessage("b")])
    queue.reject(queue.receive(max_messages=1), reason="invalid")
    clock.advance(400)

    document = look()

    items = [item for item in document["attention"] if item["kind"] != "disk-space"]
    assert items == [
        {
            "kind": "dead-letters",
            "severity": "error",
            "text": "1 dead letter in orders-dlq, the oldest sent 6 min ago",
            "href": "/ui/dead-letters?queue=orders-dlq",
        },
        {
            "kind": "old-backlog",
            "severity": "warning",
            "text": "1 message in orders, the oldest sent 6 min ago",
            "href": "/ui/queues/orders",
        },
    ]
    assert document["lag_seconds"]["consumer"] == pytest.approx(401, abs=1.1)
    assert document["lag_seconds"]["oldest"] == pytest.approx(401, abs=1.1)


def test_dead_letters_that_are_about_to_be_lost_are_told(
    timed: Api, look: Callable[..., dict[str, Any]], clock: FakeClock
) -> None:
    queue = with_dead_letters(timed)
    queue.send([OutgoingMessage("a")])
    queue.reject(queue.receive(), reason="invalid")
    clock.advance(3 * 86_400)

    assert {"dead-letters", "dead-letters-expiring"} <= set(kinds(look()))


def test_of_many_queues_with_dead_letters_only_some_are_named(timed: Api, look: Callable[..., dict[str, Any]]) -> None:
    for n in range(14):
        timed.backend.create_queue(QueueSpec(f"q{n:02}-dlq"))
        queue = timed.backend.create_queue(QueueSpec(f"q{n:02}", dead_letter=f"q{n:02}-dlq", max_receives=1))
        queue.send([OutgoingMessage("a")])
        queue.reject(queue.receive(), reason="invalid")

    items = [item["text"] for item in look()["attention"] if item["kind"] == "dead-letters"]

    assert len(items) == 11
    assert items[-1] == "4 more queues with dead letters"


def test_parts_that_are_down_and_failed_tasks_need_attention(timed: Api, look: Callable[..., dict[str, Any]]) -> None:
    parts = (
        Part(name="bus", process="runners", pid=1, state="failed"),
        Part(name="worker", process="runners", pid=1, state="starting", missing="no database"),
        Part(name="health", process="runners", pid=1, state="running"),
    )
    timed.context.parts = parts

    items = [item for item in look()["attention"] if item["kind"] == "part-down"]

    assert [(item["severity"], item["href"]) for item in items] == [("error", "/ui/health"), ("warning", "/ui/health")]
    assert items[1]["text"] == "worker is starting: no database"


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with Outbox.open(f"sqlite:///{tmp_path}/app.db") as made:
        made.init()
        yield made


def test_the_outbox_counts_too(serve: Serve, outbox: Outbox, tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "app.db") as connection:
        connection.execute("CREATE TABLE data (n)")
        connection.execute("INSERT INTO data VALUES (1)")
        outbox.add(connection, DomainEvent(type="orders.placed", key={"orderId": "1"}, payload={}))
    api = serve(outbox_dsn=f"sqlite:///{tmp_path}/app.db")

    assert api.client.get("/overview").json()["backlog"]["outbox_pending"] == 1


def test_an_outbox_that_cannot_be_read_is_told_and_not_guessed(serve: Serve, tmp_path: Path) -> None:
    api = serve(outbox_dsn=f"sqlite:///{tmp_path}/nowhere.db")

    document = api.client.get("/overview").json()

    assert document["backlog"]["outbox_pending"] is None
    assert document["lag_seconds"]["publish"] is None
    assert "outbox-unavailable" in kinds(document)


@pytest.mark.parametrize("window", ["0", "9", "-1", "86401", "abc", "1.5", ""])
def test_a_wrong_window_is_400_and_names_the_field(api: Api, window: str) -> None:
    answer = api.client.get("/overview", params={"window": window})

    assert (answer.status_code, answer.json()["field"]) == (400, "window")


def test_it_needs_a_token(api: Api) -> None:
    with api.as_caller(None) as stranger:
        assert stranger.get("/overview").status_code == 401
    with api.as_caller(api.token("read")) as reader:
        assert reader.get("/overview").status_code == 200


def test_the_store_is_read_once_a_second_however_many_ask(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[float] = []
    census = api.backend.census

    def counted() -> Any:
        reads.append(time.monotonic())
        return census()

    monkeypatch.setattr(api.backend, "census", counted)

    def ask() -> None:
        with api.as_caller(ADMIN) as client:
            for _ in range(50):
                assert client.get("/overview").status_code == 200

    began = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        for asked in [threads.submit(ask) for _ in range(4)]:
            asked.result()

    # The last of n reads begins n - 1 seconds after the first, or later.
    assert 1 <= len(reads) <= 1 + time.monotonic() - began


def test_the_navigation_of_every_page_has_the_counts(api: Api) -> None:
    api.backend.agents().register("ann")
    with_dead_letters(api).send([OutgoingMessage("a")] * 3)

    def shown(path: str, count: int) -> bool:
        return bool(re.search(rf'data-tally="{path}"[^<]*>{count}<', api.client.get("/ui/queues").text))

    eventually(lambda: shown("backlog.visible", 3) and shown("work.agents", 1))


def test_every_entry_of_the_navigation_has_a_count(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQS_PUSH_QUEUE_URL", "https://sqs.eu-west-1.amazonaws.com/1/pushes")
    api = serve()
    api.backend.create_queue(QueueSpec("pushes")).send([OutgoingMessage("a")] * 2)
    api.context.work.jobs.submit_job([{"taskId": "task-A", "name": "x"}], job_id="j")
    api.client.put("/queues/orders", json={})
    api.context.parts = (Part(name="bus", process="runners", pid=1, state="failed"),)

    document = api.client.get("/overview").json()
    page = api.client.get("/ui/health").text

    work = document["work"]
    assert (work["jobs"], work["notifications"], work["audits"]) == (1, 2, 1)
    assert work["queues"] == len(api.backend.queue_names(limit=100)) > 1
    assert work["events"] == len(api.client.get("/timeline").json()["items"]) > 0
    assert work["unhealthy"] == len([item for item in document["attention"] if item["href"] == "/ui/health"]) > 0
    shown = dict(re.findall(r'<a href="([^"]+)"[^<]*<span class="count"[^>]*>([^<]+)<', page))
    assert list(shown) == [link.href for group in NAVIGATION for link in group]
    assert shown["/ui/map"] == str(work["queues"])
    assert shown["/ui/health"] == str(work["unhealthy"])


def test_a_count_at_which_counting_stops_says_that_there_may_be_more(api: Api) -> None:
    api.backend.agents().register_many(101)

    assert api.client.get("/overview").json()["work"]["agents"] == 100
    assert re.search(r'data-tally="work.agents" data-most="100"[^<]*>100\+<', api.client.get("/ui/queues").text)


def test_the_backlog_before_the_first_sample_is_not_guessed() -> None:
    samples = Samples()
    samples.add(Sample(1_000.0, 5, 0, 0, 5))
    samples.add(Sample(1_006.0, 9, 0, 0, 7))

    found = samples.backlog(60, 1_011.0)

    assert found == [0] * 9 + [5, 7, 7]


def test_what_is_slow_to_read_is_read_less_often_but_not_after_a_slow_start(clock: FakeClock) -> None:
    reads: list[float] = []

    def read() -> int:
        clock.advance(0.5)
        reads.append(clock.monotonic())
        return len(reads)

    paced = Paced(read, 1.0, clock)

    seen = []
    for _ in range(12):
        seen.append(paced.get())
        clock.advance(1)

    # The first read loads what later ones find ready; after the second, reading pauses for twenty times as long.
    assert seen == [1, *[2] * 10, 3]
