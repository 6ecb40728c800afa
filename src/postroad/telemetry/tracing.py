"""Metrics of Prometheus and spans of OpenTelemetry. Both libraries are imported when they are first needed.

Without OpenTelemetry there are no spans; whoever sets up tracing installs its SDK, which brings the API along."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_METRICS = {
    "event_outbox_backlog": ("Rows of the outbox that wait to be published.", ("service",)),
    "event_publish_lag_seconds": ("Age of the oldest row that waits to be published, 0 if none does.", ("service",)),
    "dead_letter_count": ("Failed rows of an outbox, or dead letters of a consumer's queue.", ("service", "queue")),
    "event_consumer_lag_seconds": ("Age of the oldest event being handled, 0 when idle.", ("service", "queue")),
    "postroad_bus_events_total": ("What became of the events of a bus.", ("bus", "outcome")),
    "postroad_task_events_total": ("What became of tasks.", ("event",)),
    "postroad_publish_seconds": ("Time from the recording of an event to its publication.", ("service",)),
    "postroad_handler_seconds": ("Duration of a call to a handler.", ("service", "queue", "handler")),
    "event_inbox_conflicts": ("Known event ids that arrived with different content.", ("consumer",)),
    "notifications": ("Messages of the chat pipeline by outcome.", ("queue", "outcome")),
    "offline_conflicts": ("Stored messages that arrived again with different content.", ()),
    "push_results": ("Answers of push providers, one for each device.", ("provider", "outcome")),
}
"""The help text and the labels of each metric."""
TRACE_ATTRIBUTE: Final = "TraceParent"
"""The attribute of a message that holds the trace of its event."""
_MESSAGE_ID: Final = "messaging.message.id"
_making = threading.Lock()
_NOTHING = nullcontext()
# Version, trace id, span id and flags; neither id may be all zeros, and version ff is forbidden.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def gauge(name: str, registry: CollectorRegistry | None = None) -> Gauge:
    """Return the gauge of this name, made once, in Prometheus's default registry unless another is given."""
    return cast("Gauge", _metric("Gauge", name, registry))


def histogram(name: str, registry: CollectorRegistry | None = None) -> Histogram:
    """Return the histogram of this name, made once, in Prometheus's default registry unless another is given."""
    return cast("Histogram", _metric("Histogram", name, registry))


def counter(name: str) -> Counter:
    """Return the counter of this name, made once; Prometheus shows it with the suffix `_total`."""
    return cast("Counter", _metric("Counter", name, None))


def _metric(kind: str, name: str, registry: CollectorRegistry | None) -> Any:
    # If two threads found the cache empty, both would register the metric, and the second would be refused.
    with _making:
        return _made(kind, name, registry)


@cache
def _made(kind: str, name: str, registry: CollectorRegistry | None) -> Any:
    import prometheus_client

    return getattr(prometheus_client, kind)(name, *_METRICS[name], registry=registry or prometheus_client.REGISTRY)


def publishing(name: str, messages: Iterable[Any] = ()) -> AbstractContextManager[object]:
    """Return a span around sending to this topic or queue, with a link to the trace of each message that has one.

    Messages are whatever has `attributes`, here and below.
    """
    return _span(f"publish {name}", "PRODUCER", name, linked=messages)


def receiving(queue: str, messages: Iterable[Any]) -> AbstractContextManager[object]:
    """Return a span around taking these messages from the queue, with a link to the trace of each."""
    return _span(f"receive {queue}", "CONSUMER", queue, linked=messages)


def handling_by(
    handler: object, traceparent: str | None, *, queue: str | None = None, message_id: str | None = None
) -> AbstractContextManager[object]:
    """Return a span around one handler or task, given by itself or its name: the child of the span that published."""
    known = handler if isinstance(handler, str) else getattr(handler, "__qualname__", None)
    name = known or type(handler).__qualname__
    return _span(f"handle {name}", "CONSUMER", queue, message_id, traceparent)


def dead_lettering(queue: str, message: Any, message_id: str) -> AbstractContextManager[object]:
    """Return a span in the trace of a message that moves to the dead letters of this queue."""
    return _span(f"dead_letter {queue}", "INTERNAL", queue, message_id, message.attributes.get(TRACE_ATTRIBUTE))


def redriving(name: str) -> AbstractContextManager[object]:
    return _span(f"redrive {name}", "INTERNAL", name)


def name_message(message_id: str) -> None:
    """Write the id of the message into the current span, which began before the message was made."""
    if _is_set_up():
        _api().get_current_span().set_attribute(_MESSAGE_ID, message_id)


def note_failure(error: str) -> None:
    """Mark the current span as failed, for work whose error is not raised in this process."""
    if _is_set_up():
        api = _api()
        api.get_current_span().set_status(api.Status(api.StatusCode.ERROR, error))


def _span(
    name: str,
    kind: str,
    place: str | None,
    message_id: str | None = None,
    traceparent: str | None = None,
    linked: Iterable[Any] = (),
) -> AbstractContextManager[object]:
    if not _is_set_up():
        return _NOTHING
    attributes = {"messaging.system": "postroad", "messaging.destination.name": place, _MESSAGE_ID: message_id}
    options: dict[str, Any] = {"attributes": {key: value for key, value in attributes.items() if value is not None}}
    if traceparent is not None:
        options["context"] = _propagator().extract({"traceparent": traceparent})
    api = _api()
    if found := [each.attributes[TRACE_ATTRIBUTE] for each in linked if TRACE_ATTRIBUTE in each.attributes]:
        contexts = (_propagator().extract({"traceparent": each}) for each in found)
        options["links"] = [api.Link(api.get_current_span(each).get_span_context()) for each in contexts]
    return _tracer().start_as_current_span(name, kind=getattr(api.SpanKind, kind), **options)


def _is_set_up() -> bool:
    """Return whether somebody has set up tracing; otherwise a span would only cost time."""
    api = _api()
    return api is not None and not (
        isinstance(_tracer(), api.ProxyTracer) and isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)
    )


def trace_id(traceparent: str | None) -> str | None:
    """Return the id of the trace that a `traceparent` names."""
    return None if traceparent is None else traceparent[3:35]


def valid_traceparent(text: object) -> str | None:
    """Return the text if it is a `traceparent` in the form of the W3C, otherwise None."""
    return text if isinstance(text, str) and _TRACEPARENT.fullmatch(text) else None


def traceparent() -> str | None:
    """Return the current span as the header that joins traces, or None outside of any span."""
    api = _api()
    if api is None or (span := api.get_current_span()) is api.INVALID_SPAN or not span.get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get("traceparent")


@cache
def _tracer() -> Tracer:
    tracer: Tracer = _api().get_tracer("postroad")
    return tracer


@cache
def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


@cache
def _api() -> Any:
    """Return the API of OpenTelemetry, or None if it is not installed."""
    try:
        import opentelemetry.trace
    except ImportError:
        return None
    return opentelemetry.trace
