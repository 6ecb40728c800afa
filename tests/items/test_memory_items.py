from __future__ import annotations

import pytest
from tests.memory import memory_store

from postroad.testing.items import ItemsConformance, ItemsFixture


class TestMemoryItems(ItemsConformance):
    @pytest.fixture
    def ground(self) -> ItemsFixture:
        store = memory_store()
        return ItemsFixture(items=store.items, transaction=store.transaction)
