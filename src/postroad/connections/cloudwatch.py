"""Gauges on their way to CloudWatch, under the names that Prometheus sees."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from postroad.connections.aws import AwsConnection
from postroad.connections.aws_errors import translated
from postroad.errors import PostroadError
from postroad.telemetry import get_logger

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

NAMESPACE: Final = "Postroad"
EVERY_SECONDS: Final = 60.0
_MOST_AT_ONCE: Final = 500


@contextmanager
def reporting(
    registry: CollectorRegistry, connection: AwsConnection, *, every: float = EVERY_SECONDS
) -> Iterator[None]:
    """Report the gauges of the registry now, every minute and once more at the end."""
    done = threading.Event()

    def work() -> None:
        while True:
            _report(registry, connection)
            if done.wait(every):
                return

    thread = threading.Thread(target=work, name="postroad-cloudwatch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        _report(registry, connection)


def put_gauges(registry: CollectorRegistry, connection: AwsConnection) -> int:
    """Send every gauge that has a figure; how many."""
    data = list(_figures(registry))
    for first in range(0, len(data), _MOST_AT_ONCE):
        with translated("cloudwatch"):
            connection.cloudwatch.put_metric_data(Namespace=NAMESPACE, MetricData=data[first : first + _MOST_AT_ONCE])
    return len(data)


def _report(registry: CollectorRegistry, connection: AwsConnection) -> None:
    # A report that fails must not stop the work it reports on.
    try:
        put_gauges(registry, connection)
    except PostroadError as error:
        get_logger("cloudwatch").warning("cloudwatch_failed", error=str(error))


def _figures(registry: CollectorRegistry) -> Iterator[Any]:
    for metric in registry.collect():
        if metric.type != "gauge":
            continue
        for sample in metric.samples:
            if math.isfinite(sample.value):
                labels = [{"Name": name, "Value": value} for name, value in sample.labels.items() if value]
                # Alarms look at the figure of all services together.
                for dimensions in (labels, []) if labels else ([],):
                    yield {"MetricName": sample.name, "Dimensions": dimensions, "Value": sample.value}
