"""Testing: the rules of every port, one test each, that an adapter exists by passing. They run under pytest."""

from postroad.testing.blobs import BlobsConformance, BlobsGround
from postroad.testing.clock import FakeClock
from postroad.testing.items import ItemsConformance, ItemsGround
from postroad.testing.streams import StreamConformance, StreamGround

__all__ = [
    "BlobsConformance",
    "BlobsGround",
    "FakeClock",
    "ItemsConformance",
    "ItemsGround",
    "StreamConformance",
    "StreamGround",
]
