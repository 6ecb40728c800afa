"""Spans of OpenTelemetry, joined across processes; without its SDK they cost next to nothing."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


_NOTHING = nullcontext()
# Version, trace id, span id and flags; neither id may be all zeros, and version ff is forbidden.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def publishing(name: str) -> AbstractContextManager[object]:
    """A span around sending to this topic or queue."""
    tracer = _tracer()
    if _records_nothing(tracer):
        return _NOTHING
    return tracer.start_as_current_span(f"publish {name}", kind=_api().SpanKind.PRODUCER)


def handling_by(handler: object, traceparent: str | None) -> AbstractContextManager[object]:
    """A span around one handler, the child of the span that published the event."""
    tracer = _tracer()
    if _records_nothing(tracer):
        return _NOTHING
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = None if traceparent is None else TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return tracer.start_as_current_span(f"handle {name}", context=parent, kind=_api().SpanKind.CONSUMER)


def redriving(name: str) -> AbstractContextManager[object]:
    """A span around sending this queue's dead letters back."""
    tracer = _tracer()
    if _records_nothing(tracer):
        return _NOTHING
    attributes = {"messaging.system": "postroad", "messaging.destination.name": name}
    return tracer.start_as_current_span(f"redrive {name}", attributes=attributes)


def valid_traceparent(text: object) -> str | None:
    """The text, when it is a `traceparent` in the form of the W3C; None for anything else."""
    return text if isinstance(text, str) and _TRACEPARENT.fullmatch(text) else None


def traceparent() -> str | None:
    """The current span as the header that joins traces; None when there is none."""
    if not _api().get_current_span().get_span_context().is_valid:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def _records_nothing(tracer: Tracer) -> bool:
    """Whether nobody has set up tracing: a span would only cost time then."""
    api = _api()
    return isinstance(tracer, api.ProxyTracer) and isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


@cache
def _tracer() -> Tracer:
    tracer: Tracer = _api().get_tracer("postroad")
    return tracer


@cache
def _api() -> Any:
    """OpenTelemetry, imported when the first event passes."""
    import opentelemetry.trace

    return opentelemetry.trace
