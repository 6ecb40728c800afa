"""Queues: durable messages with leases, on memory, on the embedded engine and on SQS."""

from typing import TYPE_CHECKING

from postroad.lazy import lazy_names
from postroad.queues.bounds import BoundOptions as BoundOptions, Bounds as Bounds
from postroad.queues.destinations import Destinations as Destinations, QueueDirectory
from postroad.queues.fingerprint import fingerprint
from postroad.queues.markers import (
    DEAD_LETTER as DEAD_LETTER,
    EVENT_SOURCE as EVENT_SOURCE,
    DeadLetter,
    kept_verbatim as kept_verbatim,
    legible as legible,
    mark_dead as mark_dead,
    read_dead as read_dead,
    redrives as redrives,
    wrap_detail as wrap_detail,
)
from postroad.queues.match import Match, event_type as event_type, failure as failure
from postroad.queues.moves import (
    Looked,
    Movable,
    Move,
    MoveStep,
    MoveTask,
    NativeMoves as NativeMoves,
    as_movable as as_movable,
    purge,
)
from postroad.queues.overflow import OverflowingQueue as OverflowingQueue
from postroad.queues.pace import Pace as Pace
from postroad.queues.port import (
    AckResult,
    Delivery,
    ListedQueues as ListedQueues,
    MessageState as MessageState,
    OutgoingMessage,
    PeekedMessage,
    Queue,
    QueueOverview,
    QueueStats,
    QueueStore as QueueStore,
    QueueTraits,
    SendResult,
    Undoable,
    Watchable,
)
from postroad.queues.redrive import RedriveReport, redrive
from postroad.queues.references import (
    ATTRIBUTE as ATTRIBUTE,
    PREFIX as PREFIX,
    Pruning as Pruning,
    References as References,
    new_hex as new_hex,
    read_reference as read_reference,
)
from postroad.queues.report import Progress as Progress
from postroad.queues.rules import (
    Note as Note,
    check_content as check_content,
    check_deliveries as check_deliveries,
    check_message as check_message,
    check_messages as check_messages,
    check_receive as check_receive,
    dedup_id as dedup_id,
)
from postroad.queues.spec import (
    MAX_DELAY as MAX_DELAY,
    MAX_LIFE as MAX_LIFE,
    MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES,
    MAX_RETENTION as MAX_RETENTION,
    MAX_VISIBILITY as MAX_VISIBILITY,
    MAX_WAIT as MAX_WAIT,
    QueueSpec,
    check_name as check_name,
    queue_missing as queue_missing,
)
from postroad.queues.sqlite import SQLiteQueues as SQLiteQueues
from postroad.queues.sqlite.rows import MessageIds as MessageIds, moment as moment

if TYPE_CHECKING:
    from postroad.queues.sqs import SQSQueue as SQSQueue, SQSQueues as SQSQueues, SQSTags as SQSTags
    from postroad.queues.sqs.settings import (
        queue_attributes as queue_attributes,
        redrive_allow_policy as redrive_allow_policy,
        rounded as rounded,
        spec_of as spec_of,
    )
    from postroad.queues.sqs.wire import message_attributes as message_attributes, size_of as size_of
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "postroad.queues.sqs": "SQSQueue SQSQueues SQSTags",
            "postroad.queues.sqs.settings": "queue_attributes redrive_allow_policy rounded spec_of",
            "postroad.queues.sqs.wire": "message_attributes size_of",
        },
    )

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
