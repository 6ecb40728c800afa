"""Queues: durable messages with leases, on memory, on the embedded engine and on SQS."""

from postroad.queues.markers import DeadLetter
from postroad.queues.moving import Movable, Move, MoveStep
from postroad.queues.port import (
    AckResult,
    Delivery,
    OutgoingMessage,
    PeekedMessage,
    Queue,
    QueueStats,
    QueueTraits,
    SendResult,
)
from postroad.queues.spec import QueueSpec

__all__ = [
    "AckResult",
    "DeadLetter",
    "Delivery",
    "Movable",
    "Move",
    "MoveStep",
    "OutgoingMessage",
    "PeekedMessage",
    "Queue",
    "QueueSpec",
    "QueueStats",
    "QueueTraits",
    "SendResult",
]
