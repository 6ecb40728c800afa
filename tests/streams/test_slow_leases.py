"""Leases of shards in a store that answers slowly: they last from the moment at which they are taken."""

from __future__ import annotations

from typing import Any

from tests.memory import memory_items

from postroad.items import Item, ItemPage, ItemResult, Items
from postroad.streams.leases import ItemLeases
from postroad.testing import FakeClock

SHARDS = ("a", "b", "c", "d")


class _SlowItems:
    """Items of which each call takes a second."""

    def __init__(self, items: Items, clock: FakeClock) -> None:
        self._items, self._clock = items, clock
        self.traits = items.traits

    def get(self, key: str) -> Item | None:
        self._clock.advance(1)
        return self._items.get(key)

    def put(self, key: str, value: bytes, **given: Any) -> ItemResult:
        self._clock.advance(1)
        return self._items.put(key, value, **given)

    def delete(self, key: str, **given: Any) -> ItemResult:
        self._clock.advance(1)
        return self._items.delete(key, **given)

    def scan(self, prefix: str, **given: Any) -> ItemPage:
        self._clock.advance(1)
        return self._items.scan(prefix, **given)


def test_a_lease_is_held_although_taking_all_of_them_takes_longer_than_it_lasts() -> None:
    clock = FakeClock()
    leases = ItemLeases(_SlowItems(memory_items(), clock), clock, "orders")

    *_, last = leases.lease("billing", "w1", SHARDS, 5.0)

    assert leases.checkpoint("billing", last.shard, "1", last)
    assert leases.state("billing", last.shard).sequence == "1"
