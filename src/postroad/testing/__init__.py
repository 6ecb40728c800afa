"""Testing: a conformance suite for each port, which every adapter passes; a clock, faults and helpers for users."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postroad.testing.blobs import BlobsConformance, BlobsFixture, BlobsFixture as BlobsGround
    from postroad.testing.clock import FakeClock
    from postroad.testing.faults import Faults
    from postroad.testing.idempotence import assert_idempotent
    from postroad.testing.items import ItemsConformance, ItemsFixture, ItemsFixture as ItemsGround
    from postroad.testing.journal import JournalConformance, JournalFixture, JournalFixture as JournalGround
    from postroad.testing.proxy import FaultProxy
    from postroad.testing.queues import QueueConformance, QueueFixture, QueueFixture as QueueGround
    from postroad.testing.streams import StreamConformance, StreamFixture, StreamFixture as StreamGround
    from postroad.testing.topics import TopicConformance, TopicFixture, TopicFixture as TopicGround

__all__ = [
    "BlobsConformance",
    "BlobsFixture",
    "BlobsGround",
    "FakeClock",
    "FaultProxy",
    "Faults",
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

_PORTS = {"blobs": "Blobs", "items": "Items", "journal": "Journal"}
_PORTS |= {"queues": "Queue", "streams": "Stream", "topics": "Topic"}
_HOMES = {
    "FakeClock": "postroad.testing.clock",
    "FaultProxy": "postroad.testing.proxy",
    "Faults": "postroad.testing.faults",
    "assert_idempotent": "postroad.testing.idempotence",
    **{
        f"{port}{part}": f"postroad.testing.{module}"
        for module, port in _PORTS.items()
        for part in ("Conformance", "Fixture", "Ground")
    },
}


def __getattr__(name: str) -> Any:
    """Return a name, loaded when it is first used: the plugin must cost nothing, and only the suites need pytest."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        # Fixtures had another name before.
        return getattr(import_module(_HOMES[name]), name.replace("Ground", "Fixture"))
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        from postroad.errors import ConfigurationError

        raise ConfigurationError(
            f"postroad.testing.{name} runs under pytest, which is not installed", remedy="pip install pytest"
        ) from error
