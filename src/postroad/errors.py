"""Every error Postroad raises, in one tree.

    PostroadError
    ├── ConfigurationError        a URL, setting or specification that cannot work
    │   ├── AmbiguousSource       nothing tells where a dead letter goes back to
    │   └── SchemaMismatch        a file made by another version of Postroad
    ├── InvalidInput              an argument that is refused before anything changes
    │   ├── InvalidName
    │   ├── InvalidMessage        (names the field at fault)
    │   │   └── MessageTooLarge
    │   ├── InvalidSnapshot       a text that holds no session's state
    │   ├── InvalidCursor
    │   ├── TokenInUrl
    │   ├── HostNotAllowed
    │   ├── BodyTooLarge
    │   └── NotJSON
    ├── UnknownEventType          a name that no registry knows
    ├── RemoteError               an exception of another process whose class is not known here
    ├── QueueNotFound
    ├── TopicNotFound
    ├── StreamNotFound
    ├── BlobNotFound
    ├── QueueExists               (names the differences)
    ├── NotSupported              this adapter cannot do it; its traits say so
    ├── StaleReceipt              the lease is no longer yours
    ├── RequestFailed             a main loop answered with an error; it is the cause
    ├── RequestTimeout            no main loop answered in time (a TimeoutError too)
    ├── DeadlineExceeded          a request whose time was over before it began
    ├── HeldBack                  not sent, because an earlier one of its key failed
    ├── Unauthorized              no token, or one that opens nothing
    ├── Forbidden                 known, but not allowed to do this
    │   └── ReadOnly
    ├── RouteNotFound
    ├── MethodNotAllowed
    ├── BodyTooSlow
    ├── TokenNotFound
    ├── TokenExists
    ├── IdempotencyKeyReused      the key came before, with another body
    ├── RateLimited               too much at once; says when to come again
    │   └── TooManyPolls
    ├── InternalError             nothing Postroad foresaw
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
from uuid import UUID


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


class AmbiguousSource(ConfigurationError):
    """Nothing tells where a dead letter goes back to."""

    slug = "ambiguous-source"
    remedy = "Name the destination with to=... or `--to QUEUE`."


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


class InvalidCursor(InvalidInput):
    """A cursor that this list did not give out."""

    slug = "invalid-cursor"
    remedy = "Start the list again without a cursor, and pass `next_cursor` on unchanged with the same filters."


class TokenInUrl(InvalidInput):
    """A token in a URL, where logs and histories keep it."""

    slug = "token-in-url"
    remedy = "Send it as `Authorization: Bearer …`, and revoke the token that was shown."


class HostNotAllowed(InvalidInput):
    """A Host header that names somebody else."""

    slug = "host-not-allowed"
    remedy = "Use a loopback name, or add the name to `allowed_hosts`."


class BodyTooLarge(InvalidInput):
    """A request body above `max_body_bytes`."""

    slug = "body-too-large"
    status = 413
    remedy = "Send less in one request, or raise `max_body_bytes`."


class NotJSON(InvalidInput):
    """A request body that is not plain JSON."""

    slug = "not-json"
    status = 415
    remedy = "Send `Content-Type: application/json` without a Content-Encoding."


class Unauthorized(PostroadError):
    """There is no token, or it opens nothing."""

    slug = "unauthorized"
    status = 401
    remedy = "Send `Authorization: Bearer …` with a token that is neither revoked nor expired."


class Forbidden(PostroadError):
    """The token is known, but its scope does not reach this."""

    slug = "forbidden"
    status = 403
    remedy = "Use a token of the scope that the message names; an admin makes one with POST /tokens."


class ReadOnly(Forbidden):
    """This server refuses every change."""

    slug = "read-only"
    remedy = "Start `postroad up` without `--read-only` to change something."


class RouteNotFound(PostroadError):
    """There is nothing at this address."""

    slug = "route-not-found"
    status = 404
    remedy = "GET /schema lists every route."


class MethodNotAllowed(PostroadError):
    """The address is known, but not with this method."""

    slug = "method-not-allowed"
    status = 405
    remedy = "Use a method that the `Allow` header names."


class BodyTooSlow(PostroadError):
    """The request came too slowly."""

    slug = "body-too-slow"
    status = 408
    remedy = "Send the whole body within 15 seconds."


class TokenNotFound(PostroadError):
    """There is no token of this name."""

    slug = "token-not-found"
    status = 404
    remedy = "Name a token that GET /tokens lists."


class TokenExists(PostroadError):
    """A token of this name exists."""

    slug = "token-exists"
    status = 409
    remedy = "Choose another name, or revoke the token first."


class IdempotencyKeyReused(PostroadError):
    """The Idempotency-Key came before, with another body."""

    slug = "idempotency-key-reused"
    status = 409
    remedy = "Use a new key for a new request; the same key repeats the same request only."


class RateLimited(PostroadError):
    """Too much at once."""

    slug = "rate-limited"
    status = 429
    remedy = "Wait for the seconds of `Retry-After`, then go on more slowly."

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyPolls(RateLimited):
    """Too many long polls are open."""

    slug = "too-many-polls"
    remedy = "Close some, or poll with wait=0; all other routes answer."


class InternalError(PostroadError):
    """Something went wrong inside Postroad."""

    slug = "internal"
    remedy = "Look for the request id in the log."


class InvalidSnapshot(InvalidInput):
    """A text that is not the snapshot of a session."""

    slug = "invalid-snapshot"
    remedy = "Pass what `session.snapshot().to_json()` returned, unchanged; the session is as it was."


class RequestFailed(PostroadError):
    """A main loop answered the request with an error, which is the cause of this one."""

    slug = "request-failed"
    status = 502
    remedy = "Look at the cause; it is what the main loop's adapter, prompt or session raised."

    def __init__(self, request_id: UUID, error: BaseException) -> None:
        super().__init__(f"request {request_id} failed: {error!r}")
        self.request_id = request_id
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return (RequestFailed, (self.request_id, self.error))


class RequestTimeout(PostroadError, TimeoutError):
    """No main loop answered the request in time; a late answer is ignored."""

    slug = "request-timeout"
    status = 504
    remedy = "Allow more time, start more workers, or see whether any main loop serves this name."

    def __init__(self, request_id: UUID, seconds: float) -> None:
        super().__init__(f"request {request_id} had no answer within {seconds:g} seconds")
        self.request_id = request_id
        self.seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return (RequestTimeout, (self.request_id, self.seconds))


class DeadlineExceeded(PostroadError):
    """The deadline of a request had passed before the work began; the adapter was not called."""

    slug = "deadline-exceeded"
    status = 504
    remedy = "Send the request again with a later deadline, or start more workers."
