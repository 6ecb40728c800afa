"""`postroad outbox replay`: what was sent is published again, in order and audited."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.terminal import Postroad
from tests.cli.test_outbox import DSN, SIGNED, TOPIC, outbox, record

from postroad import QueueSpec, connect
from postroad.operations import AuditLog
from postroad.outbox import DomainEvent, Outbox

__all__ = ["outbox", "record"]


def test_what_was_sent_to_the_wrong_topic_is_replayed_to_the_right_one_in_order(
    postroad: Postroad, record: Callable[..., str]
) -> None:
    with connect("sqlite:///events.db") as backend:
        backend.topic("wrong.fifo", fifo=True)
        backend.topic(TOPIC, fifo=True).subscribe(backend.create_queue(QueueSpec("ledger.fifo", fifo=True)))
    ids = [record("tr_1"), record("tr_2"), record("tr_1")]
    where = ("--url", "sqlite:///events.db", "--dsn", DSN)
    assert json.loads(postroad("outbox", "run", "--topic", "wrong.fifo", *where, "--drain").out)["sent"] == 3
    chosen = ("outbox", "replay", "--since", "2020-01-01T00:00:00Z", "--to", TOPIC, *where, *SIGNED, "--json")

    planned = postroad(*chosen, "--dry-run")
    nothing_yet = postroad("outbox", "audit", "--dsn", DSN, "--json").document["items"]
    done = postroad(*chosen)

    counts = {"selected": 3, "failed": 0, "held": 0, "last_error": None}
    assert planned.document == {**counts, "replayed": 0, "dry_run": True}
    assert nothing_yet == []
    assert (done.code, done.document) == (0, {**counts, "replayed": 3, "dry_run": False})
    with connect("sqlite:///events.db") as backend:
        bodies = [json.loads(message.body) for message in backend.queue("ledger.fifo").peek()]
    assert [body["envelope"]["eventId"] for body in bodies if body["key"] == {"transferId": "tr_1"}] == ids[::2]
    assert sorted(body["envelope"]["eventId"] for body in bodies) == sorted(ids)
    entries = postroad("outbox", "audit", "--dsn", DSN, "--json").document["items"]
    assert {(each["actor"], each["action"], each["before"], each["after"]) for each in entries} == {
        ("kim", "replay", "SENT", "SENT")
    }
    assert sorted(each["event_id"] for each in entries) == sorted(ids)
    start, end = AuditLog(Path("postroad-audit.jsonl")).read()
    assert (start.action, end.action, end.detail["replayed"]) == ("outbox.replay.start", "outbox.replay.end", 3)


def test_a_replay_that_is_interrupted_says_in_the_audit_how_far_it_came(outbox: Outbox) -> None:
    with connect("sqlite:///events.db") as backend:
        backend.topic(TOPIC, fifo=True)
    with closing(sqlite3.connect("app.db")) as connection, connection:
        outbox.add_many(connection, [DomainEvent(type="t", key={"k": str(n)}, payload={}) for n in range(20_000)])
        connection.execute("UPDATE outbox SET state = 'SENT'")
    arguments = [
        "outbox",
        "replay",
        "--type",
        "t",
        "--to",
        TOPIC,
        "--url",
        "sqlite:///events.db",
        "--dsn",
        DSN,
        *SIGNED,
    ]
    process = subprocess.Popen([sys.executable, "-m", "postroad", *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "1,000 replayed" not in process.stderr.readline():
        assert process.poll() is None

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)

    assert process.returncode == 130
    _, end = AuditLog(Path("postroad-audit.jsonl")).read()
    assert (end.action, end.detail["interrupted"]) == ("outbox.replay.end", True)
    assert 1_000 <= end.detail["replayed"] <= len(outbox.audit(limit=20_000)) < 20_000


@pytest.mark.parametrize(
    "given",
    [
        ("--type", "transfers.submitted", "--to", TOPIC, "--by", "kim"),
        ("--type", "transfers.submitted", "--to", TOPIC, "--by", " ", "--reason", "x"),
        ("--type", "transfers.submitted", *SIGNED),
        ("--to", TOPIC, *SIGNED),
        ("--since", "2026-01-31", "--to", TOPIC, *SIGNED),
        ("--type", "transfers.submitted", "--to", "events-transfer.fifo", *SIGNED),
    ],
)
def test_a_replay_that_does_not_say_what_where_who_or_why_is_refused(
    given: tuple[str, ...], postroad: Postroad, record: Callable[..., str]
) -> None:
    with connect("sqlite:///events.db") as backend:
        backend.topic(TOPIC, fifo=True).subscribe(backend.create_queue(QueueSpec("ledger.fifo", fifo=True)))
    record("tr_1", state="SENT")

    refused = postroad("outbox", "replay", *given, "--url", "sqlite:///events.db", "--dsn", DSN)

    assert refused.code == 2
    with connect("sqlite:///events.db") as backend:
        assert backend.queue("ledger.fifo").stats().visible == 0


def test_a_replay_that_matches_nothing_is_exit_1(postroad: Postroad, record: Callable[..., str]) -> None:
    with connect("sqlite:///events.db") as backend:
        backend.topic(TOPIC, fifo=True)
    record("tr_1")

    where = ("--to", TOPIC, "--url", "sqlite:///events.db", "--dsn", DSN)
    outcome = postroad("outbox", "replay", "--type", "transfers.submitted", *where, *SIGNED)

    assert (outcome.code, outcome.out) == (1, f"replayed 0 of 0 to {TOPIC}\n")
