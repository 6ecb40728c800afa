"""Queues: durable messages with leases, on memory, on the embedded engine and on SQS."""

from postroad.queues.destinations import QueueDirectory
from postroad.queues.fingerprint import fingerprint
from postroad.queues.markers import DeadLetter
from postroad.queues.match import Match
from postroad.queues.moves import Looked, Movable, Move, MoveStep, MoveTask, purge
from postroad.queues.port import (
    AckResult,
    Delivery,
    OutgoingMessage,
    PeekedMessage,
    Queue,
    QueueOverview,
    QueueStats,
    QueueTraits,
    SendResult,
    Undoable,
    Watchable,
)
from postroad.queues.redrive import RedriveReport, redrive
from postroad.queues.spec import QueueSpec

__all__ = [
    "AckResult",
    "DeadLetter",
    "Delivery",
    "Looked",
    "Match",
    "Movable",
    "Move",
    "MoveStep",
    "MoveTask",
    "OutgoingMessage",
    "PeekedMessage",
    "Queue",
    "QueueDirectory",
    "QueueOverview",
    "QueueSpec",
    "QueueStats",
    "QueueTraits",
    "RedriveReport",
    "SendResult",
    "Undoable",
    "Watchable",
    "fingerprint",
    "purge",
    "redrive",
]
