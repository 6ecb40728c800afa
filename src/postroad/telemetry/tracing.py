"""Metrics of Prometheus and spans of OpenTelemetry. Both libraries are imported when they are first needed.

Without OpenTelemetry there are no spans; whoever sets up tracing installs its SDK, which brings the API along."""

from __future__ import annotations

import re
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_METRICS = {
    "event_outbox_backlog": ("Rows of the outbox that wait to be published.", ("service",)),
    "event_publish_lag_seconds": ("Age of the oldest row that waits to be published, 0 if none does.", ("service",)),
    "dead_letter_count": ("Failed rows of an outbox, or dead letters of a consumer's queue.", ("service", "queue")),
    "event_consumer_lag_seconds": ("Age of the oldest event being handled, 0 when idle.", ("service", "queue")),
    "postroad_publish_seconds": ("Time from the recording of an event to its publication.", ("service",)),
    "postroad_handler_seconds": ("Duration of a call to a handler.", ("service", "queue", "handler")),
    "event_inbox_conflicts": ("Known event ids that arrived with different content.", ("consumer",)),
    "notifications": ("Messages of the chat pipeline by outcome.", ("queue", "outcome")),
    "offline_conflicts": ("Stored messages that arrived again with different content.", ()),
    "push_results": ("Answers of push providers, one for each device.", ("provider", "outcome")),
}
"""The help text and the labels of each metric."""
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
    with _making:
        return _made(kind, name, registry)


@cache
def _made(kind: str, name: str, registry: CollectorRegistry | None) -> Any:
    import prometheus_client

    return getattr(prometheus_client, kind)(name, *_METRICS[name], registry=registry or prometheus_client.REGISTRY)


def publishing(name: str) -> AbstractContextManager[object]:
    """Return a span around sending to this topic or queue."""
    return _span(f"publish {name}", "PRODUCER")


def handling_by(handler: object, traceparent: str | None) -> AbstractContextManager[object]:
    """Return a span around one handler, the child of the span that published the event."""
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return _span(f"handle {name}", "CONSUMER", traceparent)


def redriving(name: str) -> AbstractContextManager[object]:
    """Return a span around moving this queue's dead letters back."""
    attributes = {"messaging.system": "postroad", "messaging.destination.name": name}
    return _span(f"redrive {name}", "INTERNAL", attributes=attributes)


def _span(name: str, kind: str, traceparent: str | None = None, **options: Any) -> AbstractContextManager[object]:
    api = _api()
    if api is None:
        return _NOTHING
    tracer = _tracer()
    # If nobody has set up tracing, a span would only cost time.
    if isinstance(tracer, api.ProxyTracer) and isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return _NOTHING
    if traceparent is not None:
        options["context"] = _propagator().extract({"traceparent": traceparent})
    return tracer.start_as_current_span(name, kind=getattr(api.SpanKind, kind), **options)


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
