"""Testing: a conformance suite for each port, which every adapter passes; a clock and helpers for users."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from postroad.errors import ConfigurationError
from postroad.testing.clock import FakeClock
from postroad.testing.idempotence import assert_idempotent

if TYPE_CHECKING:
    from postroad.testing.blobs import BlobsConformance, BlobsFixture, BlobsFixture as BlobsGround
    from postroad.testing.items import ItemsConformance, ItemsFixture, ItemsFixture as ItemsGround
    from postroad.testing.journal import JournalConformance, JournalFixture, JournalFixture as JournalGround
    from postroad.testing.queues import QueueConformance, QueueFixture, QueueFixture as QueueGround
    from postroad.testing.streams import StreamConformance, StreamFixture, StreamFixture as StreamGround
    from postroad.testing.topics import TopicConformance, TopicFixture, TopicFixture as TopicGround

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

_MODULES = ("blobs", "items", "journal", "queues", "streams", "topics")
_PORTS = ("Blobs", "Items", "Journal", "Queue", "Stream", "Topic")
_SUITES = {
    f"{port}{part}": f"postroad.testing.{module}"
    for port, module in zip(_PORTS, _MODULES, strict=True)
    for part in ("Conformance", "Fixture", "Ground")
}


def __getattr__(name: str) -> Any:
    """Return a suite, loaded when it is first used: nothing else here needs pytest."""
    if name not in _SUITES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        # Fixtures had another name before.
        return getattr(import_module(_SUITES[name]), name.replace("Ground", "Fixture"))
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise ConfigurationError(
            f"postroad.testing.{name} runs under pytest, which is not installed", remedy="pip install pytest"
        ) from error
