"""Items: small values under conditional writes, on memory, on the embedded engine and on DynamoDB."""

from postroad.items.port import ABSENT, ANY, Expect, Item, ItemPage, ItemResult, Items, ItemsTraits

__all__ = ["ABSENT", "ANY", "Expect", "Item", "ItemPage", "ItemResult", "Items", "ItemsTraits"]
