"""Reports of gauges and histograms to CloudWatch, under the names that Prometheus sees."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from postroad.connections.aws import AwsConnection
from postroad.connections.aws_calls import translated
from postroad.errors import PostroadError
from postroad.telemetry import get_logger

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

NAMESPACE: Final = "Postroad"
EVERY_SECONDS: Final = 60.0
_MOST_AT_ONCE: Final = 500
Series = tuple[str, frozenset[tuple[str, str]]]
"""A histogram's name and labels."""


@contextmanager
def reporting(registry: Collector, connection: AwsConnection, *, every: float = EVERY_SECONDS) -> Iterator[None]:
    """Report the figures of the registry now, every minute and once more at the end of the block."""
    done, reporter = threading.Event(), Reporter(registry, connection)

    def work() -> None:
        while True:
            _report(reporter)
            if done.wait(every):
                return

    thread = threading.Thread(target=work, name="postroad-cloudwatch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        _report(reporter)


class Reporter:
    """Sends the present values of gauges, and what histograms counted since the last report."""

    def __init__(self, registry: Collector, connection: AwsConnection) -> None:
        self._registry = registry
        self._connection = connection
        self._reported: dict[Series, dict[float, float]] = {}

    def put(self) -> int:
        """Send all figures and return how many were sent."""
        reported: dict[Series, dict[float, float]] = {}
        data = list(self._figures(reported))
        for first in range(0, len(data), _MOST_AT_ONCE):
            chunk = data[first : first + _MOST_AT_ONCE]
            with translated("cloudwatch"):
                self._connection.cloudwatch.put_metric_data(Namespace=NAMESPACE, MetricData=chunk)
        # After a failed report, the next one covers everything since the last successful one.
        self._reported.update(reported)
        return len(data)

    def _figures(self, reported: dict[Series, dict[float, float]]) -> Iterator[Any]:
        for metric in self._registry.collect():
            if metric.type == "gauge":
                for sample in metric.samples:
                    if math.isfinite(sample.value):
                        yield from _datums(sample.name, sample.labels, {"Value": sample.value})
            elif metric.type == "histogram":
                yield from self._histogram(metric, reported)

    def _histogram(self, metric: Metric, reported: dict[Series, dict[float, float]]) -> Iterator[Any]:
        for labels, counts in _counted(metric).items():
            series = (metric.name, labels)
            reported[series] = counts
            before = self._reported.get(series, {})
            new = {bound: count - before.get(bound, 0.0) for bound, count in counts.items()}
            values = {bound: count for bound, count in new.items() if count > 0}
            if values:
                figure = {"Values": list(values), "Counts": list(values.values()), "Unit": "Seconds"}
                yield from _datums(metric.name, dict(labels), figure)


def _report(reporter: Reporter) -> None:
    # A report that fails must not stop the work it reports on.
    try:
        reporter.put()
    except PostroadError as error:
        get_logger("cloudwatch").warning("cloudwatch_failed", error=str(error))


def _counted(metric: Metric) -> dict[frozenset[tuple[str, str]], dict[float, float]]:
    """Return the count of each bucket of a histogram, by labels and upper bound."""
    found: dict[frozenset[tuple[str, str]], dict[float, float]] = {}
    below: dict[frozenset[tuple[str, str]], tuple[float, float]] = {}
    for sample in metric.samples:
        if not sample.name.endswith("_bucket"):
            continue
        labels = frozenset((name, value) for name, value in sample.labels.items() if name != "le")
        last, count = below.get(labels, (0.0, 0.0))
        # The last bucket has no bound; it counts as the one before.
        bound = last if sample.labels["le"] == "+Inf" else float(sample.labels["le"])
        counts = found.setdefault(labels, {})
        counts[bound] = counts.get(bound, 0.0) + sample.value - count
        below[labels] = (bound, sample.value)
    return found


def _datums(name: str, labels: dict[str, str], figure: dict[str, Any]) -> Iterator[Any]:
    dimensions = [{"Name": label, "Value": value} for label, value in labels.items() if value]
    # Alarms use the figure of all services together.
    for each in (dimensions, []) if dimensions else ([],):
        yield {"MetricName": name, "Dimensions": each, **figure}
