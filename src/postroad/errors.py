"""Every error Postroad raises, in one tree.

    PostroadError
    ├── ConfigurationError        a URL, setting or specification that cannot work
    │   └── SchemaMismatch        a file made by another version of Postroad
    ├── InvalidInput              an argument that is refused before anything changes
    │   ├── InvalidName
    │   └── InvalidMessage        (names the field at fault)
    │       └── MessageTooLarge
    ├── UnknownEventType          a name that no registry knows
    ├── RemoteError               an exception of another process whose class is not known here
    ├── QueueNotFound
    ├── TopicNotFound
    ├── StreamNotFound
    ├── BlobNotFound
    ├── QueueExists               (names the differences)
    ├── NotSupported              this adapter cannot do it; its traits say so
    ├── StaleReceipt              the lease is no longer yours
    ├── HeldBack                  not sent, because an earlier one of its key failed
    ├── StorageFull
    ├── StorageDamaged            what was read is not what was written
    ├── TransportError            the driver or the network failed
    │   ├── Unavailable           it surely had no effect
    │   └── OutcomeUnknown        it may have had its effect; repeat it under the same id
    └── PublishError
        ├── RowRejected           this message can never be published
        └── TargetUnavailable     the target is at fault, not the message

Each class carries the `slug`, `status` and `remedy` that the CLI, the HTTP API and the documentation share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class PostroadError(Exception):
    """Something Postroad refuses or could not do."""

    slug: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    remedy: str = "See the log for the cause."

    def __init__(
        self, message: str, *, field: str | None = None, remedy: str | None = None, nearest: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.nearest = nearest
        """The name that was probably meant."""
        if remedy is not None:
            self.remedy = remedy


class ConfigurationError(PostroadError):
    """A URL, setting or specification that cannot work."""

    slug = "configuration"
    status = 400
    remedy = "Correct the value that the message names; `postroad config check` validates without starting."


class SchemaMismatch(ConfigurationError):
    """The file was made by another version of Postroad."""

    slug = "schema-mismatch"
    remedy = "Open it with the version of Postroad that made it, or upgrade this one."


class InvalidInput(PostroadError):
    """An argument that is refused before anything changes."""

    slug = "invalid-input"
    status = 400
    remedy = "Correct the argument that the message names; nothing was changed."


class InvalidName(InvalidInput):
    """A name that AWS would refuse."""

    slug = "invalid-name"
    remedy = "Use 1 to 80 letters, digits, '-' or '_', with '.fifo' at the end exactly when it is FIFO."


class InvalidMessage(InvalidInput):
    """A message that cannot be sent or read."""

    slug = "invalid-message"
    remedy = "Correct the field that the message names; nothing was sent."


class MessageTooLarge(InvalidMessage):
    """A message above the limit of its queue or topic."""

    slug = "message-too-large"
    status = 413
    remedy = "Send less, or let large bodies travel by reference (overflow='blobs')."


class UnknownEventType(PostroadError):
    """A name that the registry does not know; names are looked up, never imported."""

    slug = "unknown-event-type"
    status = 400
    remedy = "Register the class with @event or registry.register before it is read."


class RemoteError(PostroadError):
    """An exception that another process raised and whose class is not known here."""

    slug = "remote-error"
    remedy = "Register the exception's class to receive it as itself."

    def __init__(self, type_name: str, message: str, args: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.type_name = type_name
        self.remote_args = args

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (RemoteError, (self.type_name, self.message, self.remote_args))


class QueueNotFound(PostroadError):
    """There is no queue of this name."""

    slug = "queue-not-found"
    status = 404
    remedy = "Create it with backend.create_queue(QueueSpec(name)) or `postroad queue create NAME`."


class TopicNotFound(PostroadError):
    """There is no topic of this name."""

    slug = "topic-not-found"
    status = 404
    remedy = "Name a topic that exists; backend.topic(name) makes one."


class StreamNotFound(PostroadError):
    """There is no stream or shard of this name."""

    slug = "stream-not-found"
    status = 404
    remedy = "Name a stream that exists, and one of its shards(); backend.stream(name) makes one."


class BlobNotFound(PostroadError):
    """There is no blob under this reference."""

    slug = "blob-not-found"
    status = 404
    remedy = "The blob was deleted or its retention is over; send the data again."


class QueueExists(PostroadError):
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


class TransportError(PostroadError):
    """The driver or the network failed."""

    slug = "transport"
    status = 503
    remedy = "Try again; if it persists, check the address, the network and the credentials."


class Unavailable(TransportError):
    """The store could not be reached or refused; it surely had no effect."""

    slug = "unavailable"


class OutcomeUnknown(TransportError):
    """The call was cut off; it may have had its effect."""

    slug = "outcome-unknown"
    remedy = "Repeat it under the same id: what already happened is recognised."


class PublishError(PostroadError):
    """A message could not be published."""

    slug = "publish"
    status = 503
    remedy = "Publish again under the same event id."


class RowRejected(PublishError):
    """This message can never be published."""

    slug = "row-rejected"
    status = 400
    remedy = "Correct or skip the message; repeating it cannot help."


class TargetUnavailable(PublishError):
    """The target is at fault, not the message."""

    slug = "target-unavailable"
    remedy = "Repair the target (existence, permissions, throttling); publishing goes on by itself."

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
