"""`postroad outbox`: what an operator of an outbox sees and does, and the dispatcher as a process."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.cli.terminal import Postroad
from tests.waiting import eventually

from postroad import OutgoingMessage, QueueSpec, SendResult, connect
from postroad.errors import RowRejected
from postroad.operations import AuditLog
from postroad.outbox import AesGcmCipher, DispatcherConfig, DomainEvent, Outbox, OutboxDispatcher
from postroad.outbox.schema import SCHEMA_VERSION

DSN = "sqlite:///app.db"
TOPIC = "events-transfers.fifo"
SIGNED = ("--by", "kim", "--reason", "the topic is back")


@pytest.fixture
def outbox(postroad: Postroad) -> Iterator[Outbox]:
    assert postroad("outbox", "init", "--dsn", DSN).code == 0
    outbox = Outbox.open(DSN)
    yield outbox
    outbox.close()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def record(outbox: Outbox) -> Callable[..., str]:
    """Record an event, in a state of one's choice."""

    def record(lane: str, *, state: str = "PENDING", error: str | None = None, tenant: str | None = None) -> str:
        connection = sqlite3.connect("app.db")
        with connection:
            event = DomainEvent(type="transfers.submitted", key={"transferId": lane}, payload={"amount": 1})
            event_id = str(outbox.add(connection, event, tenant_id=tenant))
            connection.execute(
                "UPDATE outbox SET state = ?, lasterror = ?, attempts = 10 WHERE event_id = ?", (state, error, event_id)
            )
        connection.close()
        return event_id

    return record


def test_init_makes_the_tables_and_may_be_repeated(postroad: Postroad) -> None:
    assert postroad("outbox", "init", "--dsn", DSN, "--json").document == {"version": SCHEMA_VERSION}
    assert postroad("outbox", "init", "--dsn", DSN).out == f"the outbox has version {SCHEMA_VERSION}\n"


def test_the_sql_of_init_can_be_read_before_it_runs(postroad: Postroad) -> None:
    printed = postroad("outbox", "init", "--dsn", DSN, "--print-sql")

    assert 'CREATE TABLE IF NOT EXISTS "outbox"' in printed.out
    assert postroad("outbox", "status", "--dsn", DSN).code == 2


def test_status_counts_and_speaks_prometheus(postroad: Postroad, record: Callable[..., str]) -> None:
    record("tr_1")
    record("tr_2", state="FAILED", error="rejected: no")

    document = postroad("outbox", "status", "--dsn", DSN, "--json").document
    assert (document["pending"], document["failed"], document["target_error"]) == (1, 1, None)
    assert postroad("outbox", "status", "--dsn", DSN, "--format", "json").document["pending"] == 1
    assert "1 pending" in postroad("outbox", "status", "--dsn", DSN).out
    gauges = postroad("outbox", "status", "--dsn", DSN, "--format", "prometheus", "--service", 'a"b').out
    assert 'event_outbox_backlog{service="a\\"b"} 1.0' in gauges
    assert 'dead_letter_count{service="a\\"b",queue=""} 1.0' in gauges


def test_failed_rows_are_listed_page_by_page_and_in_groups(postroad: Postroad, record: Callable[..., str]) -> None:
    ids = [record(f"tr_{number}", state="FAILED", error=f"Timeout: after {number} s") for number in range(3)]

    first = postroad("outbox", "failed", "--dsn", DSN, "--limit", "2", "--json").document
    second = postroad(
        "outbox", "failed", "--dsn", DSN, "--limit", "2", "--after", first["next_cursor"], "--json"
    ).document
    groups = postroad("outbox", "failed", "--dsn", DSN, "--groups", "--json").document
    people = postroad("outbox", "failed", "--dsn", DSN, "--limit", "2").out

    assert [row["event_id"] for row in (*first["items"], *second["items"])] == ids
    assert second["next_cursor"] is None
    assert [group["count"] for group in groups["items"]] == [3]
    assert people.splitlines()[-1] == f"more: --after {first['next_cursor']}"


@pytest.mark.parametrize("cursor", ["x", "-1", "\u0663", "9" * 20, "9" * 5_000])
def test_a_cursor_that_is_none_is_refused_with_its_field(
    postroad: Postroad, record: Callable[..., str], cursor: str
) -> None:
    record("tr_1", state="FAILED", error="rejected: no")

    refused = postroad("outbox", "failed", "--dsn", DSN, f"--after={cursor}")
    last = postroad("outbox", "failed", "--dsn", DSN, f"--after={'9' * 19}")

    assert refused.code == 2
    assert refused.err.startswith("error: after: ")
    assert "Give the next_cursor of a list." in refused.err
    assert (last.code, last.out) == (0, "no failed rows\n")


def test_a_held_key_is_listed_and_why_says_what_blocks_it(postroad: Postroad, record: Callable[..., str]) -> None:
    head = record("tr_1", state="FAILED", error="rejected: no")
    behind = record("tr_1")

    (key,) = postroad("outbox", "keys", "--dsn", DSN, "--json").document["items"]

    assert (key["lane"], key["head"], key["waiting"]) == ("tr_1", head, 1)
    assert postroad("outbox", "why", behind, "--dsn", DSN).out == f"blocked by {head}\n"
    unknown = postroad("outbox", "why", "0190b5b8-0000-7000-8000-000000000009", "--dsn", DSN)
    assert (unknown.code, unknown.out) == (1, "unknown\n")


def test_redrive_is_written_into_both_audits(postroad: Postroad, record: Callable[..., str], outbox: Outbox) -> None:
    event_id = record("tr_1", state="FAILED", error="rejected: no")

    dry = postroad("outbox", "redrive", event_id, *SIGNED, "--dry-run", "--dsn", DSN, "--json").document
    done = postroad("outbox", "redrive", "--type", "transfers.submitted", *SIGNED, "--dsn", DSN, "--json").document

    assert dry == {"redriven": [event_id], "dry_run": True}
    assert done == {"redriven": [event_id], "dry_run": False}
    row = outbox.get(event_id)
    assert row is not None
    assert row.state == "PENDING"
    (entry,) = postroad("outbox", "audit", "--dsn", DSN, "--json").document["items"]
    assert (entry["actor"], entry["action"], entry["reason"]) == ("kim", "redrive", "the topic is back")
    chained = [(each.actor, each.action) for each in AuditLog(Path("postroad-audit.jsonl")).read()]
    assert chained == [("kim", "outbox.redrive.start"), ("kim", "outbox.redrive.end")]


def test_what_is_redriven_is_chosen_by_key_tenant_group_and_number(
    postroad: Postroad, record: Callable[..., str]
) -> None:
    first, second = record("tr_1", state="FAILED", error="a", tenant="t1"), record("tr_2", state="FAILED", error="b")
    groups = postroad("outbox", "failed", "--groups", "--dsn", DSN, "--json").document["items"]
    group = next(each["group"] for each in groups if each["oldest"] == second)

    def chosen(*given: str) -> list[str]:
        dry = postroad("outbox", "redrive", *given, *SIGNED, "--dry-run", "--dsn", DSN, "--json")
        return list(dry.document["redriven"])

    assert chosen("--key", "tr_2") == chosen("--group", group) == [second]
    assert chosen("--tenant", "t1") == chosen("--type", "transfers.submitted", "--limit", "1") == [first]


@pytest.mark.parametrize(("target", "redriven"), [("closed", 1), ("open", 3)])
def test_the_rest_follows_a_canary_only_when_it_goes_through(
    target: str, redriven: int, postroad: Postroad, record: Callable[..., str], outbox: Outbox
) -> None:
    ids = [record(f"tr_{number}", state="FAILED", error="rejected: no") for number in range(3)]
    dispatcher = OutboxDispatcher(outbox, _Target(is_open=target == "open"), DispatcherConfig(poll=0.05))

    dispatcher.start()
    try:
        done = postroad(
            "outbox", "redrive", "--type", "transfers.submitted", "--canary", "1", *SIGNED, "--dsn", DSN, "--json"
        )
    finally:
        dispatcher.stop()

    assert done.document == {"redriven": ids[:redriven], "dry_run": False}
    assert [str(entry.event_id) for entry in reversed(outbox.audit())] == ids[:redriven]


@dataclass(frozen=True, slots=True)
class _Target:
    is_open: bool

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        return [SendResult(ok=self.is_open, error=None if self.is_open else RowRejected("no")) for _ in messages]


def test_skip_gives_an_event_up(postroad: Postroad, record: Callable[..., str], outbox: Outbox) -> None:
    event_id = record("tr_1", state="FAILED")

    assert postroad("outbox", "skip", event_id, *SIGNED, "--dsn", DSN, "--json").document == {"skipped": event_id}

    row = outbox.get(event_id)
    assert row is not None
    assert row.state == "SKIPPED"
    chained = [(each.actor, each.action) for each in AuditLog(Path("postroad-audit.jsonl")).read()]
    assert chained == [("kim", "outbox.skip.start"), ("kim", "outbox.skip.end")]


@pytest.mark.parametrize(
    "given",
    [
        ("--type", "a", "--by", "kim"),
        ("--type", "a", "--by", " ", "--reason", "x"),
        ("--by", "kim", "--reason", "x"),
        ("--type", "a", "--by", "kim", "--reason", "x", "--limit", "0"),
        ("--type", "a", "--by", "kim", "--reason", "x", "--canary", "0"),
    ],
)
def test_a_redrive_without_who_why_and_what_is_refused(
    given: tuple[str, ...], postroad: Postroad, outbox: Outbox
) -> None:
    assert postroad("outbox", "redrive", *given, "--dsn", DSN).code == 2
    assert outbox.audit() == []


@pytest.mark.parametrize("state", ["SENT", None])
def test_a_redrive_of_what_cannot_be_redriven_leaves_no_entry(
    state: str | None, postroad: Postroad, record: Callable[..., str], outbox: Outbox
) -> None:
    event_id = "0190b5b8-0000-7000-8000-000000000009" if state is None else record("tr_1", state=state)

    refused = postroad("outbox", "redrive", event_id, *SIGNED, "--dsn", DSN, "--json")

    assert refused.code == 1
    assert refused.problem["type"].endswith("not-redrivable")
    assert outbox.audit() == []


def test_prune_removes_what_was_sent_long_ago(postroad: Postroad, record: Callable[..., str]) -> None:
    record("tr_1", state="SENT")
    connection = sqlite3.connect("app.db")
    with connection:
        connection.execute("UPDATE outbox SET updatedat = '2020-01-01T00:00:00.000000Z'")
    connection.close()

    record("tr_2", state="SENT")

    assert postroad("outbox", "prune", "--dsn", DSN, "--json").document == {"pruned": 1}
    assert postroad("outbox", "prune", "--older-than", "0s", "--dsn", DSN, "--json").document == {"pruned": 1}


@pytest.mark.parametrize("dsn", ["mysql://x/y", "sqlite:///not-one.db", "sqlite:///empty.db"])
def test_a_database_that_cannot_be_used_is_exit_2_with_a_remedy(dsn: str, postroad: Postroad) -> None:
    Path("not-one.db").write_text("this is not a database, but a text of some length " * 20)

    refused = postroad("outbox", "status", "--dsn", dsn)

    assert refused.code == 2
    assert len(refused.err.splitlines()) >= 2


def test_a_database_that_does_not_answer_is_exit_3(postroad: Postroad) -> None:
    assert postroad("outbox", "status", "--dsn", "postgresql://nobody@127.0.0.1:9/x?connect_timeout=1").code == 3


def test_without_a_dsn_the_remedy_names_the_variables(postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PG_DSN", raising=False)
    monkeypatch.delenv("POSTROAD_OUTBOX_DSN", raising=False)

    refused = postroad("outbox", "status")

    assert refused.code == 2
    assert "PG_DSN" in refused.err


def test_run_drains_the_outbox_onto_the_topic_and_ends_with_its_report(
    postroad: Postroad, record: Callable[..., str]
) -> None:
    with connect("sqlite:///events.db") as backend:
        queue = backend.create_queue(QueueSpec("ledger.fifo", fifo=True))
        backend.topic(TOPIC, fifo=True).subscribe(queue)
    ids = [record("tr_1"), record("tr_1")]

    report = postroad("outbox", "run", "--topic", TOPIC, "--url", "sqlite:///events.db", "--dsn", DSN, "--drain")

    assert json.loads(report.out)["sent"] == 2
    with connect("sqlite:///events.db") as backend:
        bodies = [json.loads(message.body) for message in backend.queue("ledger.fifo").peek()]
    assert [body["envelope"]["eventId"] for body in bodies] == ids


def test_run_refuses_a_misspelt_topic_and_sends_nothing(postroad: Postroad, record: Callable[..., str]) -> None:
    with connect("sqlite:///events.db") as backend:
        backend.topic(TOPIC, fifo=True)
    record("tr_1")

    refused = postroad(
        "outbox", "run", "--topic", "events-transfer.fifo", "--url", "sqlite:///events.db", "--dsn", DSN, "--drain"
    )

    assert (refused.code, refused.out) == (2, "")
    assert refused.err.splitlines()[-3:-1] == [
        'error: topic "events-transfer.fifo" does not exist',
        f'did you mean "{TOPIC}"?',
    ]
    assert "--create-topic" in refused.err.splitlines()[-1]
    assert postroad("outbox", "status", "--dsn", DSN, "--json").document["pending"] == 1
    with connect("sqlite:///events.db") as backend:
        assert backend.topics() == [TOPIC]


def test_run_makes_a_topic_when_it_is_told_to_and_says_that_nobody_receives_from_it(
    postroad: Postroad, record: Callable[..., str]
) -> None:
    record("tr_1")
    target = ("--topic", TOPIC, "--url", "sqlite:///events.db", "--dsn", DSN, "--drain")

    made = postroad("outbox", "run", *target, "--create-topic")
    with connect("sqlite:///events.db") as backend:
        backend.topic(TOPIC, fifo=True, create=False).subscribe(backend.create_queue(QueueSpec("l.fifo", fifo=True)))
    heard = postroad("outbox", "run", *target)

    assert (made.code, json.loads(made.out)["sent"]) == (0, 1)
    assert made.err.count("outbox_no_receivers") == 1
    assert (heard.code, heard.err.count("outbox_no_receivers")) == (0, 0)


def test_run_takes_its_policy_its_keys_and_its_number_of_passes(postroad: Postroad, outbox: Outbox) -> None:
    keys = {"current": "k1", "keys": {"k1": base64.b64encode(b"k" * 32).decode()}}
    Path("keys.json").write_text(json.dumps(keys))
    Path("keys.json").chmod(0o600)
    sealed = Outbox.open(DSN, cipher=AesGcmCipher.from_file("keys.json"))
    with closing(sqlite3.connect("app.db")) as connection, connection:
        sealed.add(connection, DomainEvent(type="t", key={"k": "1"}, payload={"amount": 1}))
        sealed.add(connection, DomainEvent(type="t", key={"k": "2"}, payload={"amount": 1}))
    sealed.close()
    with connect("sqlite:///events.db") as backend:
        backend.topic(TOPIC, fifo=True).subscribe(backend.create_queue(QueueSpec("ledger.fifo", fifo=True)))
    target = ("--topic", TOPIC, "--url", "sqlite:///events.db", "--dsn", DSN)

    once = postroad("outbox", "run", *target, "--once", "--batch", "1", "--keyfile", "keys.json", "--policy", "park")

    assert json.loads(once.out) == {"claimed": 1, "sent": 1, "retried": 0, "failed": 0, "held": 0, "stale": 0}
    with connect("sqlite:///events.db") as backend:
        (message,) = backend.queue("ledger.fifo").peek()
    assert json.loads(message.body)["payload"] == {"amount": 1}
    with closing(sqlite3.connect("app.db")) as connection:
        assert connection.execute("SELECT policy FROM outbox_meta").fetchall() == [("park",)]


@pytest.mark.parametrize(
    "given",
    [
        ("--batch", "0"),
        ("--concurrency", "0"),
        ("--backoff", "1,x"),
        ("--retry-max", "0"),
        ("--lease", "0"),
        ("--policy", "drop"),
        ("--once", "--drain"),
        ("--keyfile", "open.json"),
    ],
)
def test_a_dispatcher_with_settings_that_cannot_work_is_refused(
    given: tuple[str, ...], postroad: Postroad, outbox: Outbox
) -> None:
    Path("open.json").write_text("{}")
    Path("open.json").chmod(0o644)

    assert postroad("outbox", "run", "--topic", TOPIC, "--dsn", DSN, *given).code == 2


def test_a_dispatcher_needs_a_topic(postroad: Postroad, outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SNS_ARN", raising=False)

    refused = postroad("outbox", "run", "--dsn", DSN, "--once")

    assert refused.code == 2
    assert "SNS_ARN" in refused.err


@pytest.mark.parametrize(
    ("topic", "environment", "code"),
    [
        ("arn:aws:sns:eu-west-1:123456789012:t.fifo", {}, 0),
        ("arn:aws:sns::123456789012:t.fifo", {"AWS_REGION": "eu-west-1"}, 0),
        ("arn:aws:sns::123456789012:t.fifo", {}, 2),
    ],
)
def test_the_topic_and_its_region_may_be_named_by_the_environment(
    topic: str,
    environment: dict[str, str],
    code: int,
    postroad: Postroad,
    outbox: Outbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "none")
    for name, value in (environment | {"SNS_ARN": topic}).items():
        monkeypatch.setenv(name, value)

    assert postroad("outbox", "run", "--dsn", DSN, "--once").code == code


def test_a_running_dispatcher_shows_its_metrics_and_stops_clean(
    outbox: Outbox, record: Callable[..., str], free_port: int
) -> None:
    arguments = ["outbox", "run", "--topic", TOPIC, "--create-topic", "--url", "sqlite:///events.db", "--dsn", DSN]
    arguments += ["--poll", "0.1"]
    arguments += ["--create-topic", "--metrics-port", str(free_port), "--service", "cts"]
    process = subprocess.Popen(
        [sys.executable, "-m", "postroad", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    event_id = record("tr_1")
    try:
        eventually(lambda: (row := outbox.get(event_id)) is not None and row.state == "SENT")
        with urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=10) as answer:
            shown = answer.read().decode()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()

    assert 'event_outbox_backlog{service="cts"} 0.0' in shown
    assert process.returncode == 0
    assert json.loads(out)["sent"] == 1


def test_the_alarms_come_in_both_formats(postroad: Postroad) -> None:
    rules = postroad("outbox", "alarms", "--json").document["groups"][0]["rules"]
    template = postroad("outbox", "alarms", "--format", "cloudformation", "--json").document

    lags = {
        "event_outbox_backlog": "event_outbox_backlog > 5000",
        "event_publish_lag_seconds": "event_publish_lag_seconds > 60",
        "event_consumer_lag_seconds": "event_consumer_lag_seconds > 300",
    }
    assert {rule["alert"] for rule in rules} == {*lags, "dead_letter_count"}
    assert {(rule["expr"], rule.get("for")) for rule in rules} == {
        *((f"{over} or {name} != {name} or absent({name})", "300s") for name, over in lags.items()),
        ("dead_letter_count >= 1", None),
    }
    assert {
        each["Properties"]["AlarmName"]: each["Properties"]["TreatMissingData"]
        for each in template["Resources"].values()
    } == {**dict.fromkeys(lags, "breaching"), "dead_letter_count": "notBreaching"}
    assert all("docs/runbooks/" in rule["annotations"]["description"] for rule in rules)


def test_the_policies_of_producer_and_consumer_hold_exactly_what_they_need(postroad: Postroad) -> None:
    topic, queue = "arn:aws:sns:eu-central-1:123456789012:t.fifo", "arn:aws:sqs:eu-central-1:123456789012:q.fifo"

    producer = postroad("outbox", "iam", "--role", "producer", "--topic-arn", topic, "--json").document
    consumer = postroad("outbox", "iam", "--role", "consumer", "--queue-arn", queue, "--json").document

    (publishes,) = producer["Statement"]
    assert (publishes["Action"], publishes["Resource"]) == (["sns:Publish"], [topic])
    (consumes,) = consumer["Statement"]
    assert sorted(consumes["Action"]) == [
        "sqs:ChangeMessageVisibility",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
        "sqs:ReceiveMessage",
    ]
    assert consumes["Resource"] == [queue]
    assert postroad("outbox", "iam", "--role", "producer").code == 2
    assert postroad("outbox", "iam", "--role", "consumer", "--queue-arn", "arn:aws:sqs:*:*:*").code == 2


def test_grants_are_printed_as_sql(postroad: Postroad) -> None:
    sql = postroad("outbox", "grants", "--role", "producer", "--to", "shop").out

    assert 'GRANT INSERT ON "public"."outbox" TO "shop";' in sql
    assert postroad("outbox", "grants", "--role", "producer", "--to", "a; drop").code == 2


def test_the_table_of_the_file_names_database_topic_and_service(postroad: Postroad, record: Callable[..., str]) -> None:
    Path("postroad.toml").write_text(f'[outbox]\ndsn = "{DSN}"\ntopic = "{TOPIC}"\nservice = "shop"\n')
    record("tr_1")

    gauges = postroad("outbox", "status", "--format", "prometheus").out
    published = postroad("outbox", "run", "--once", "--create-topic").document

    assert 'event_outbox_backlog{service="shop"} 1.0' in gauges
    assert published["sent"] == 1
    assert postroad("outbox", "status", "--dsn", "sqlite:///other.db").code == 2
