"""Testing: the rules of every port, one test each, that an adapter exists by passing. They run under pytest."""

from postroad.testing.blobs import BlobsConformance, BlobsGround
from postroad.testing.clock import FakeClock
from postroad.testing.idempotence import assert_idempotent
from postroad.testing.items import ItemsConformance, ItemsGround
from postroad.testing.journal import JournalConformance, JournalGround
from postroad.testing.queues import QueueConformance, QueueGround
from postroad.testing.streams import StreamConformance, StreamGround
from postroad.testing.topics import TopicConformance, TopicGround

__all__ = [
    "BlobsConformance",
    "BlobsGround",
    "FakeClock",
    "ItemsConformance",
    "ItemsGround",
    "JournalConformance",
    "JournalGround",
    "QueueConformance",
    "QueueGround",
    "StreamConformance",
    "StreamGround",
    "TopicConformance",
    "TopicGround",
    "assert_idempotent",
]
