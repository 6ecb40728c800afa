"""Spans of OpenTelemetry, joined across processes; without its SDK they cost next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


@contextmanager
def publishing(name: str) -> Iterator[None]:
    """A span around sending to this topic or queue."""
    from opentelemetry.trace import SpanKind

    with _tracer().start_as_current_span(f"publish {name}", kind=SpanKind.PRODUCER):
        yield


@contextmanager
def handling_by(handler: object, traceparent: str | None) -> Iterator[None]:
    """A span around one handler, the child of the span that published the event."""
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = None if traceparent is None else TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    with _tracer().start_as_current_span(f"handle {name}", context=parent, kind=SpanKind.CONSUMER):
        yield


def traceparent() -> str | None:
    """The current span as the header that joins traces; None when there is none."""
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not get_current_span().get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


@cache
def _tracer() -> Tracer:
    from opentelemetry.trace import get_tracer

    return get_tracer("postroad")
