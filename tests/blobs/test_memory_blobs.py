from __future__ import annotations

import pytest
from tests.memory import memory_blobs

from postroad.testing.blobs import BlobsConformance, BlobsFixture
from postroad.testing.clock import FakeClock


class TestMemoryBlobs(BlobsConformance):
    @pytest.fixture
    def ground(self) -> BlobsFixture:
        clock = FakeClock()
        return BlobsFixture(blobs=memory_blobs(clock), advance=clock.advance)
