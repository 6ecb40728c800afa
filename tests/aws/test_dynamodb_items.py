"""Items on DynamoDB keep every rule of items."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from postroad.connections.aws import AwsConnection
from postroad.errors import ConfigurationError
from postroad.items.dynamodb import DynamoItems
from postroad.testing.items import ItemsConformance, ItemsGround

pytestmark = pytest.mark.aws


def fresh(connection: AwsConnection, table: str) -> ItemsGround:
    items = DynamoItems(connection, table)
    items.create_table()
    return ItemsGround(items=items)


class TestItemsOnMinistack(ItemsConformance):
    @pytest.fixture
    def ground(self, aws: AwsConnection, unique: Callable[[str], str]) -> ItemsGround:
        return fresh(aws, unique("items"))


class TestItemsOnMoto(ItemsConformance):
    @pytest.fixture
    def ground(self, moto_aws: AwsConnection, unique: Callable[[str], str]) -> ItemsGround:
        return fresh(moto_aws, unique("items"))


def test_a_missing_table_is_told_with_its_remedy(aws: AwsConnection, unique: Callable[[str], str]) -> None:
    items = DynamoItems(aws, unique("missing"))

    with pytest.raises(ConfigurationError, match="there is no DynamoDB table") as refused:
        items.get("acme/a")

    assert "create_table" in refused.value.remedy


def test_making_the_table_twice_changes_nothing(aws: AwsConnection, unique: Callable[[str], str]) -> None:
    items = DynamoItems(aws, unique("items"))
    items.create_table()
    items.put("acme/a", b"x")

    items.create_table()

    assert items.get("acme/a") is not None
