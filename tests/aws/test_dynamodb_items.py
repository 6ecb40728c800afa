"""Items on DynamoDB keep every rule of items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.aws.endpoint import Answer, Endpoint

from postroad.connections.aws import AwsConnection
from postroad.errors import ConfigurationError, OutcomeUnknown
from postroad.items import Item, ItemResult
from postroad.items.dynamodb import DynamoItems
from postroad.journal.dynamodb import DynamoRecords
from postroad.testing.items import ItemsConformance, ItemsFixture

pytestmark = pytest.mark.aws


def fresh(connection: AwsConnection, table: str) -> ItemsFixture:
    DynamoRecords(connection, table).init()
    return ItemsFixture(items=DynamoItems(connection, table))


class TestItemsOnMinistack(ItemsConformance):
    @pytest.fixture
    def ground(self, aws: AwsConnection, unique: Callable[[str], str]) -> ItemsFixture:
        return fresh(aws, unique("items"))


class TestItemsOnMoto(ItemsConformance):
    known_differences = {
        "test_of_many_threads_one_wins_each_version": "moto checks a condition and writes in two steps",
    }

    @pytest.fixture
    def ground(self, moto_aws: AwsConnection, unique: Callable[[str], str]) -> ItemsFixture:
        return fresh(moto_aws, unique("items"))


def test_a_missing_table_is_told_with_its_remedy(aws: AwsConnection, unique: Callable[[str], str]) -> None:
    items = DynamoItems(aws, unique("missing"))

    with pytest.raises(ConfigurationError, match="there is no DynamoDB table") as refused:
        items.get("acme/a")

    assert "postroad journal init" in refused.value.remedy


def test_making_the_table_twice_changes_nothing(aws: AwsConnection, unique: Callable[[str], str]) -> None:
    records = DynamoRecords(aws, table := unique("items"))
    records.init()
    items = DynamoItems(aws, table)
    items.put("acme/a", b"x")

    records.init()

    assert items.get("acme/a") is not None


def test_a_put_that_meets_its_own_unanswered_attempt_took_place(scripted: Endpoint) -> None:
    connection = AwsConnection("us-east-1", scripted.url, read_timeout=0.3, attempts=2)

    def refused(call: dict[str, Any]) -> Answer:
        own = call["ExpressionAttributeValues"][":write"]
        written = {"value": {"B": "bWluZQ=="}, "version": {"N": "3"}, "write": own}
        return Answer({"__type": "x#ConditionalCheckFailedException", "Item": written}, 400)

    scripted.on("UpdateItem", Answer(silent=True), refused)

    result = DynamoItems(connection, "items").put("acme/a", b"mine", expect=2)
    connection.close()

    assert result == ItemResult(ok=True, item=Item(key="acme/a", value=b"mine", version=3))


def test_a_delete_that_finds_nothing_after_an_unanswered_attempt_is_unknown(scripted: Endpoint) -> None:
    connection = AwsConnection("us-east-1", scripted.url, read_timeout=0.3, attempts=2)
    scripted.on("DeleteItem", Answer(silent=True), Answer({"__type": "x#ConditionalCheckFailedException"}, 400))
    scripted.on("GetItem", Answer({}))

    with pytest.raises(OutcomeUnknown):
        DynamoItems(connection, "items").delete("acme/a", expect=2)
    connection.close()


def test_a_failed_condition_returns_the_item_that_was_there(scripted: Endpoint, scripted_aws: AwsConnection) -> None:
    items = DynamoItems(scripted_aws, "items")
    there = {"value": {"B": "dGhlaXJz"}, "version": {"N": "3"}}
    scripted.on("UpdateItem", Answer({"__type": "x#ConditionalCheckFailedException", "Item": there}, 400))

    result = items.put("acme/a", b"mine", expect=2)

    assert result == ItemResult(ok=False, item=Item(key="acme/a", value=b"theirs", version=3))
    assert [operation for operation, _ in scripted.requests] == ["UpdateItem"]
