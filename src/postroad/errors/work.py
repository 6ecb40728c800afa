"""Errors of tasks, jobs, the journal, agents, sessions and notifications, and of the HTTP API in front of them."""

from __future__ import annotations

from uuid import UUID

from postroad.errors.root import (
    ConfigurationError,
    Conflict,
    InvalidInput,
    InvalidMessage,
    NotFound,
    PostroadError,
    TransportError,
)
from postroad.errors.stores import StorageDamaged


class InvalidTask(InvalidInput):
    """A task that cannot be submitted or registered."""

    remedy = "Correct the field that the message names; nothing was submitted."


class UnknownTask(InvalidInput):
    """A name that no registry of tasks knows; names are looked up, never imported."""

    remedy = "Name the module that defines the task: `postroad worker --load MODULE`."


class TaskRunFailed(PostroadError):
    """A run of a task failed; `error`, `category` and `traceback` are those that the journal holds.

    Attributes:
        request_id: The task.
        run: Which of its runs, from 1.
    """

    remedy = "`postroad why ID` shows each attempt; `postroad task retry ID` runs the task again."

    def __init__(self, request_id: str, run: int, *, error: str, category: str, traceback: str = "") -> None:
        super().__init__(f"task {request_id!r} failed: {error}")
        self.request_id = request_id
        self.run = run
        self.error = error
        self.category = category
        self.traceback = traceback
        """The last lines of the traceback; empty if the child died without one."""


class TaskRunCancelled(PostroadError):
    """A run of a task was cancelled, so it has no result.

    Attributes:
        request_id: The task.
        run: Which of its runs, from 1.
        reason: Why it was cancelled.
    """

    status = 409
    remedy = "`postroad task retry ID` runs the task again."

    def __init__(self, request_id: str, run: int, reason: str) -> None:
        super().__init__(f"task {request_id!r} was cancelled: {reason}")
        self.request_id = request_id
        self.run = run
        self.reason = reason


class InvalidJob(InvalidInput):
    """A graph of tasks that cannot be run."""

    remedy = "Correct the tasks that the message names; nothing was submitted."


class InvalidEvent(InvalidInput):
    """An event that is refused; the message names the field."""

    remedy = "Correct the field that the message names; the event was not stored."


class EventTooLarge(InvalidEvent):
    """An event above the limit of the journal or of agents."""

    status = 413
    remedy = "Shorten the context or the properties, or configure blobs; the event was not stored."


class InvalidQuery(InvalidInput):
    """A query that the journal cannot answer."""

    remedy = "Give exactly the arguments that the index needs, and a limit of 1 to 1000."


class OverflowMismatch(StorageDamaged):
    """The blob that holds part of an event is missing, or is not what was stored.

    Args:
        message: What is wrong with the blob.
        event_id: The event that it belongs to.
    """

    remedy = "Read the event with raw=True to see what the item itself holds, or restore the blob from a backup."

    def __init__(self, message: str, *, event_id: UUID | None = None) -> None:
        super().__init__(message)
        self.event_id = event_id


class AgentNotFound(NotFound):
    """There is no agent with this id, or it belongs to somebody else."""

    remedy = "Name an agent that is registered; `postroad agent create` makes one."


class AgentExists(Conflict):
    """An agent with this id is already registered."""

    remedy = "Choose another id, or leave it out to get a new one."


class AgentDeleted(PostroadError):
    """The agent with this id was deleted; ids are never reused."""

    status = 409
    remedy = "Register under another id."


class SubscriptionNotFound(NotFound):
    """This listener is not subscribed to this producer."""

    remedy = "Subscribe first: `postroad agent subscribe LISTENER PRODUCER`."


class ConsentRequired(PostroadError):
    """The producer chooses its listeners and has not chosen this one."""

    status = 403
    remedy = "Ask the producer or an admin to grant it: PUT /agents/{producerId}/grants/{listenerId}."


class IdentityMismatch(PostroadError):
    """The body names a different agent than the token."""

    status = 403
    remedy = "Leave `agentId` out, or name the agent whose token is sent."


class RequestFailed(PostroadError):
    """A main loop answered the request with an error, which is the cause of this one.

    Args:
        request_id: The request.
        error: The error that the main loop answered with.
    """

    status = 502
    remedy = "Look at the cause: the main loop's adapter, prompt or session raised it."

    def __init__(self, request_id: UUID, error: BaseException) -> None:
        super().__init__(f"request {request_id} failed: {type(error).__name__}: {error}")
        self.request_id = request_id
        self.error = error


class RequestTimeout(PostroadError, TimeoutError):
    """No main loop answered the request in time; a late answer is ignored.

    Args:
        request_id: The request.
        seconds: How long the client waited.
    """

    status = 504
    remedy = "Allow more time, start more workers, or check that a main loop serves this name."

    def __init__(self, request_id: UUID, seconds: float) -> None:
        super().__init__(f"request {request_id} had no answer within {seconds:g} seconds")
        self.request_id = request_id
        self.seconds = seconds


class DeadlineExceeded(PostroadError):
    """The deadline of a request had passed before the work began; the adapter was not called."""

    status = 504
    remedy = "Send the request again with a later deadline, or start more workers."


class InvalidNotification(InvalidMessage):
    """A push or an offline message that is refused; the message names the field, never its value."""

    remedy = "Correct the field that the message names; nothing was stored or sent."


class SendFailed(TransportError):
    """A queue did not accept a message; the cause is the queue's error."""

    remedy = "Send the message again: a second copy of one message is recognised when it is stored."


class AlertRefused(ConfigurationError):
    """An address that no alert may be sent to."""

    remedy = "Give the https address of a webhook at one of the allowed hosts, by default hooks.slack.com."


class InvalidCursor(InvalidInput):
    """A cursor that does not come from this list."""

    remedy = "Start the list again without a cursor, and pass `next_cursor` on unchanged with the same filters."


class TokenInUrl(InvalidInput):
    """A token in a URL, where logs and histories keep it."""

    remedy = "Send it as `Authorization: Bearer …`, and revoke the exposed token."


class HostNotAllowed(InvalidInput):
    """A Host header that names another server."""

    remedy = "Use a loopback name, or add the name to `allowed_hosts`."


class BodyTooLarge(InvalidInput):
    """A request body above `max_body_bytes`."""

    status = 413
    remedy = "Send less in one request, or raise `max_body_bytes`."


class HeadersTooLarge(InvalidInput):
    """A request with more than 100 headers, or with more than 32 KiB of them."""

    status = 431
    remedy = "Send fewer headers and cookies."


class NotJSON(InvalidInput):
    """A request body that is not plain JSON."""

    status = 415
    remedy = "Send `Content-Type: application/json` without a Content-Encoding."


class Unauthorized(PostroadError):
    """There is no token, or it is not valid."""

    status = 401
    remedy = "Send `Authorization: Bearer …` with a token that is neither revoked nor expired."


class Forbidden(PostroadError):
    """The token is valid, but its scope does not allow this."""

    status = 403
    remedy = "Use a token of the scope that the message names; `postroad token create` or POST /tokens makes one."


class ForeignForm(Forbidden):
    """A change was asked for with a cookie, and without the proof that one of our pages asked for it."""

    remedy = "Load the page again and repeat; programs send a token in `Authorization` and no cookie."


class ReadOnly(Forbidden):
    """This server, or the token, may change nothing."""

    remedy = "Start `postroad up` without `--read-only` to change something."


class RouteNotFound(NotFound):
    """There is nothing at this address."""

    remedy = "GET /schema lists every route."


class MethodNotAllowed(PostroadError):
    """The address exists, but not with this method."""

    status = 405
    remedy = "Use a method that the `Allow` header names."


class BodyTooSlow(PostroadError):
    """The request body arrived too slowly."""

    status = 408
    remedy = "Send the whole body within 15 seconds."


class TokenNotFound(NotFound):
    """There is no token with this name."""

    remedy = "`postroad token list` and GET /tokens show all."


class TokenExists(Conflict):
    """A token with this name already exists."""

    remedy = "Choose another name, or revoke the token first."


class IdempotencyKeyReused(PostroadError):
    """The Idempotency-Key was used before with a different body."""

    status = 409
    remedy = "Use a new key for a new request; the same key only repeats the same request."


class RateLimited(PostroadError):
    """There were too many requests at once.

    Args:
        message: Who asked too often.
        retry_after: Seconds after which to try again.
    """

    status = 429
    remedy = "Wait for the seconds in `Retry-After`, then send more slowly."

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyPolls(RateLimited):
    """Too many long polls are open."""

    remedy = "Close some, or poll with wait=0; all other routes still answer."


class InternalError(PostroadError):
    """Something went wrong inside Postroad."""

    remedy = "Look for the request id in the log."
