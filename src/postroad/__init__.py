"""Postroad: typed events that arrive, on an embedded SQLite file or on AWS, with the same code and promises."""

from postroad.version import __version__

TYPE_CHECKING = False  # as in `typing`, which takes a while to load
if TYPE_CHECKING:
    from postroad import errors
    from postroad.agents import Agents
    from postroad.blobs import BlobRef as BlobRef
    from postroad.blobs import Blobs as Blobs
    from postroad.bus import Bus, BusConfig, PublishResult
    from postroad.clock import Clock as Clock
    from postroad.errors import PostroadError
    from postroad.errors import RemoteError as RemoteError
    from postroad.events import Codec as Codec
    from postroad.events import DomainEvent, Envelope, event, upcast
    from postroad.events import EventRegistry as EventRegistry
    from postroad.events import codec as codec
    from postroad.events import default_registry as default_registry
    from postroad.inbox import Consumer, Inbox
    from postroad.items import ABSENT as ABSENT
    from postroad.items import ANY as ANY
    from postroad.items import Item as Item
    from postroad.items import ItemPage as ItemPage
    from postroad.items import ItemResult as ItemResult
    from postroad.items import Items as Items
    from postroad.jobs import Jobs
    from postroad.outbox import Outbox
    from postroad.queues import AckResult as AckResult
    from postroad.queues import Delivery, OutgoingMessage, QueueSpec
    from postroad.queues import Match as Match
    from postroad.queues import PeekedMessage as PeekedMessage
    from postroad.queues import Queue as Queue
    from postroad.queues import QueueStats as QueueStats
    from postroad.queues import QueueTraits as QueueTraits
    from postroad.queues import SendResult as SendResult
    from postroad.receiving import Receiver, current_context
    from postroad.sessions import Session
    from postroad.streams import PutResult as PutResult
    from postroad.streams import Record as Record
    from postroad.streams import ShardLease as ShardLease
    from postroad.streams import Stream as Stream
    from postroad.streams import StreamRecord as StreamRecord
    from postroad.streams import StreamTraits as StreamTraits
    from postroad.tasks import NonRetryable, Retryable, TaskProducer, TaskWorker, task
    from postroad.topics import Subscription as Subscription
    from postroad.topics import Topic as Topic
    from postroad.topics import TopicTraits as TopicTraits
    from postroad.topology import Topology
    from postroad.wiring import Backend
    from postroad.wiring.connect import connect, run

__all__ = [
    "Agents",
    "Backend",
    "Bus",
    "BusConfig",
    "Consumer",
    "Delivery",
    "DomainEvent",
    "Envelope",
    "Inbox",
    "Jobs",
    "NonRetryable",
    "Outbox",
    "OutgoingMessage",
    "PostroadError",
    "PublishResult",
    "QueueSpec",
    "Receiver",
    "Retryable",
    "Session",
    "TaskProducer",
    "TaskWorker",
    "Topology",
    "__version__",
    "connect",
    "current_context",
    "errors",
    "event",
    "run",
    "task",
    "upcast",
]

_HOMES = {
    "postroad.agents": "Agents",
    "postroad.bus": "Bus BusConfig PublishResult",
    "postroad.errors": "PostroadError",
    "postroad.events": "DomainEvent Envelope event upcast",
    "postroad.inbox": "Consumer Inbox",
    "postroad.jobs": "Jobs",
    "postroad.outbox": "Outbox",
    "postroad.queues": "Delivery OutgoingMessage QueueSpec",
    "postroad.receiving": "Receiver current_context",
    "postroad.sessions": "Session",
    "postroad.tasks": "NonRetryable Retryable TaskProducer TaskWorker task",
    "postroad.topology": "Topology",
    "postroad.wiring": "Backend connect run",
}
"""Where each name is at home. It is loaded when it is asked for, so that a command is quick to hear its signals."""

_ELSEWHERE = {
    "postroad.blobs": "BlobRef Blobs",
    "postroad.clock": "Clock",
    "postroad.errors": "RemoteError",
    "postroad.events": "Codec EventRegistry codec default_registry",
    "postroad.items": "ABSENT ANY Item ItemPage ItemResult Items",
    "postroad.queues": "AckResult Match PeekedMessage Queue QueueStats QueueTraits SendResult",
    "postroad.streams": "PutResult Record ShardLease Stream StreamRecord StreamTraits",
    "postroad.topics": "Subscription Topic TopicTraits",
}
"""Names of the ports, for those who write adapters; they are documented in their own packages."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        if name == "errors":
            return importlib.import_module("postroad.errors")
        for homes in (_HOMES, _ELSEWHERE):
            for home, names in homes.items():
                if name in names.split():
                    globals()[name] = found = getattr(importlib.import_module(home), name)
                    return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
