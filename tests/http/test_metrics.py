"""`GET /metrics`: names, labels and values for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isnan
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families
from tests.http.api import Api, Serve

from postroad import OutgoingMessage, QueueSpec, __version__
from postroad.http import metrics
from postroad.testing.clock import FakeClock
from postroad.views import Part

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
ALERTS = Path(__file__).parents[2] / "docs" / "alerts.yml"


def read(api: Api) -> Samples:
    answer = api.client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def timed(serve: Serve, clock: FakeClock) -> Api:
    return serve(options={"clock": clock})


@pytest.fixture
def look(timed: Api, clock: FakeClock) -> Callable[[], Samples]:
    def look() -> Samples:
        clock.advance(1.01)
        return read(timed)

    return look


def test_queues_are_counted_by_what_happened_and_what_they_hold(
    timed: Api, look: Callable[[], Samples], clock: FakeClock
) -> None:
    timed.backend.create_queue(QueueSpec("orders-dlq"))
    queue = timed.backend.create_queue(QueueSpec("orders", dead_letter="orders-dlq", max_receives=5))
    queue.send([OutgoingMessage(str(n)) for n in range(6)] + [OutgoingMessage("later", delay=600)])
    acked, dead, retried = queue.receive(max_messages=3)
    queue.ack([acked])
    queue.reject([dead], reason="invalid")
    queue.release([retried], error="Boom: no")
    queue.receive(max_messages=1)
    clock.advance(60)

    found = look()

    outcomes = ("sent", "received", "acked", "retried", "dead", "redriven", "expired")
    counted = [value(found, "postroad_messages_total", queue="orders", outcome=outcome) for outcome in outcomes]
    assert counted == [7, 4, 1, 1, 1, 0, 0]
    states = ("visible", "in_flight", "delayed")
    assert sum(value(found, "postroad_queue_messages", queue="orders", state=state) or 0 for state in states) == 5
    assert value(found, "postroad_queue_messages", queue="orders", state="delayed") == 1
    assert value(found, "dead_letter_count", queue="orders-dlq") == 1
    assert value(found, "dead_letter_count", queue="orders") is None
    assert value(found, "postroad_queue_oldest_age_seconds", queue="orders") == pytest.approx(61, abs=1)
    assert value(found, "event_consumer_lag_seconds", queue="orders") == pytest.approx(61, abs=1)
    assert value(found, "event_consumer_lag_seconds", queue="orders-dlq") is None


def test_beyond_two_hundred_queues_the_rest_is_one(
    timed: Api, look: Callable[[], Samples], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST_QUEUES", 2)
    for n in range(5):
        timed.backend.create_queue(QueueSpec(f"q{n}")).send([OutgoingMessage("a")] * (n + 1))
    timed.backend.delete_queue("q4")

    found = look()

    assert {dict(labels)["queue"] for name, labels in found if name == "postroad_messages_total"} == {
        *("q0", "q1", "_other")
    }
    # What was sent to the deleted queue is counted too.
    assert value(found, "postroad_messages_total", queue="_other", outcome="sent") == 3 + 4 + 5
    assert value(found, "postroad_queue_messages", queue="_other", state="visible") == 3 + 4
    assert metrics.OTHERS == "_other"


def test_requests_are_counted_by_route_and_never_by_id(api: Api) -> None:
    api.client.get("/queues/nobody-1")
    api.client.get("/queues/nobody-2")
    api.client.request("BREW", "/health")
    api.client.get("/nowhere/at/all")

    found = read(api)

    assert value(found, "postroad_http_requests_total", route="/queues/{queue}", method="GET", status="404") == 2
    assert value(found, "postroad_http_request_seconds_count", route="/queues/{queue}") == 2
    buckets = {
        dict(labels)["le"]: number
        for (name, labels), number in found.items()
        if name == "postroad_http_request_seconds_bucket" and ("route", "/queues/{queue}") in labels
    }
    assert buckets["+Inf"] == 2
    methods = {dict(labels)["method"] for name, labels in found if name == "postroad_http_requests_total"}
    assert methods <= {"GET", "other"}
    assert not [labels for _, labels in found if "nobody" in str(labels) or "nowhere" in str(labels)]


def test_parts_and_version_are_shown(api: Api) -> None:
    api.context.parts = (
        Part(name="bus", process="runners", pid=1, state="running"),
        Part(name="worker", process="runners", pid=1, state="failed"),
    )

    found = read(api)

    assert value(found, "postroad_part_up", part="bus") == 1
    assert value(found, "postroad_part_up", part="worker") == 0
    assert value(found, "postroad_build_info", version=__version__) == 1


def test_an_outbox_that_cannot_be_read_is_not_a_number(serve: Serve, tmp_path: Path) -> None:
    without = read(serve("memory://"))
    unreadable = read(serve(outbox_dsn=f"sqlite:///{tmp_path}/nowhere.db"))

    assert value(without, "event_outbox_backlog", service="default") == 0
    assert value(without, "event_publish_lag_seconds", service="default") == 0
    assert isnan(value(unreadable, "event_outbox_backlog", service="default") or 0)


def test_every_alert_is_about_a_metric_that_is_shown(api: Api) -> None:
    api.context.parts = (Part(name="bus", process="runners", pid=1, state="running"),)
    api.backend.create_queue(QueueSpec("dead"))
    api.backend.create_queue(QueueSpec("orders", dead_letter="dead"))
    shown = {name for name, _ in read(api)}

    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]

    expressions = {rule["alert"]: rule["expr"] for rule in rules}
    for expression in expressions.values():
        assert set(re.findall(r"[a-z]+(?:_[a-z]+)+", expression)) <= shown
    assert expressions["PostroadDeadLetters"] == "dead_letter_count >= 1"
    assert expressions["PostroadOutboxBacklog"].startswith("event_outbox_backlog > 5000 ")
    assert expressions["PostroadConsumerLag"] == "event_consumer_lag_seconds > 300"
    assert expressions["PostroadPublishLag"].startswith("event_publish_lag_seconds > 60 ")
    for rule in rules:
        assert (ALERTS.parents[1] / rule["annotations"]["runbook"]).is_file()


def test_it_needs_a_token(api: Api) -> None:
    with api.as_caller(None) as stranger:
        assert stranger.get("/metrics").status_code == 401
