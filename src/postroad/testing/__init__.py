"""Testing: the rules of every port, one test each, that an adapter exists by passing; a clock and helpers for users."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from postroad.errors import ConfigurationError
from postroad.testing.clock import FakeClock
from postroad.testing.idempotence import assert_idempotent

if TYPE_CHECKING:
    from postroad.testing.blobs import BlobsConformance, BlobsFixture, BlobsGround
    from postroad.testing.items import ItemsConformance, ItemsFixture, ItemsGround
    from postroad.testing.journal import JournalConformance, JournalFixture, JournalGround
    from postroad.testing.queues import QueueConformance, QueueFixture, QueueGround
    from postroad.testing.streams import StreamConformance, StreamFixture, StreamGround
    from postroad.testing.topics import TopicConformance, TopicFixture, TopicGround

__all__ = [
    "BlobsConformance",
    "BlobsFixture",
    "BlobsGround",
    "FakeClock",
    "ItemsConformance",
    "ItemsFixture",
    "ItemsGround",
    "JournalConformance",
    "JournalFixture",
    "JournalGround",
    "QueueConformance",
    "QueueFixture",
    "QueueGround",
    "StreamConformance",
    "StreamFixture",
    "StreamGround",
    "TopicConformance",
    "TopicFixture",
    "TopicGround",
    "assert_idempotent",
]

_SUITES = {
    f"{port}{part}": f"postroad.testing.{module}"
    for port, module in {
        "Blobs": "blobs",
        "Items": "items",
        "Journal": "journal",
        "Queue": "queues",
        "Stream": "streams",
        "Topic": "topics",
    }.items()
    for part in ("Conformance", "Fixture", "Ground")
}


def __getattr__(name: str) -> Any:
    """A suite, loaded when it is asked for: nothing else here needs pytest."""
    if name not in _SUITES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_SUITES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise ConfigurationError(
            f"postroad.testing.{name} runs under pytest, which is not installed", remedy="pip install pytest"
        ) from error
