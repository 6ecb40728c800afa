"""The seed's own SQL, word for word, from its table to its three queues."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
from tests.outbox.dispatching.conftest import MakeDispatcher
from tests.outbox.fixtures import postgres_fixture
from tests.outbox.test_migrating import SEED_ROW, SEED_TABLE

from postroad import connect
from postroad.outbox import bus_name
from postroad.topology import apply, transfers_topology

QUEUES = ("gateway-usdc.fifo", "ledger-postings.fifo", "projections-timeline.fifo")


def test_what_the_seeds_sql_inserts_reaches_its_queues_under_legal_names(
    postgres_dsn: str, tmp_path: Path, dispatcher_of: MakeDispatcher
) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(SEED_TABLE)
        connection.execute(SEED_ROW)
    fixture = postgres_fixture(postgres_dsn)
    with connect(f"sqlite:///{tmp_path / 'bus.db'}") as backend:
        apply(transfers_topology(), backend)
        topic = backend.topic(bus_name("events.transfers"), fifo=True)

        report = dispatcher_of(fixture.outbox, topic).drain()

        arrived = [backend.queue(name).peek() for name in QUEUES]
    [(event_id, state)] = fixture.run("SELECT payload -> 'envelope' ->> 'eventId', state FROM outbox")
    fixture.outbox.close()
    assert (report.sent, state) == (1, "SENT")
    for [message] in arrived:
        body = json.loads(message.body)
        assert list(body) == ["envelope", "key", "payload"]
        assert body["envelope"]["occurredAt"].endswith("Z")
        assert body["payload"] == {"amount": {"value": "10.00", "currency": "USD"}}
        assert (message.group, message.attributes["EventId"]) == ("tnt_demo:tr_test_123", event_id)
        assert message.attributes["EventType"] == "events.transfers.submitted.usdc"
