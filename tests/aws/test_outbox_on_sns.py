"""The dispatcher with a FIFO topic on SNS: events arrive in order, and a topic that is not there costs no attempt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry
from tests.aws.emulators import moto
from tests.outbox.fixtures import OutboxFixture, sqlite_fixture

from postroad import Backend, QueueSpec, connect
from postroad.cli.app import run
from postroad.connections.aws import AwsConnection
from postroad.operations import doctor
from postroad.outbox import DispatcherConfig, OutboxDispatcher

pytestmark = pytest.mark.aws
QUICK = DispatcherConfig(poll=0.05, target_pause=0.1)


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[OutboxFixture]:
    fixture = sqlite_fixture(tmp_path / "app.db")
    yield fixture
    fixture.outbox.close()


@pytest.fixture
def backend(ministack_url: str) -> Iterator[Backend]:
    with connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        yield backend


def test_events_reach_a_subscribed_queue_in_the_order_of_their_keys(
    on_sqlite: OutboxFixture, backend: Backend, unique: Callable[[str], str]
) -> None:
    queue = backend.create_queue(QueueSpec(f"{unique('ledger')}.fifo", fifo=True))
    topic = backend.topic(f"{unique('events')}.fifo", fifo=True)
    topic.subscribe(queue)
    events = [on_sqlite.add(key={"transferId": f"tr_{n % 3}"}, payload={"n": n}) for n in range(12)]

    report = OutboxDispatcher(on_sqlite.outbox, topic, QUICK, metrics=CollectorRegistry()).drain()

    received: dict[str | None, list[bytes]] = {}
    while deliveries := queue.receive(wait=1):
        for delivery in deliveries:
            received.setdefault(delivery.group, []).append(delivery.body)
        queue.ack(deliveries)
    assert report.sent == 12
    assert received == {
        f"tr_{lane}": [event.to_json() for event in events if event.key["transferId"] == f"tr_{lane}"]
        for lane in range(3)
    }


def test_a_topic_that_is_not_there_costs_no_attempt(
    on_sqlite: OutboxFixture, backend: Backend, unique: Callable[[str], str]
) -> None:
    on_sqlite.add()
    missing = backend.topic(f"arn:aws:sns:us-east-1:000000000000:{unique('gone')}.fifo", fifo=True)

    report = OutboxDispatcher(on_sqlite.outbox, missing, QUICK, metrics=CollectorRegistry()).run_once()

    assert (report.claimed, report.held) == (1, 1)
    assert on_sqlite.run("SELECT state, attempts FROM outbox") == [("PENDING", 0)]
    assert "TopicNotFound" in str(on_sqlite.outbox.status().target_error)


@pytest.mark.usefixtures("logs_as_they_were")
def test_a_misspelt_topic_of_sns_is_refused_with_the_nearest_and_not_made(
    on_sqlite: OutboxFixture,
    backend: Backend,
    ministack_url: str,
    unique: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = unique("events")
    assert backend.topic(f"{name}.fifo", fifo=True).subscriptions() == []
    on_sqlite.add()
    place = ("--url", f"aws://us-east-1?endpoint_url={ministack_url}", "--dsn", on_sqlite.dsn, "--once")

    refused = run(["outbox", "run", "--topic", f"{name}x.fifo", *place])
    found = run(["outbox", "run", "--topic", f"{name}.fifo", *place])

    written = capsys.readouterr()
    assert (refused, found) == (2, 0)
    assert f'did you mean "{name}.fifo"?' in written.err
    assert written.err.count("outbox_no_receivers") == 1
    assert json.loads(written.out)["sent"] == 1
    assert f"{name}x.fifo" not in backend.topics()
    assert f"{name}.fifo" in backend.topics_without_subscriptions()
    assert ("topic-unheard", f"{name}.fifo") in [(each.code, each.target) for each in doctor(backend)]


@pytest.mark.usefixtures("logs_as_they_were")
def test_a_producer_that_may_publish_and_nothing_else_publishes_by_the_name_of_its_topic(
    on_sqlite: OutboxFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with moto(tmp_path) as url:
        place = ("--url", f"aws://us-east-1?endpoint_url={url}", "--dsn", on_sqlite.dsn, "--once")
        with connect(f"aws://us-east-1?endpoint_url={url}") as backend:
            queue = backend.create_queue(QueueSpec("ledger.fifo", fifo=True))
            backend.topic("events.fifo", fifo=True).subscribe(queue)
        _sign_in_as_producer(url, monkeypatch)
        on_sqlite.add()

        missing = run(["outbox", "run", "--topic", "event.fifo", *place])
        error = on_sqlite.outbox.status().target_error
        found = run(["outbox", "run", "--topic", "events.fifo", *place])

    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (missing, found) == (0, 0)
    assert [(report["held"], report["sent"]) for report in reports] == [(1, 0), (0, 1)]
    assert "TopicNotFound" in str(error)


def _sign_in_as_producer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the emulator enforce rights, and take credentials with the right to publish, and to know who one is."""
    rights = ["sns:Publish", "sns:PublishBatch", "sts:GetCallerIdentity"]  # AWS itself asks for the first one only
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": rights, "Resource": "*"}]}
    with closing(AwsConnection("us-east-1", url)) as admin:
        admin.iam.create_user(UserName="producer")
        admin.iam.put_user_policy(UserName="producer", PolicyName="publish", PolicyDocument=json.dumps(policy))
        key = admin.iam.create_access_key(UserName="producer")["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    plain = {"Content-Type": "text/plain"}
    urlopen(Request(f"{url}/moto-api/reset-auth", data=b"0", headers=plain, method="POST"), timeout=30).close()
