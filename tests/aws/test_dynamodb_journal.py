"""The journal on DynamoDB keeps every rule of journals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.aws.endpoint import Answer, Endpoint

from postroad.blobs.s3 import S3Blobs
from postroad.connections.aws import AwsConnection
from postroad.connections.aws_resources import TableShape, make_table
from postroad.errors import ConfigurationError, Unavailable
from postroad.items.dynamodb import DynamoItems
from postroad.journal.dynamodb import DynamoRecords
from postroad.journal.keys import EVENTS
from postroad.journal.maintenance import Expiry, Pruned, prune
from postroad.journal.overflow import Overflow
from postroad.journal.store import StoredJournal
from postroad.testing.journal import JournalConformance, JournalFixture
from postroad.testing.journal_queries import T0, add, completed, pending, whole
from postroad.wiring import connect

pytestmark = pytest.mark.aws


def fresh(connection: AwsConnection, unique: Callable[[str], str]) -> JournalFixture:
    bucket = unique("journal")
    connection.s3.create_bucket(Bucket=bucket)
    blobs = S3Blobs(connection, bucket)
    journal = StoredJournal(DynamoRecords(connection, unique("events")), Overflow(blobs))
    journal.init()
    return JournalFixture(journal=journal, blobs=blobs)


class TestJournalOnMinistack(JournalConformance):
    @pytest.fixture
    def ground(self, aws: AwsConnection, unique: Callable[[str], str]) -> JournalFixture:
        return fresh(aws, unique)


@pytest.fixture
def table(unique: Callable[[str], str]) -> str:
    return unique("events")


def keys(hash_key: str, range_key: str) -> list[Any]:
    return [{"AttributeName": hash_key, "KeyType": "HASH"}, {"AttributeName": range_key, "KeyType": "RANGE"}]


def test_the_table_is_made_as_its_schema_says(aws: AwsConnection, table: str) -> None:
    DynamoRecords(aws, table).init()

    made = aws.dynamodb.describe_table(TableName=table)["Table"]
    assert made["KeySchema"] == keys("PK", "SK")
    assert made["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert [
        (i["IndexName"], i["KeySchema"], i["Projection"]["ProjectionType"]) for i in made["GlobalSecondaryIndexes"]
    ] == [(f"GSI{n}-index", keys(f"GSI{n}PK", f"GSI{n}SK"), "ALL") for n in range(1, 8)]
    ttl = aws.dynamodb.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}


def test_a_table_that_differs_is_refused_with_the_difference(aws: AwsConnection, table: str) -> None:
    make_table(aws.dynamodb, table, TableShape(keys=("PK", "SK")))

    with pytest.raises(ConfigurationError, match="there is no index GSI1-index") as refused:
        DynamoRecords(aws, table).init()

    assert refused.value.field == "table"
    ttl = aws.dynamodb.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert ttl["TimeToLiveStatus"] == "DISABLED"


def test_an_index_that_differs_is_refused_with_the_difference(aws: AwsConnection, table: str) -> None:
    other = EVENTS.definition()
    other["GlobalSecondaryIndexes"][4]["Projection"] = {"ProjectionType": "KEYS_ONLY"}
    other["GlobalSecondaryIndexes"][6]["KeySchema"] = keys("GSI7PK", "GSI6SK")
    other["AttributeDefinitions"] = other["AttributeDefinitions"][:-1]
    aws.dynamodb.create_table(TableName=table, **other)

    with pytest.raises(ConfigurationError) as refused:
        DynamoRecords(aws, table).init()

    assert "ProjectionType of GSI5-index is KEYS_ONLY, not ALL" in str(refused.value)
    assert "the key of index GSI7-index is another one" in str(refused.value)
    assert "GSI7PK" not in str(refused.value)


def test_a_table_whose_making_broke_off_is_finished(aws: AwsConnection, table: str) -> None:
    aws.dynamodb.create_table(TableName=table, **EVENTS.definition())

    DynamoRecords(aws, table).init()

    ttl = aws.dynamodb.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert ttl["TimeToLiveStatus"] == "ENABLED"


def test_a_table_whose_items_end_at_another_attribute_is_refused(aws: AwsConnection, table: str) -> None:
    aws.dynamodb.create_table(TableName=table, **EVENTS.definition())
    aws.dynamodb.update_time_to_live(
        TableName=table, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"}
    )

    with pytest.raises(ConfigurationError, match="its items end at expires, not at ttl"):
        DynamoRecords(aws, table).init()


def test_a_missing_table_is_told_with_its_remedy(aws: AwsConnection, table: str) -> None:
    journal = StoredJournal(DynamoRecords(aws, table), Overflow(None))

    with pytest.raises(ConfigurationError, match="there is no DynamoDB table") as refused:
        journal.append([pending("req-1")])
    with pytest.raises(ConfigurationError):
        journal.query("PK", tenant="acme")

    assert "postroad journal init" in refused.value.remedy


def test_leases_and_jobs_of_the_same_table_are_no_events(aws: AwsConnection, table: str) -> None:
    journal, items = StoredJournal(DynamoRecords(aws, table), Overflow(None)), DynamoItems(aws, table)
    journal.init()
    event = pending("req-1")
    add(journal, [event])

    items.put("acme/LEASE#TASK#req-1", b"{}")
    items.put("acme/JOB#job-1", b"{}")

    assert whole(journal, "PK") == whole(journal, "GSI1", entity=("TASK", "req-1")) == [event.event_id]
    row = aws.dynamodb.get_item(
        TableName=table, Key={"PK": {"S": "TENANT#acme"}, "SK": {"S": "LEASE#TASK#req-1"}}, ConsistentRead=True
    )["Item"]
    assert not [name for name in row if name.startswith("GSI")]
    assert [item.key for item in items.scan("acme/LEASE#").items] == ["acme/LEASE#TASK#req-1"]


def test_an_outage_is_each_events_own_result(scripted_aws: AwsConnection, scripted: Endpoint) -> None:
    scripted.on("PutItem", Answer({}), Answer({"__type": "x#ThrottlingException"}, 400), Answer({}))
    journal = StoredJournal(DynamoRecords(scripted_aws, "events"), Overflow(None))

    results = journal.append([pending("a"), pending("b"), pending("c")])

    assert [result.ok for result in results] == [True, False, False]
    assert isinstance(results[1].error, Unavailable)


def test_a_backend_finds_its_table_and_its_bus_in_the_environment(
    ministack_url: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTS_TABLE", table)
    url = f"aws://us-east-1?endpoint_url={ministack_url}"
    event = pending("req-1")

    with connect(url) as backend:
        backend.journal().init()
        add(backend.journal(), [event])
        backend.items().put("acme/LEASE#TASK#req-1", b"{}")
    monkeypatch.setenv("EVENT_BUS_NAME", "default")
    with connect(url) as backend:
        sent = backend.journal().append([pending("req-2")])

        assert sent[0].ok
        assert whole(backend.journal(), "PK") == [event.event_id]
        assert backend.journal().latest("acme", "TASK", "req-1") is not None
        backend.journal().init()


def test_an_operator_prunes_the_table_and_nobody_else_does(aws: AwsConnection, unique: Callable[[str], str]) -> None:
    fixture = fresh(aws, unique)
    events = [pending("req-1", 1), completed("req-1", 2, output="x" * 300_000), pending("req-2", 3)]
    add(fixture.journal, events)

    assert Expiry(fixture.journal, "acme").step(T0 + 10**10) == 0
    pruned = prune(fixture.journal, "acme", before=T0 + 10)

    assert pruned == Pruned(removed=2, kept=1)
    assert whole(fixture.journal, "PK") == [events[2].event_id]
    assert aws.s3.list_objects_v2(Bucket=fixture.blobs.bucket).get("KeyCount") == 0
