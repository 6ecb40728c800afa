"""What queues, topics, streams, blobs, the outbox and topologies cannot do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.errors.root import ConfigurationError, Conflict, NotFound, PostroadError
from postroad.errors.transport import RowRejected, Unavailable


class QueueNotFound(NotFound):
    """There is no queue of this name."""

    slug = "queue-not-found"
    status = 404
    remedy = "Create it with backend.create_queue(QueueSpec(name)) or `postroad queue create NAME`."


class TopicNotFound(NotFound):
    """There is no topic of this name."""

    slug = "topic-not-found"
    status = 404
    remedy = "Name a topic that exists; backend.topic(name) makes one."


class StreamNotFound(NotFound):
    """There is no stream or shard of this name."""

    slug = "stream-not-found"
    status = 404
    remedy = "Name a stream that exists, and one of its shards(); backend.stream(name) makes one."


class BlobNotFound(NotFound):
    """There is no blob under this reference."""

    slug = "blob-not-found"
    status = 404
    remedy = "The blob was deleted or its retention is over; send the data again."


class QueueExists(Conflict):
    """A queue of this name exists with other settings."""

    slug = "queue-exists"
    status = 409
    remedy = "Use the existing settings, change them with update_queue, or choose another name."

    def __init__(self, message: str, *, differences: Mapping[str, tuple[Any, Any]] | None = None) -> None:
        super().__init__(message)
        self.differences = dict(differences or {})


class NotSupported(PostroadError):
    """This adapter cannot do it; its traits say so."""

    slug = "not-supported"
    status = 400
    remedy = "Ask the traits of the queue, topic or stream first, or use another adapter."


class StaleReceipt(PostroadError):
    """The lease is over: the message was settled, or it went to another receiver."""

    slug = "stale-receipt"
    status = 409
    remedy = "Discard the result; the message is handled by whoever holds it now. Extend leases in time."


class HeldBack(PostroadError):
    """Not sent, because an earlier message of the same group failed and the order must hold."""

    slug = "held-back"
    status = 409
    remedy = "Send the failed message again first, then this one."


class StorageFull(PostroadError):
    """The disk has no room for it; nothing was stored."""

    slug = "storage-full"
    status = 503
    remedy = "Free disk space and send again; acks and deletes still work."


class StorageDamaged(PostroadError):
    """What was read is not what was written."""

    slug = "storage-damaged"
    status = 500
    remedy = "Restore the file from a backup, or remove the damaged message with a purge that archives."


class RedriveRunning(PostroadError):
    """The store is moving the messages of this queue already."""

    slug = "redrive-running"
    status = 409
    remedy = "Wait until it is done; `postroad queue redrive DLQ --status` shows how far it is."


class PurgeRunning(PostroadError):
    """The queue was purged a moment ago, and the store is not done with it."""

    slug = "purge-running"
    status = 409
    remedy = "Wait a minute and purge again; nothing was changed by this one."


class NotInTransaction(PostroadError):
    """The connection would commit by itself, so that the row and the caller's own change could part."""

    slug = "not-in-transaction"
    status = 409
    remedy = "Begin a transaction first, on the connection that makes the change; nothing was written."


class DuplicateEvent(PostroadError):
    """An event of this id is in the outbox already."""

    slug = "duplicate-event"
    status = 409
    remedy = "Nothing was added and the transaction goes on; leave it, or give the event an id of its own."


class DeadlockDetected(Unavailable):
    """Two transactions that record events of several keys in different orders waited for each other; this one lost."""

    slug = "deadlock-detected"
    status = 409
    remedy = (
        "Roll back and run the transaction again. To avoid it, record all of its events with one `add_many`, which "
        "takes the keys in a fixed order, or call `add` in the sorted order of the keys."
    )


class NotRedrivable(PostroadError):
    """Only what is FAILED or PARKED can be redriven or skipped."""

    slug = "not-redrivable"
    status = 409
    remedy = "`postroad outbox why EVENT_ID` says what the event waits for; nothing was changed."


class Undecryptable(RowRejected):
    """A payload that was encrypted for another row, or with a key that is not at hand."""

    slug = "undecryptable"
    remedy = "Give the dispatcher the key file that holds this key id, then redrive the row."


class TopologyError(ConfigurationError):
    """A topology that cannot work."""

    slug = "topology"
    remedy = "Correct what the message names; nothing was changed."

    def __init__(
        self,
        message: str,
        *,
        findings: Sequence[object] = (),
        codes: Sequence[str] = (),
        field: str | None = None,
        remedy: str | None = None,
        nearest: str | None = None,
    ) -> None:
        super().__init__(message, field=field, remedy=remedy, nearest=nearest)
        self.findings = tuple(findings)
        """Everything that `lint` found, warnings included."""
        self.codes = tuple(codes)
        """The codes of what is wrong, such as 'dlq-cycle'."""


class TopologyConflict(PostroadError):
    """What exists cannot become what is declared without losing it."""

    slug = "topology-conflict"
    status = 409
    remedy = "Choose another name, or move the data away and allow the replacement with allow_replace."


class PlanChanged(PostroadError):
    """The plan that was agreed to is no longer the one that would be carried out."""

    slug = "plan-changed"
    status = 409
    remedy = "Make the plan again and apply it with its digest; nothing was changed."
