"""What operations on queues find in their way."""

from __future__ import annotations

from postroad.errors.root import PostroadError


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
