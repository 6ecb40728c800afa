"""Postroad: typed events that arrive, on an embedded SQLite file or on AWS, with the same code and promises."""

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
from postroad.version import __version__
from postroad.wiring import Backend, connect

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
