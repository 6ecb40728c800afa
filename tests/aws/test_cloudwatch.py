"""Gauges and histograms on CloudWatch: under Prometheus' names, from the command, and never in the way of the work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from tests.outbox.fixtures import OutboxFixture, sqlite_fixture

from postroad.cli.app import run
from postroad.connections.aws import AwsConnection
from postroad.connections.cloudwatch import NAMESPACE, Reporter, reporting

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch.literals import StatisticType

pytestmark = pytest.mark.aws


@pytest.fixture
def on_sqlite(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[OutboxFixture]:
    monkeypatch.chdir(tmp_path)
    fixture = sqlite_fixture(tmp_path / "app.db")
    yield fixture
    fixture.outbox.close()


def figures(aws: AwsConnection, name: str, statistic: StatisticType = "Maximum", **dimensions: str) -> list[float]:
    """What CloudWatch has of the metric under exactly these dimensions, in the last hours."""
    now = datetime.now(UTC)
    answer = aws.cloudwatch.get_metric_statistics(
        Namespace=NAMESPACE,
        MetricName=name,
        StartTime=now - timedelta(hours=1),
        EndTime=now + timedelta(hours=1),
        Period=7_200,
        Statistics=[statistic],
        Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
    )
    return [point.get(statistic, 0.0) for point in answer["Datapoints"]]


def test_every_gauge_is_sent_with_its_labels_and_without(moto_aws: AwsConnection, unique: Callable[[str], str]) -> None:
    registry, name, idle = CollectorRegistry(), unique("backlog").replace("-", "_"), unique("idle").replace("-", "_")
    Gauge(name, "x", ["service", "queue"], registry=registry).labels(service="shop", queue="").set(7)
    Gauge(idle, "x", registry=registry).set(float("nan"))
    Counter("handled", "x", registry=registry).inc()

    sent = Reporter(registry, moto_aws).put()

    assert sent == 2
    assert figures(moto_aws, name, service="shop") == [7.0]
    assert figures(moto_aws, name) == [7.0]


def test_more_gauges_than_one_call_takes_are_sent_in_several(
    moto_aws: AwsConnection, unique: Callable[[str], str]
) -> None:
    registry, name = CollectorRegistry(), unique("many").replace("-", "_")
    gauge = Gauge(name, "x", ["service"], registry=registry)
    for n in range(300):
        gauge.labels(service=f"s{n}").set(n)

    assert Reporter(registry, moto_aws).put() == 600
    assert figures(moto_aws, name, service="s299") == [299.0]


def test_a_histogram_tells_what_it_counted_since_the_last_report(
    moto_aws: AwsConnection, unique: Callable[[str], str]
) -> None:
    registry, name = CollectorRegistry(), unique("seconds").replace("-", "_")
    histogram = Histogram(name, "x", ["service"], buckets=(0.1, 1.0), registry=registry).labels(service="shop")
    reporter = Reporter(registry, moto_aws)
    for seconds in (0.05, 0.05, 0.5, 7.0):
        histogram.observe(seconds)

    first = reporter.put()
    nothing_new = reporter.put()
    histogram.observe(0.5)
    reporter.put()

    assert (first, nothing_new) == (2, 0)
    assert figures(moto_aws, name, "SampleCount", service="shop") == [5]
    assert figures(moto_aws, name, "Sum", service="shop") == [pytest.approx(0.1 + 0.1 + 1 + 1 + 1)]


def test_a_report_that_is_refused_does_not_stop_what_it_reports_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry, nowhere = CollectorRegistry(), AwsConnection("us-east-1", "http://127.0.0.1:1", attempts=1)
    Gauge("backlog", "x", registry=registry).set(1)

    with reporting(registry, nowhere):
        pass

    nowhere.close()
    assert caplog.text.count("cloudwatch_failed") == 2


@pytest.mark.usefixtures("logs_as_they_were")
def test_a_dispatcher_reports_to_the_cloudwatch_of_its_backend(
    on_sqlite: OutboxFixture,
    moto_url: str,
    moto_aws: AwsConnection,
    unique: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    service, fifo = unique("shop"), {"FifoTopic": "true"}
    topic = moto_aws.sns.create_topic(Name=f"{unique('events')}.fifo", Attributes=fifo)["TopicArn"]
    on_sqlite.set(on_sqlite.add(), state="FAILED")

    code = run(
        [
            "outbox",
            "run",
            "--topic",
            topic,
            "--url",
            f"aws://us-east-1?endpoint_url={moto_url}",
            "--cloudwatch",
            "--dsn",
            on_sqlite.dsn,
            "--service",
            service,
            "--once",
        ]
    )

    assert (code, json.loads(capsys.readouterr().out)["claimed"]) == (0, 0)
    assert figures(moto_aws, "dead_letter_count", service=service) == [1.0]
    assert figures(moto_aws, "event_outbox_backlog", service=service) == [0.0]
    assert figures(moto_aws, "event_publish_lag_seconds", service=service) == [0.0]
