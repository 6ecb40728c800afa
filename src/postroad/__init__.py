"""Postroad: typed events that arrive, on an embedded SQLite file or on AWS, with the same code and promises."""

from postroad.version import __version__

TYPE_CHECKING = False  # as in `typing`, which takes a while to load
if TYPE_CHECKING:
    from postroad import errors
    from postroad.blobs import BlobRef, Blobs
    from postroad.clock import Clock
    from postroad.errors import PostroadError, RemoteError
    from postroad.events import Codec, Envelope, EventRegistry, codec, default_registry, event, upcast
    from postroad.items import ABSENT, ANY, Item, ItemPage, ItemResult, Items
    from postroad.queues import (
        AckResult,
        Delivery,
        Match,
        OutgoingMessage,
        PeekedMessage,
        Queue,
        QueueSpec,
        QueueStats,
        QueueTraits,
        SendResult,
    )
    from postroad.streams import PutResult, Record, ShardLease, Stream, StreamRecord, StreamTraits
    from postroad.topics import Subscription, Topic, TopicTraits
    from postroad.wiring import Backend
    from postroad.wiring.connect import connect

__all__ = [
    "ABSENT",
    "ANY",
    "AckResult",
    "Backend",
    "BlobRef",
    "Blobs",
    "Clock",
    "Codec",
    "Delivery",
    "Envelope",
    "EventRegistry",
    "Item",
    "ItemPage",
    "ItemResult",
    "Items",
    "Match",
    "OutgoingMessage",
    "PeekedMessage",
    "PostroadError",
    "PutResult",
    "Queue",
    "QueueSpec",
    "QueueStats",
    "QueueTraits",
    "Record",
    "RemoteError",
    "SendResult",
    "ShardLease",
    "Stream",
    "StreamRecord",
    "StreamTraits",
    "Subscription",
    "Topic",
    "TopicTraits",
    "__version__",
    "codec",
    "connect",
    "default_registry",
    "errors",
    "event",
    "upcast",
]

_HOMES = {
    "postroad.blobs": "BlobRef Blobs",
    "postroad.clock": "Clock",
    "postroad.errors": "PostroadError RemoteError",
    "postroad.events": "Codec Envelope EventRegistry codec default_registry event upcast",
    "postroad.items": "ABSENT ANY Item ItemPage ItemResult Items",
    "postroad.queues": (
        "AckResult Delivery Match OutgoingMessage PeekedMessage Queue QueueSpec QueueStats QueueTraits SendResult"
    ),
    "postroad.streams": "PutResult Record ShardLease Stream StreamRecord StreamTraits",
    "postroad.topics": "Subscription Topic TopicTraits",
    "postroad.wiring": "Backend connect",
}
"""Where each name is at home. It is loaded when it is asked for, so that a command is quick to hear its signals."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        if name == "errors":
            return importlib.import_module("postroad.errors")
        for home, names in _HOMES.items():
            if name in names.split():
                globals()[name] = found = getattr(importlib.import_module(home), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
