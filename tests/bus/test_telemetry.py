"""What a bus tells: one line and one count for each thing that happens, joined traces, and never a payload."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY
from tests.bus.conftest import MakeBus
from tests.bus.vocabulary import QUICK, Anything, Placed
from tests.waiting import eventually

from postroad import Backend, OutgoingMessage, Queue, codec, connect
from postroad.telemetry import tracing

SECRET = "hunter2-is-the-payload"


def count(bus: str, outcome: str) -> float:
    return REGISTRY.get_sample_value("postroad_bus_events_total", {"bus": bus, "outcome": outcome}) or 0.0


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.msg for record in caplog.records if record.name == "postroad.bus" and isinstance(record.msg, dict)]


@pytest.fixture(autouse=True)
def _listening(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="postroad.bus")


def test_a_journey_is_told_line_by_line(make_bus: MakeBus, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    sender, receiver = make_bus(queue), make_bus(queue)
    receiver.subscribe(Anything, lambda _: None)

    result = sender.publish(Anything(SECRET))
    receiver.receive_once()

    logged = lines(caplog)
    assert [line["event"] for line in logged] == ["bus_published", "bus_received", "bus_handled"]
    assert {line["event_id"] for line in logged} == {str(result.event_id)}
    assert {line["type"] for line in logged} == {"tests.bus.vocabulary:Anything"}
    assert {line["publisher"] for line in logged} == {sender.publisher_id}
    assert {line["bus"] for line in logged} == {"work"}
    assert SECRET not in caplog.text


def test_health_has_the_last_error_of_a_handler_whether_it_ran_on_receipt_or_on_publish(
    make_bus: MakeBus, queue: Queue
) -> None:
    bus = make_bus(queue)

    def refuse(event: Placed) -> None:
        raise ValueError(f"no order {event.number}, password=hunter2")

    bus.subscribe(Placed, refuse)

    bus.publish(Placed(1))
    on_publish = bus.health().last_error
    make_bus(queue).publish(Placed(2))
    bus.receive_once()
    on_receipt = bus.health().last_error

    assert on_publish == "ValueError: no order 1, password=*** [test_telemetry.py:refuse]"
    assert on_receipt == "ValueError: no order 2, password=*** [test_telemetry.py:refuse]"


def test_every_other_end_has_a_line_too(make_bus: MakeBus, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    sender, receiver = make_bus(queue), make_bus(queue)
    sender.subscribe(Placed, lambda _: None)
    sender.publish(Placed(1))
    sender.receive_once()
    sender.publish(Anything())
    receiver.subscribe(Anything, lambda _: 1 / 0)
    for _ in range(3):
        receiver.receive_once()
    body = codec.encode(codec.wrap(Placed(2), publisher_id="p"))
    receiver.subscribe(Placed, lambda _: None)
    for _ in range(2):
        queue.send([OutgoingMessage(body)])
        receiver.receive_once()
    sender.publish(None)

    names = [line["event"] for line in lines(caplog) if line["event"] not in ("bus_published", "bus_received")]

    assert names == [
        *("bus_echo", "bus_retried", "bus_retried", "bus_dead_lettered"),
        *("bus_handled", "bus_duplicate", "bus_publish_failed"),
    ]


def test_the_same_outcomes_are_counted(make_bus: MakeBus, queue: Queue) -> None:
    before = {outcome: count("work", outcome) for outcome in ("published", "received", "handled")}
    sender, receiver = make_bus(queue), make_bus(queue)
    receiver.subscribe(Placed, lambda _: None)

    sender.publish(Placed())
    receiver.receive_once()

    assert all(count("work", outcome) == number + 1 for outcome, number in before.items())


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing._tracer.cache_clear()
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    tracing._tracer.cache_clear()


def test_publishing_and_handling_are_spans_of_one_trace(
    make_bus: MakeBus, queue: Queue, spans: InMemorySpanExporter
) -> None:
    def handler(_: object) -> None:
        pass

    sender, receiver = make_bus(queue), make_bus(queue)
    receiver.subscribe(Placed, handler)

    sender.publish(Placed())
    attributes = queue.peek()[0].attributes
    receiver.receive_once()

    published, received, handled = spans.get_finished_spans()
    assert (published.name, received.name) == ("publish work", "receive work")
    assert handled.name.startswith("handle ")
    assert handled.name.endswith("handler")
    assert handled.context.trace_id == published.context.trace_id
    assert handled.parent is not None
    assert handled.parent.span_id == published.context.span_id
    assert f"{published.context.trace_id:032x}" in attributes["TraceParent"]


def test_tracing_that_is_set_up_after_the_first_publish_is_told_of_the_next(
    make_bus: MakeBus, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing._tracer.cache_clear()
    bus = make_bus(queue)
    bus.publish(Placed(1))

    # What trace.set_tracer_provider does, which a process may do only once.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    bus.publish(Placed(2))

    tracing._tracer.cache_clear()
    assert [span.name for span in exporter.get_finished_spans()] == ["publish work"]


def test_without_a_tracer_nothing_is_sent_along(make_bus: MakeBus, queue: Queue) -> None:
    make_bus(queue).publish(Placed())

    assert "TraceParent" not in queue.peek()[0].attributes


def test_what_nobody_handles_is_a_warning_only_where_it_stays(
    make_bus: MakeBus, queue: Queue, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    with backend.bus("orders", config=QUICK) as own:
        own.start_receiver()
        backend.bus("orders", config=QUICK).publish(Placed())
        eventually(lambda: own.health().unhandled == 1)
    shared = make_bus(queue)
    shared.publish(Placed())

    shared.receive_once()

    logged = [(line["bus"], line["level"]) for line in lines(caplog) if line["event"] == "bus_unhandled"]
    assert logged == [("orders", "info"), ("work", "warning")]


def test_poison_without_dead_letters_is_told_and_counted_as_a_failed_delivery(
    make_bus: MakeBus, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make_bus(queue, dead_letters=False)
    queue.send([OutgoingMessage("no json")])

    bus.receive_once()

    assert [line["event"] for line in lines(caplog)] == ["bus_received", "bus_retried"]
    assert (bus.health().failed, bus.health().dead_lettered) == (1, 0)


def test_the_time_of_each_handler_is_measured_by_queue_and_handler() -> None:
    def charge(event: Anything) -> None:
        """Do nothing."""

    with connect("memory://") as backend, backend.bus("timed", "billing") as bus:
        bus.subscribe(Anything, charge)
        bus.start_receiver()
        bus.publish(Anything("a"))
        labels = {"service": "timed", "queue": "timed--billing", "handler": f"{__name__}.{charge.__qualname__}"}

        eventually(lambda: REGISTRY.get_sample_value("postroad_handler_seconds_count", labels) == 1)
