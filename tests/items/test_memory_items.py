from __future__ import annotations

import pytest
from tests.memory import memory_store

from postroad.testing.items import ItemsConformance, ItemsGround


class TestMemoryItems(ItemsConformance):
    @pytest.fixture
    def ground(self) -> ItemsGround:
        store = memory_store()
        return ItemsGround(items=store.items, transaction=store.transaction)
