"""Items: small values under conditional writes, on memory, on the embedded engine and on DynamoDB."""

from typing import TYPE_CHECKING

from postroad.items.port import ABSENT, ANY, Expect, Item, ItemPage, ItemResult, Items, ItemsTraits
from postroad.items.sqlite import SQLiteItems as SQLiteItems
from postroad.lazy import lazy_names

if TYPE_CHECKING:
    from postroad.items.dynamodb import DynamoItems as DynamoItems
else:
    __getattr__ = lazy_names(__name__, {"postroad.items.dynamodb": "DynamoItems"})

__all__ = ["ABSENT", "ANY", "Expect", "Item", "ItemPage", "ItemResult", "Items", "ItemsTraits"]
