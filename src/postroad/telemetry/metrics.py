"""The metrics of outbox, consumers and notifications, each made once, whoever in the process needs it first."""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_making = threading.Lock()
_GAUGES = {
    "event_outbox_backlog": ("Rows of the outbox that wait to be published.", ("service",)),
    "event_publish_lag_seconds": ("Age of the oldest row that waits to be published, 0 when none does.", ("service",)),
    "dead_letter_count": ("Failed rows of an outbox, or dead letters of a consumer's queue.", ("service", "queue")),
    "event_consumer_lag_seconds": ("Age of the oldest event being handled, 0 when idle.", ("service", "queue")),
}
_HISTOGRAMS = {
    "postroad_publish_seconds": ("From the recording of an event to its publication.", ("service",)),
    "postroad_handler_seconds": ("How long a consumer's handler took.", ("service", "queue")),
}
_COUNTERS = {
    "event_inbox_conflicts": ("Known event ids that came with another content.", ("consumer",)),
    "notifications": ("Messages of the chat pipeline by what became of them.", ("queue", "outcome")),
    "offline_conflicts": ("Stored messages that came again with another content.", ()),
    "push_results": ("Answers of push providers, one for each device asked.", ("provider", "outcome")),
}


def gauge(name: str, registry: CollectorRegistry | None = None) -> Gauge:
    """The gauge of this name, in Prometheus's own registry or in another."""
    with _making:
        return _gauge(name, registry)


def histogram(name: str, registry: CollectorRegistry | None = None) -> Histogram:
    """The histogram of this name, in Prometheus's own registry or in another."""
    with _making:
        return _histogram(name, registry)


def counter(name: str) -> Counter:
    """The counter of this name; Prometheus shows it with `_total` at the end."""
    with _making:
        return _counter(name)


@cache
def _gauge(name: str, registry: CollectorRegistry | None) -> Gauge:
    from prometheus_client import REGISTRY, Gauge

    return Gauge(name, *_GAUGES[name], registry=registry or REGISTRY)


@cache
def _histogram(name: str, registry: CollectorRegistry | None) -> Histogram:
    from prometheus_client import REGISTRY, Histogram

    return Histogram(name, *_HISTOGRAMS[name], registry=registry or REGISTRY)


@cache
def _counter(name: str) -> Counter:
    from prometheus_client import Counter

    return Counter(name, *_COUNTERS[name])
