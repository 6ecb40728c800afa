"""The function that saves events: from EventBridge, through a queue, into the table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from postroad.connections.aws import AwsConnection
from postroad.errors import ConfigurationError, InvalidEvent
from postroad.journal import EventBridgeSender, Journal, JournalEvent
from postroad.journal.dynamodb import DynamoRecords
from postroad.journal.overflow import Overflow
from postroad.journal.store import StoredJournal
from postroad.lambdas.save_event import handler

pytestmark = pytest.mark.aws


def pending(task: str, tenant: str = "acme", **given: Any) -> JournalEvent:
    properties = {"requestId": task, "name": "scrape"}
    return JournalEvent.create("Task Pending", tenant_id=tenant, entity_id=task, properties=properties, **given)


def record(body: Any, message_id: str = "m-1") -> dict[str, Any]:
    return {"messageId": message_id, "body": body if isinstance(body, str) else json.dumps(body)}


@pytest.fixture
def journal(
    aws: AwsConnection, unique: Callable[[str], str], ministack_url: str, monkeypatch: pytest.MonkeyPatch
) -> Journal:
    """The journal on the table that the function uses."""
    table = unique("events")
    monkeypatch.setenv("EVENTS_TABLE", table)
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    made = StoredJournal(DynamoRecords(aws, table), Overflow(None))
    made.init()
    return made


def saved(journal: Journal, tenant: str = "acme") -> list[JournalEvent]:
    return journal.query("PK", tenant=tenant).events


def test_an_event_is_saved_once_with_the_time_of_saving(journal: Journal) -> None:
    event = pending("req-1")

    answers = [handler({"detail-type": "log-event", "detail": event.to_item()}) for _ in range(2)]

    assert answers == [{"eventId": str(event.event_id)}] * 2
    (found,) = saved(journal)
    assert found.event_id == event.event_id
    assert found.received_at is not None
    assert found.ttl is None


def test_days_to_live_become_a_time_in_seconds(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTS_TTL_DAYS", "30")

    handler({"detail": pending("req-1").to_item()})

    (found,) = saved(journal)
    assert found.ttl is not None
    assert found.received_at is not None
    assert found.ttl == found.received_at // 1000 + 30 * 86_400


@pytest.mark.parametrize(
    "change", [{"ttl": 1}, {"receivedAt": 1}, {"more": 1}, {"PK": "TENANT#other"}, {"tenantId": "other"}]
)
def test_what_a_sender_only_claims_is_refused_and_nothing_is_written(journal: Journal, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent):
        handler({"detail": {**pending("req-1").to_item(), **change}})

    assert saved(journal) == saved(journal, "other") == []


def test_only_allowed_tenants_are_saved(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_TENANTS", "acme, shop")

    handler({"detail": pending("req-1").to_item()})
    with pytest.raises(InvalidEvent, match="tenantId"):
        handler({"detail": pending("req-1", tenant="acm").to_item()})

    assert len(saved(journal)) == 1
    assert saved(journal, "acm") == []


def test_a_type_that_nobody_knows_is_saved(journal: Journal) -> None:
    event = JournalEvent.create(
        "Store Opened", tenant_id="acme", entity_id="s-1", entity_type="STORE", properties={"x": 1}
    )

    handler({"detail": event.to_item()})

    assert saved(journal)[0].properties == {"x": 1}


def test_of_a_batch_only_what_failed_is_answered(journal: Journal) -> None:
    good = pending("req-1")
    records = [
        record({"detail": good.to_item()}, "good"),
        record("not json", "torn"),
        record({"detail": {**good.to_item(), "ttl": 5}}, "claimed"),
        record({"other": 1}, "foreign"),
        record("[" * 100_000, "deep"),
    ]

    answer = handler({"Records": records})

    failed = [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]
    assert failed == ["torn", "claimed", "foreign", "deep"]
    assert [event.event_id for event in saved(journal)] == [good.event_id]


def test_without_a_table_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVENTS_TABLE", raising=False)

    with pytest.raises(ConfigurationError, match="EVENTS_TABLE"):
        handler({"detail": pending("req-1").to_item()})


@pytest.mark.parametrize("days", ["0", "-1", "x", "1.5"])
def test_days_that_are_none_are_refused(journal: Journal, monkeypatch: pytest.MonkeyPatch, days: str) -> None:
    monkeypatch.setenv("EVENTS_TTL_DAYS", days)

    with pytest.raises(ConfigurationError, match="EVENTS_TTL_DAYS"):
        handler({"detail": pending("req-1").to_item()})

    assert saved(journal) == []


def test_an_event_reaches_the_table_through_a_bus_and_a_queue(
    aws: AwsConnection, journal: Journal, unique: Callable[[str], str]
) -> None:
    name = unique("events")
    aws.events.create_event_bus(Name=name)
    queue_url = aws.sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = aws.sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    aws.events.put_rule(Name=name, EventBusName=name, EventPattern='{"detail-type": ["log-event"]}')
    aws.events.put_targets(Rule=name, EventBusName=name, Targets=[{"Id": "save", "Arn": arn}])
    events = [pending(f"req-{n}", app="shop") for n in range(12)]

    results = EventBridgeSender(aws.events, event_bus_name=name).append(events)

    assert all(result.ok for result in results)
    deadline = time.monotonic() + 30
    while len(saved(journal)) < len(events) and time.monotonic() < deadline:
        got = aws.sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        records = [record(message["Body"], message["MessageId"]) for message in got.get("Messages", [])]
        assert handler({"Records": records}) == {"batchItemFailures": []}
    assert {event.event_id for event in saved(journal)} == {event.event_id for event in events}
