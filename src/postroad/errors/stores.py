"""Errors of queues, topics, streams, blobs, the outbox and topologies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.errors.root import ConfigurationError, Conflict, NotFound, PostroadError, RowRejected, Unavailable


class QueueNotFound(NotFound):
    """There is no queue with this name."""

    remedy = "Name a queue that exists, or create it: `postroad queue create NAME`."


class TopicNotFound(NotFound):
    """There is no topic with this name."""

    remedy = "Name a topic that exists; a program that publishes to it or receives from it makes it."


class StreamNotFound(NotFound):
    """There is no stream or shard with this name."""

    remedy = "Name a stream that exists, and one of its shards; a program that opens the stream makes it."


class BlobNotFound(NotFound):
    """There is no blob with this reference."""

    remedy = "The blob was deleted or its retention is over; send the data again."


class QueueExists(Conflict):
    """A queue with this name exists and has other settings.

    Args:
        message: Which queue.
        differences: The settings that differ, as (wanted, existing) by name.
    """

    remedy = "Use the existing settings, update the queue from a program, or choose another name."

    def __init__(self, message: str, *, differences: Mapping[str, tuple[Any, Any]] | None = None) -> None:
        super().__init__(message)
        self.differences = dict(differences or {})


class NotSupported(PostroadError):
    """This adapter does not support the operation; its traits say so."""

    status = 400
    remedy = "Ask the traits of the queue, topic or stream first, or use another adapter."


class StaleReceipt(PostroadError):
    """The lease is over: the message was settled, or it went to another receiver."""

    status = 409
    remedy = "Discard the result: another receiver handles the message now. Extend leases in time."


class HeldBack(PostroadError):
    """The message was not sent, because an earlier message of its group failed."""

    status = 409
    remedy = "Send the failed message again first, then this one."


class StorageFull(PostroadError):
    """The disk is full; nothing was stored."""

    status = 503
    remedy = "Free disk space and send again; acks and deletes still work."


class StorageDamaged(PostroadError):
    """What was read is not what was written."""

    remedy = "Restore the file from a backup, or remove the damaged message with a purge that archives."


class RedriveRunning(PostroadError):
    """The store is already moving the messages of this queue."""

    status = 409
    remedy = "Wait until it is done; `postroad queue redrive DLQ --status` shows the progress."


class PurgeRunning(PostroadError):
    """The store has not finished the previous purge of this queue."""

    status = 409
    remedy = "Wait a minute and purge again; nothing was changed by this one."


class NotInTransaction(PostroadError):
    """The connection commits each statement, so the row and the caller's change might not commit together."""

    status = 409
    remedy = "Begin a transaction first, on the connection that makes the change; nothing was written."


class DuplicateEvent(PostroadError):
    """The outbox already holds an event with this id."""

    status = 409
    remedy = "Nothing was added and the transaction can continue; ignore this, or give the event another id."


class DeadlockDetected(Unavailable):
    """Two transactions that record events of several keys in different orders waited for each other; this one lost."""

    status = 409
    remedy = (
        "Roll back and run the transaction again. To avoid it, record all of its events with one `add_many`, which "
        "takes the keys in a fixed order, or call `add` in the sorted order of the keys."
    )


class NotRedrivable(PostroadError):
    """Only FAILED and PARKED rows can be redriven or skipped."""

    status = 409
    remedy = "`postroad outbox why EVENT_ID` says what the event waits for; nothing was changed."


class Undecryptable(RowRejected):
    """A payload that was encrypted for another row, or with a key that is not available."""

    remedy = "Give the dispatcher the key file that holds this key id, then redrive the row."


class TopologyError(ConfigurationError):
    """A topology that cannot work.

    Args:
        message: What cannot work.
        findings: Everything that `lint` found, warnings included.
        codes: The codes of the errors, such as 'dlq-cycle'.
        field: The path of the mistake.
        remedy: What to do.
        nearest: The existing name that was probably meant.
    """

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
        self.codes = tuple(codes)


class TopologyConflict(PostroadError):
    """A resource cannot be changed into what is declared without losing its data."""

    status = 409
    remedy = "Choose another name, or move the data away and allow the replacement: `--allow-replace`."


class PlanChanged(PostroadError):
    """The plan has changed since it was approved."""

    status = 409
    remedy = "Make a new plan and apply it with its digest; nothing was changed."
