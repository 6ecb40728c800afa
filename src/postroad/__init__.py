"""Postroad: typed events that arrive, on an embedded SQLite file or on AWS, with the same code and promises."""

from importlib import import_module

from postroad.lazy import lazy_names

__version__ = "0.1.0"
TYPE_CHECKING = False  # as in `typing`, which takes a while to load
if TYPE_CHECKING:
    from postroad import errors
    from postroad.agents import AgentClient, Agents
    from postroad.blobs import BlobRef as BlobRef, Blobs as Blobs
    from postroad.bus import Bus, BusConfig, PublishResult
    from postroad.clock import Clock as Clock
    from postroad.errors import NonRetryable, PostroadError, RemoteError as RemoteError, Retryable
    from postroad.events import (
        Codec as Codec,
        DomainEvent,
        Envelope,
        EventRegistry as EventRegistry,
        codec as codec,
        default_registry as default_registry,
        event,
        upcast,
    )
    from postroad.inbox import Consumer, Inbox
    from postroad.items import (
        ABSENT as ABSENT,
        ANY as ANY,
        Item as Item,
        ItemPage as ItemPage,
        ItemResult as ItemResult,
        Items as Items,
    )
    from postroad.jobs import Jobs
    from postroad.outbox import Outbox
    from postroad.queues import (
        AckResult as AckResult,
        Delivery,
        Match as Match,
        OutgoingMessage,
        PeekedMessage as PeekedMessage,
        Queue as Queue,
        QueueSpec,
        QueueStats as QueueStats,
        QueueTraits as QueueTraits,
        SendResult as SendResult,
    )
    from postroad.receiving import Receiver, current_context
    from postroad.sessions import Session
    from postroad.streams import (
        PutResult as PutResult,
        Record as Record,
        ShardLease as ShardLease,
        Stream as Stream,
        StreamRecord as StreamRecord,
        StreamTraits as StreamTraits,
    )
    from postroad.tasks import TaskProducer, TaskWorker, task
    from postroad.topics import Subscription as Subscription, Topic as Topic, TopicTraits as TopicTraits
    from postroad.topology import Topology
    from postroad.wiring import Backend
    from postroad.wiring.connect import connect, run

__all__ = [
    "AgentClient",
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
    "connect",
    "current_context",
    "errors",
    "event",
    "run",
    "task",
    "upcast",
]

if not TYPE_CHECKING:
    # Each name is loaded when it is first used, so that a command starts fast.
    _load = lazy_names(
        __name__,
        {
            "postroad.agents": "AgentClient Agents",
            "postroad.blobs": "BlobRef Blobs",
            "postroad.bus": "Bus BusConfig PublishResult",
            "postroad.clock": "Clock",
            "postroad.errors": "NonRetryable PostroadError RemoteError Retryable",
            "postroad.events": "Codec DomainEvent Envelope EventRegistry codec default_registry event upcast",
            "postroad.inbox": "Consumer Inbox",
            "postroad.items": "ABSENT ANY Item ItemPage ItemResult Items",
            "postroad.jobs": "Jobs",
            "postroad.outbox": "Outbox",
            "postroad.queues": "AckResult Delivery Match OutgoingMessage PeekedMessage Queue QueueSpec"
            " QueueStats QueueTraits SendResult",
            "postroad.receiving": "Receiver current_context",
            "postroad.sessions": "Session",
            "postroad.streams": "PutResult Record ShardLease Stream StreamRecord StreamTraits",
            "postroad.tasks": "TaskProducer TaskWorker task",
            "postroad.topics": "Subscription Topic TopicTraits",
            "postroad.topology": "Topology",
            "postroad.wiring": "Backend connect run",
        },
    )

    def __getattr__(name):
        return import_module("postroad.errors") if name == "errors" else _load(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
