"""The spans of one event from publish to redrive, and the fields of the log lines on its way."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from postroad import BusConfig, Consumer, DomainEvent, Inbox, NonRetryable, Outbox, QueueSpec, event
from postroad.operations import redrive
from postroad.outbox import OutboxDispatcher
from postroad.tasks import TaskContext, TaskProducer, TaskRegistry, TaskWorker
from postroad.telemetry import configure_logs, tracing
from postroad.wiring import Backend

SYSTEM, PLACE, MESSAGE = "messaging.system", "messaging.destination.name", "messaging.message.id"


@event(name="spans.order-placed")
@dataclass
class OrderPlaced:
    order_id: str


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing._tracer.cache_clear()
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    tracing._tracer.cache_clear()


@pytest.fixture
def lines(tmp_path: Path, logs_as_they_were: None) -> Iterator[Any]:
    with (tmp_path / "log").open("w+") as stream:
        configure_logs("info", "json", stream=stream)

        def read(name: str) -> list[dict[str, Any]]:
            logging.shutdown([])
            written = map(json.loads, (tmp_path / "log").read_text().splitlines())
            return [line for line in written if line["event"] == name]

        yield read


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def deliver(backend: Backend) -> str:
    """Publish one event whose handler fails for good, and redrive its dead letter; return its id."""
    bus = backend.bus("orders", "billing", config=BusConfig(wait_time_seconds=0))

    def bill(_: OrderPlaced) -> None:
        raise NonRetryable("no such order")

    bus.subscribe(OrderPlaced, bill)
    published = bus.publish(OrderPlaced("A-1"))
    bus.receive_once()
    redrive(backend, "orders--billing--dead", reason="repaired")
    return str(published.event_id)


def test_an_event_is_one_trace_from_publish_to_dead_letter(
    postroad_backend: Backend, spans: InMemorySpanExporter
) -> None:
    event_id = deliver(postroad_backend)

    found = by_name(spans)
    published, received = found["publish orders"], found["receive orders--billing"]
    handled = next(span for name, span in found.items() if name.startswith("handle "))
    dead, redriven = found["dead_letter orders--billing"], found["redrive orders--billing--dead"]
    assert published.attributes == {SYSTEM: "postroad", PLACE: "orders", MESSAGE: event_id}
    assert handled.name.endswith("bill")
    assert handled.attributes == {SYSTEM: "postroad", PLACE: "orders--billing", MESSAGE: event_id}
    assert handled.parent is not None
    assert handled.parent.span_id == published.context.span_id
    assert [link.context.span_id for link in received.links] == [published.context.span_id]
    assert received.context.trace_id != published.context.trace_id
    assert received.attributes == {SYSTEM: "postroad", PLACE: "orders--billing"}
    assert dead.context.trace_id == published.context.trace_id
    assert dead.attributes is not None
    assert dead.attributes[PLACE] == "orders--billing"
    assert redriven.attributes == {SYSTEM: "postroad", PLACE: "orders--billing--dead"}


def test_a_batch_is_linked_to_each_of_its_events(
    postroad_backend: Backend, spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    handled: list[DomainEvent] = []
    carry(postroad_backend, tmp_path, lambda event, _: handled.append(event), events=3)

    finished = spans.get_finished_spans()
    added = [span for span in finished if span.name == "checkout"]
    (received,) = [span for span in finished if span.name == "receive ledger"]
    published = [span for span in finished if span.name == "publish transfers"]
    wanted = {span.context.span_id for span in added}
    assert {link.context.span_id for link in received.links} == wanted
    assert {link.context.span_id for span in published for link in span.links} == wanted
    calls = [span for span in finished if span.name.startswith("handle ")]
    assert {span.parent.span_id for span in calls if span.parent is not None} == wanted
    assert {(span.attributes or {})[MESSAGE] for span in calls} == {str(each.event_id) for each in handled}


def carry(backend: Backend, folder: Path, handler: Any, *, events: int = 1) -> None:
    """Record events in an outbox, each in a span, publish them and let a consumer handle them."""
    queue = backend.create_queue(QueueSpec("ledger"))
    topic = backend.topic("transfers")
    topic.subscribe(queue)
    outbox, inbox = Outbox.sqlite(folder / "shop.db"), Inbox.sqlite(folder / "shop.db", retention=None)
    outbox.init()
    inbox.init()
    connection = sqlite3.connect(folder / "shop.db", isolation_level=None)
    for number in range(events):
        with trace.get_tracer("shop").start_as_current_span("checkout"):
            connection.execute("BEGIN")
            outbox.add(connection, DomainEvent("transfers.booked", key={"id": str(number)}, payload={}))
            connection.execute("COMMIT")
    OutboxDispatcher(outbox, topic).drain(timeout=20)
    consumer = Consumer(queue, handler, inbox=inbox, name="ledger")
    consumer.run_once()


def run_task(backend: Backend, registry: TaskRegistry, name: str) -> None:
    """Submit a task in a span and run it to its end, with one attempt."""
    with trace.get_tracer("shop").start_as_current_span("checkout"):
        TaskProducer(backend, registry=registry).submit(name, {}, request_id="r-1")
    TaskWorker(backend, registry=registry, max_attempts=1).run(until_idle=True)


def double(input: dict[str, Any], ctx: TaskContext) -> int:
    return 2


def refuse(input: dict[str, Any], ctx: TaskContext) -> None:
    raise ConnectionError("no answer")


def test_a_task_is_handled_in_the_trace_of_its_submission(
    postroad_sqlite: Backend, spans: InMemorySpanExporter
) -> None:
    registry = TaskRegistry()
    registry.register(double, "double")

    run_task(postroad_sqlite, registry, "double")

    found = by_name(spans)
    published, received, handled = found["publish tasks"], found["receive tasks"], found["handle double"]
    assert published.parent is not None
    assert published.parent.span_id == found["checkout"].context.span_id
    assert handled.parent is not None
    assert handled.parent.span_id == published.context.span_id
    assert handled.attributes == {SYSTEM: "postroad", PLACE: "tasks", MESSAGE: "r-1"}
    assert handled.status.is_ok is True
    assert [link.context.span_id for link in received.links] == [published.context.span_id]
    assert received.parent is None


def test_a_task_that_fails_ends_its_span_as_failed_and_dies_in_the_same_trace(
    postroad_sqlite: Backend, spans: InMemorySpanExporter
) -> None:
    registry = TaskRegistry()
    registry.register(refuse, "refuse")

    run_task(postroad_sqlite, registry, "refuse")

    found = by_name(spans)
    handled, dead = found["handle refuse"], found["dead_letter tasks"]
    assert (handled.status.is_ok, handled.status.description) == (False, "ConnectionError: no answer")
    assert dead.context.trace_id == handled.context.trace_id == found["checkout"].context.trace_id


def test_the_lines_of_a_bus_name_event_trace_queue_attempt_and_duration(
    postroad_backend: Backend, spans: InMemorySpanExporter, lines: Any
) -> None:
    event_id = deliver(postroad_backend)

    trace_id = f"{by_name(spans)['publish orders'].context.trace_id:032x}"
    (published,), (received,), (dead,) = map(lines, ("bus_published", "bus_received", "bus_dead_lettered"))
    (redriven,) = lines("queue_redriven")
    for line in (published, received, dead):
        assert list(line)[:4] == ["ts", "level", "event", "service"]
        assert (line["event_id"], line["trace_id"]) == (event_id, trace_id)
    assert published["queue"] == "orders"
    assert (received["queue"], received["attempt"]) == ("orders--billing", 1)
    assert (dead["queue"], dead["attempt"]) == ("orders--billing", 1)
    assert redriven["queue"] == "orders--billing--dead"
    assert all(line["duration_ms"] >= 0 for line in (published, dead, redriven))
    assert not any("A-1" in json.dumps(line) for line in (published, received, dead))


def test_the_lines_of_an_outbox_and_a_consumer_have_the_same_fields(
    postroad_backend: Backend, spans: InMemorySpanExporter, lines: Any, tmp_path: Path
) -> None:
    def refuse(event: DomainEvent, connection: object) -> None:
        raise LookupError("no such account")

    carry(postroad_backend, tmp_path, refuse)

    (published,), (received,), (retried,) = map(lines, ("outbox_published", "consumer_received", "consumer_retried"))
    trace_id = f"{by_name(spans)['checkout'].context.trace_id:032x}"
    assert published["event_id"] == retried["event_id"]
    assert (published["trace_id"], retried["trace_id"]) == (trace_id, trace_id)
    assert (published["queue"], received["queue"], retried["queue"]) == ("transfers", "ledger", "ledger")
    assert (published["attempt"], retried["attempt"], received["messages"]) == (1, 1, 1)
    assert retried["duration_ms"] >= 0


def test_without_tracing_there_are_no_spans_and_no_trace_in_the_lines(postroad_backend: Backend, lines: Any) -> None:
    deliver(postroad_backend)

    (published,) = lines("bus_published")
    assert "trace_id" not in published
