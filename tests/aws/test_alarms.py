"""The rendered alarms, judged by figures of real processes: a dead dispatcher and a hung handler set them off."""

from __future__ import annotations

import operator
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.aws.emulators import moto
from tests.inbox.fixtures import inbox_fixture
from tests.inbox.mail import event, send
from tests.outbox.fixtures import OutboxFixture, sqlite_fixture
from tests.waiting import NEVER_SECONDS, eventually

from postroad import QueueSpec, connect
from postroad.connections.aws import AwsConnection
from postroad.inbox import Consumer, DomainEvent
from postroad.topology import alarm_rules, evaluate_alarms, render_cloudformation, transfers_topology

pytestmark = pytest.mark.aws
OUTBOX = {"event_outbox_backlog", "event_publish_lag_seconds"}
LAG = "event_consumer_lag_seconds"
COMPARE = {">": operator.gt, ">=": operator.ge, "!=": operator.ne}
OPERATORS = {"GreaterThanThreshold": operator.gt, "GreaterThanOrEqualToThreshold": operator.ge}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An emulator of its own: the alarms look at the figures of all services together."""
    with moto(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture
def aws(cloud: str) -> Iterator[AwsConnection]:
    urlopen(f"{cloud}/moto-api/reset", data=b"", timeout=30).close()
    connection = AwsConnection("us-east-1", cloud)
    yield connection
    connection.close()


@pytest.fixture
def on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OutboxFixture]:
    monkeypatch.chdir(tmp_path)
    with connect("sqlite:///events.db") as backend:
        backend.topic("events.fifo", fifo=True)
    fixture = sqlite_fixture(tmp_path / "app.db")
    yield fixture
    fixture.outbox.close()


def firing(samples: dict[str, list[float]]) -> set[str]:
    """The rules of Prometheus that these samples set off."""
    rules = alarm_rules(transfers_topology())["groups"][0]["rules"]
    return {rule["alert"] for rule in rules if any(_holds(term, samples) for term in rule["expr"].split(" or "))}


def _holds(term: str, samples: dict[str, list[float]]) -> bool:
    """One term of an expression: `absent(metric)`, or a comparison with a number or with the metric itself."""
    if absent := re.fullmatch(r"absent\((\w+)\)", term):
        return not samples.get(absent[1])
    metric, sign, than = term.split(" ")
    return any(COMPARE[sign](value, value if than == metric else float(than)) for value in samples.get(metric, []))


def in_alarm(aws: AwsConnection, now: datetime) -> set[str]:
    """The alarms of the template that are in alarm at this time, as the documentation of CloudWatch describes it."""
    resources = render_cloudformation(transfers_topology())["Resources"].values()
    alarms = [each["Properties"] for each in resources if each["Type"] == "AWS::CloudWatch::Alarm"]
    return {alarm["AlarmName"] for alarm in alarms if all(_breaches(aws, alarm, now))}


def _breaches(aws: AwsConnection, alarm: dict[str, Any], now: datetime) -> Iterator[bool]:
    """Whether each of the periods breaches the threshold, one without figures as the alarm says."""
    for back in range(alarm["EvaluationPeriods"]):
        end = now - timedelta(seconds=alarm["Period"] * back)
        answer = aws.cloudwatch.get_metric_statistics(
            Namespace=alarm["Namespace"],
            MetricName=alarm["MetricName"],
            Dimensions=alarm["Dimensions"],
            StartTime=end - timedelta(seconds=alarm["Period"]),
            EndTime=end,
            Period=alarm["Period"],
            Statistics=[alarm["Statistic"]],
        )
        points: list[dict[str, Any]] = [dict(point) for point in answer["Datapoints"]]
        values = [point[alarm["Statistic"]] for point in points]
        over = OPERATORS[alarm["ComparisonOperator"]]
        yield (
            any(over(value, alarm["Threshold"]) for value in values)
            if values
            else (alarm["TreatMissingData"] == "breaching")
        )


def scraped(text: str) -> dict[str, list[float]]:
    """The samples of a page of metrics, by name."""
    samples: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.value)
    return samples


@contextmanager
def dispatching(*flags: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A dispatcher as a process, and the address of its metrics."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "postroad", "outbox", "run", "--topic", "events.fifo", "--metrics-port", str(port)]
    process = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process, f"http://127.0.0.1:{port}/metrics"
    finally:
        process.kill()
        process.wait()


def page(address: str) -> str | None:
    """The page of metrics; None while nobody answers."""
    try:
        with urlopen(address, timeout=10) as answer:
            return str(answer.read().decode())
    except (URLError, ConnectionError):
        return None


def test_a_dispatcher_that_is_killed_sets_off_its_alarms(
    on_sqlite: OutboxFixture, cloud: str, aws: AwsConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    place = ("--url", "sqlite:///events.db", "--dsn", on_sqlite.dsn, "--cloudwatch")

    with dispatching(*place) as (process, address):
        eventually(lambda: page(address))
        alive = scraped(page(address) or "")
        eventually(lambda: all(_reported(aws, metric) is not None for metric in OUTBOX))
        now = datetime.now(UTC) + timedelta(seconds=1)
        process.send_signal(signal.SIGKILL)
        process.wait()

    assert firing(alive) == {LAG}, "no consumer runs here"
    assert page(address) is None
    assert firing(scraped("")) == {*OUTBOX, LAG}
    assert in_alarm(aws, now) == {LAG}
    assert in_alarm(aws, now + timedelta(minutes=6)) == {*OUTBOX, LAG}


def test_a_dispatcher_that_cannot_count_its_rows_sets_off_its_alarms(
    on_sqlite: OutboxFixture, aws: AwsConnection
) -> None:
    with dispatching("--url", "sqlite:///events.db", "--dsn", on_sqlite.dsn) as (_, address):
        eventually(lambda: page(address))
        on_sqlite.run("ALTER TABLE outbox RENAME TO gone")
        eventually(lambda: firing(scraped(page(address) or "")) == {*OUTBOX, LAG})

        assert scraped(page(address) or "")["event_outbox_backlog"], "it is there, and no number"


def test_a_handler_that_hangs_sets_off_the_alarm_of_consumers(tmp_path: Path, cloud: str, aws: AwsConnection) -> None:
    begun, go_on = threading.Event(), threading.Event()
    old = replace(event("tr_1"), occurred_at=datetime.now(UTC) - timedelta(seconds=400))

    def handler(event: DomainEvent, effect: object) -> None:
        begun.set()
        go_on.wait(NEVER_SECONDS)

    with inbox_fixture(f"sqlite:///{tmp_path}/app.db") as fixture, connect("memory://") as backend:
        queue = backend.create_queue(QueueSpec("postings.fifo", fifo=True))
        consumer = Consumer(queue, handler, name="ledger", inbox=fixture.inbox, effects="external", service="alarming")
        consumer.report_to_cloudwatch(interval=0.05, region="us-east-1", endpoint_url=cloud)
        consumer.start()
        try:
            eventually(lambda: _reported(aws, LAG) is not None)
            idle = firing(_own(queue.name)), in_alarm(aws, datetime.now(UTC) + timedelta(seconds=1))
            send(queue, old)
            assert begun.wait(120)
            hung = firing(_own(queue.name))
            # The figures of a minute that has just begun may still say that all is well.
            eventually(lambda: {alarm.name for alarm in _on_aws(cloud) if alarm.state == "alarm"} == {*OUTBOX, LAG})
        finally:
            go_on.set()
            consumer.stop()

    assert idle == (OUTBOX, OUTBOX), "no dispatcher runs here"
    assert hung == {*OUTBOX, LAG}
    assert _reported(aws, "postroad_handler_seconds") is not None
    assert not {metric["MetricName"] for metric in aws.cloudwatch.list_metrics()["Metrics"]} & {"python_info"}
    assert in_alarm(aws, datetime.now(UTC) + timedelta(minutes=6)) == {*OUTBOX, LAG}


def test_a_consumer_that_has_stopped_reports_nothing_more(tmp_path: Path, cloud: str, aws: AwsConnection) -> None:
    with inbox_fixture(f"sqlite:///{tmp_path}/app.db") as fixture, connect("memory://") as backend:
        queue = backend.create_queue(QueueSpec("postings.fifo", fifo=True))
        consumer = Consumer(queue, lambda event, connection: None, name="ledger", inbox=fixture.inbox)
        consumer.report_to_cloudwatch(interval=0.01, region="us-east-1", endpoint_url=cloud)

        consumer.start()
        eventually(lambda: _reported(aws, LAG) is not None)
        consumer.stop()

    assert "postroad-cloudwatch" not in {thread.name for thread in threading.enumerate()}


def _own(queue: str) -> dict[str, list[float]]:
    """The samples of this process about one queue: other tests of the process have left some, too."""
    lines = generate_latest(REGISTRY).decode().splitlines()
    own = [line for line in lines if f'queue="{queue}"' in line and 'service="alarming"' in line]
    return scraped("\n".join([*own, ""]))


def _reported(aws: AwsConnection, metric: str) -> float | None:
    now = datetime.now(UTC)
    answer = aws.cloudwatch.get_metric_statistics(
        Namespace="Postroad",
        MetricName=metric,
        StartTime=now - timedelta(minutes=5),
        EndTime=now + timedelta(minutes=5),
        Period=3_600,
        Statistics=["Maximum"],
        Dimensions=[],
    )
    return max((point["Maximum"] for point in answer["Datapoints"]), default=None)


def _on_aws(cloud: str) -> tuple[Any, ...]:
    with connect(f"aws://us-east-1?endpoint_url={cloud}") as backend:
        return evaluate_alarms(transfers_topology(), backend)
