"""What queues, topics, streams and blobs cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroad.errors.root import Conflict, NotFound, PostroadError


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
