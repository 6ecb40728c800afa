from __future__ import annotations

import pytest

from postroad.items.memory import MemoryItems
from postroad.testing.items import ItemsConformance, ItemsGround


class TestMemoryItems(ItemsConformance):
    @pytest.fixture
    def ground(self) -> ItemsGround:
        return ItemsGround(items=MemoryItems())
