"""Queues: durable messages with leases, on memory, on the embedded engine and on SQS."""

from typing import TYPE_CHECKING

from postroad.engine import moment as moment
from postroad.lazy import lazy_names
from postroad.queues.markers import (
    DEAD_LETTER as DEAD_LETTER,
    TRACEBACK as TRACEBACK,
    TRACEBACK_LINES as TRACEBACK_LINES,
    DeadLetter,
    fingerprint,
    legible as legible,
    mark_dead as mark_dead,
    read_dead as read_dead,
    redrives as redrives,
)
from postroad.queues.match import Match, RedriveReport, event_type as event_type, failure as failure
from postroad.queues.overflow import (
    ATTRIBUTE as ATTRIBUTE,
    KEEP_FOR as KEEP_FOR,
    PREFIX as PREFIX,
    OverflowingQueue as OverflowingQueue,
    Pruning as Pruning,
    References as References,
    new_hex as new_hex,
    read_reference as read_reference,
)
from postroad.queues.port import (
    AckResult,
    CountingStore as CountingStore,
    Delivery,
    Located as Located,
    Looked,
    MessageHistory as MessageHistory,
    MessageState as MessageState,
    Movable,
    Move,
    MoveStep,
    MoveTask,
    OutgoingMessage,
    PeekedMessage,
    Queue,
    QueueCounters as QueueCounters,
    QueueOverview,
    QueueStats,
    QueueStore as QueueStore,
    QueueTraits,
    SendResult,
    Settled as Settled,
    Watchable,
    as_movable as as_movable,
    purge,
)
from postroad.queues.redrive import (
    BoundOptions as BoundOptions,
    Bounds as Bounds,
    EachStep as EachStep,
    Pace as Pace,
    Progress as Progress,
    redrive,
)
from postroad.queues.rules import (
    MAX_DELAY as MAX_DELAY,
    MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES,
    MAX_RETENTION as MAX_RETENTION,
    MAX_VISIBILITY as MAX_VISIBILITY,
    MAX_WAIT as MAX_WAIT,
    Note as Note,
    QueueSpec,
    check_content as check_content,
    check_deliveries as check_deliveries,
    check_message as check_message,
    check_messages as check_messages,
    check_name as check_name,
    check_receive as check_receive,
    dedup_id as dedup_id,
    queue_missing as queue_missing,
)
from postroad.queues.sqlite import (
    Content as Content,
    QueueState as QueueState,
    SQLiteQueues as SQLiteQueues,
    content_of as content_of,
    embedded_traits as embedded_traits,
)
from postroad.queues.sqlite.state import MessageIds as MessageIds
from postroad.queues.walks import Destinations as Destinations

if TYPE_CHECKING:
    from postroad.queues.sqs import SQSQueue as SQSQueue, SQSQueues as SQSQueues, SQSTags as SQSTags
    from postroad.queues.sqs.wire import (
        EVENT_SOURCE as EVENT_SOURCE,
        kept_verbatim as kept_verbatim,
        message_attributes as message_attributes,
        outcomes_of as outcomes_of,
        queue_attributes as queue_attributes,
        redrive_allow_policy as redrive_allow_policy,
        rounded as rounded,
        sent_result as sent_result,
        size_of as size_of,
        spec_of as spec_of,
        wrap_detail as wrap_detail,
    )
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "postroad.queues.sqs": "SQSQueue SQSQueues SQSTags",
            "postroad.queues.sqs.wire": "EVENT_SOURCE kept_verbatim message_attributes outcomes_of queue_attributes"
            " redrive_allow_policy rounded sent_result size_of spec_of wrap_detail",
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
    "QueueOverview",
    "QueueSpec",
    "QueueStats",
    "QueueTraits",
    "RedriveReport",
    "SendResult",
    "Watchable",
    "fingerprint",
    "purge",
    "redrive",
]
