"""`GET /metrics`: what the engine counts, what this server and the runners measure, as text for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import nan
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from postroad import __version__
from postroad.http.attention import age, size
from postroad.http.overview import Measured
from postroad.outbox import OutboxStatus
from postroad.queues import QueueCounters, QueueOverview
from postroad.views import Part

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
MOST_QUEUES: Final = 200
"""Further queues are counted together."""
OTHERS: Final = "_other"
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_OF_ENGINE: Final = frozenset(
    {"event_outbox_backlog", "event_publish_lag_seconds", "event_consumer_lag_seconds", "dead_letter_count"}
)
"""What the engine and the outbox know for all processes, so that what one process knows is left out."""


class RequestMetrics:
    """Counts the requests of this server. It is used on the event loop only."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._times: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def add(self, route: str, method: str, status: int, seconds: float | None) -> None:
        """Count an answered request. `seconds` is None for a stream, which lasts as long as its caller likes."""
        self._requests[route, method if method in _METHODS else "other", status] += 1
        if seconds is not None:
            times = self._times.setdefault(route, [0] * (len(_BUCKETS) + 1))
            times[bisect_left(_BUCKETS, seconds)] += 1
            self._sums[route] = self._sums.get(route, 0.0) + seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        requests = CounterMetricFamily(
            "postroad_http_requests", "Answered HTTP requests.", labels=("route", "method", "status")
        )
        for (route, method, status), count in list(self._requests.items()):
            requests.add_metric((route, method, str(status)), count)
        yield requests
        seconds = HistogramMetricFamily("postroad_http_request_seconds", "Duration of a request.", labels=("route",))
        names = [*map(str, _BUCKETS), "+Inf"]
        for route, times in list(self._times.items()):
            buckets = list(zip(names, map(float, accumulate(times)), strict=True))
            seconds.add_metric((route,), buckets=buckets, sum_value=self._sums[route])
        yield seconds


def exposition(
    found: Measured, *, parts: Iterable[Part], requests: RequestMetrics, service: str, directory: Path
) -> bytes:
    """Return all metrics as text.

    Args:
        found: What the stores hold.
        parts: The parts of the process.
        requests: What this server has answered.
        service: The label of the outbox.
        directory: The files in which the runners measure; it may be missing.
    """
    registry = CollectorRegistry(auto_describe=False)
    own = [*_of_queues(found), *_of_outbox(found.outbox, service), *_of_parts(parts), *requests.collect()]
    registry.register(_Collected(own))
    if directory.is_dir():
        # The library has no annotations here.
        files: Any = MultiProcessCollector
        others: Iterable[Metric] = files(None, path=str(directory)).collect()
        registry.register(_Collected([each for each in others if each.name not in _OF_ENGINE]))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _of_queues(found: Measured) -> Iterator[Metric]:
    named, others = found.queues[:MOST_QUEUES], found.queues[MOST_QUEUES:]
    rows: list[tuple[str, Sequence[QueueOverview]]] = [(each.spec.name, (each,)) for each in named]
    rows += [(OTHERS, others)] if others else []
    yield _messages(found, rows)
    held = GaugeMetricFamily("postroad_queue_messages", "Messages of a queue.", labels=("queue", "state"))
    for name, queues in rows:
        for state in ("visible", "in_flight", "delayed"):
            held.add_metric((name, state), sum(getattr(each.stats, state) for each in queues))
    yield held
    oldest = [(name, max(map(age, queues))) for name, queues in rows]
    yield _gauge("postroad_queue_oldest_age_seconds", "Age of the oldest message, 0 if there is none.", "queue", oldest)
    yield from _of_consumers(found, rows)


def _gauge(name: str, says: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return a gauge with one label."""
    gauge = GaugeMetricFamily(name, says, labels=(label,))
    for labelled, value in values:
        gauge.add_metric((labelled,), value)
    return gauge


def _of_consumers(found: Measured, rows: Sequence[tuple[str, Sequence[QueueOverview]]]) -> Iterator[Metric]:
    """Yield the lags of the queues that have consumers, and the sizes of those that hold dead letters."""
    lags, dead = list[tuple[str, float]](), list[tuple[str, float]]()
    for name, queues in rows:
        letters = [each for each in queues if each.spec.name in found.dead_letter_queues]
        working = [each for each in queues if each.spec.name not in found.dead_letter_queues]
        if working:
            lags.append((name, max(map(age, working))))
        if letters:
            dead.append((name, sum(map(size, letters))))
    if isinstance(found.outbox, OutboxStatus):
        dead.append(("", found.outbox.failed))
    yield _gauge(
        "event_consumer_lag_seconds", "Age of the oldest message that is not handled, 0 if none is.", "queue", lags
    )
    yield _gauge("dead_letter_count", "Dead letters of a queue, or of the outbox.", "queue", dead)


def _messages(found: Measured, rows: Sequence[tuple[str, Sequence[QueueOverview]]]) -> Metric:
    """Return what happened on each queue; queues that were deleted are among the others, so that sums are true."""
    messages = CounterMetricFamily(
        "postroad_messages", "What happened to messages, in all processes.", labels=("queue", "outcome")
    )
    rest: Counter[str] = Counter(dict.fromkeys(QueueCounters.__struct_fields__, 0))
    if found.deleted is not None:
        rest.update({name: getattr(found.deleted, name) for name in rest})
    for name, queues in rows:
        for each in queues:
            if each.counters is None:
                continue
            counted = {outcome: getattr(each.counters, outcome) for outcome in QueueCounters.__struct_fields__}
            if name == OTHERS:
                rest.update(counted)
            else:
                for outcome, count in counted.items():
                    messages.add_metric((name, outcome), count)
    if any(rest.values()):
        for outcome, count in rest.items():
            messages.add_metric((OTHERS, outcome), count)
    return messages


def _of_outbox(found: OutboxStatus | str | None, service: str) -> Iterator[Metric]:
    """Yield backlog and lag of the outbox; NaN while it cannot be read, 0 if there is none."""
    backlog = lag = 0.0 if found is None else nan
    if isinstance(found, OutboxStatus):
        backlog, lag = found.pending, found.oldest_pending_seconds
    yield _gauge(
        "event_outbox_backlog", "Rows of the outbox that wait to be published.", "service", [(service, backlog)]
    )
    yield _gauge(
        "event_publish_lag_seconds", "Age of the oldest row that waits to be published.", "service", [(service, lag)]
    )


def _of_parts(parts: Iterable[Part]) -> Iterator[Metric]:
    up = [(part.name, float(part.state == "running")) for part in parts]
    yield _gauge("postroad_part_up", "Whether a part of `postroad up` runs.", "part", up)
    yield _gauge("postroad_build_info", "The version that runs.", "version", [(__version__, 1)])
