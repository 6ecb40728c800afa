from __future__ import annotations

import pytest

from postroad.blobs.memory import MemoryBlobs
from postroad.testing.blobs import BlobsConformance, BlobsGround
from postroad.testing.clock import FakeClock


class TestMemoryBlobs(BlobsConformance):
    @pytest.fixture
    def ground(self) -> BlobsGround:
        clock = FakeClock()
        return BlobsGround(blobs=MemoryBlobs(clock), advance=clock.advance)
