"""What tasks, jobs, the journal, agents, sessions and notifications refuse."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from postroad.errors.root import ConfigurationError, Conflict, InvalidInput, InvalidMessage, NotFound, PostroadError
from postroad.errors.stores import StorageDamaged
from postroad.errors.transport import TransportError


class InvalidTask(InvalidInput):
    """A task that cannot be submitted or registered."""

    slug = "invalid-task"
    remedy = "Correct the field that the message names; nothing was submitted."


class UnknownTask(InvalidInput):
    """A name that no registry of tasks knows; names are looked up, never imported."""

    slug = "unknown-task"
    remedy = "Register it with @task or registry.register, and name its module with `--import`."


class InvalidJob(InvalidInput):
    """A graph of tasks that cannot be run."""

    slug = "invalid-job"
    remedy = "Correct the tasks that the message names; nothing was submitted."


class InvalidEvent(InvalidInput):
    """An event that is refused; the message names the field."""

    slug = "invalid-event"
    remedy = "Correct the field that the message names; the event was not stored."


class EventTooLarge(InvalidEvent):
    """An event above the limit of the journal or of agents."""

    slug = "event-too-large"
    status = 413
    remedy = "Shorten the context or the properties, or configure blobs; the event was not stored."


class InvalidQuery(InvalidInput):
    """A question that the journal cannot answer."""

    slug = "invalid-query"
    remedy = "Give exactly the arguments that the index needs, and a limit of 1 to 1000."


class OverflowMismatch(StorageDamaged):
    """The blob that holds part of an event is missing, or is not what was stored."""

    slug = "overflow-mismatch"
    remedy = "Read it with raw=True to see what the item itself holds, or restore the blob from a backup."

    def __init__(self, message: str, *, event_id: UUID | None = None) -> None:
        super().__init__(message)
        self.event_id = event_id


class AgentNotFound(NotFound):
    """There is no agent of this id, or it is not the caller's."""

    slug = "agent-not-found"
    status = 404
    remedy = "Name an agent that is registered; agents.register() or `postroad agent create` makes one."


class AgentExists(Conflict):
    """An agent of this id is registered."""

    slug = "agent-exists"
    status = 409
    remedy = "Choose another id, or leave it out to be given one."


class AgentDeleted(PostroadError):
    """The agent of this id was deleted; an id is never given again."""

    slug = "agent-deleted"
    status = 409
    remedy = "Register under another id."


class SubscriptionNotFound(NotFound):
    """This listener is not subscribed to this producer."""

    slug = "subscription-not-found"
    status = 404
    remedy = "Subscribe first: agents.subscribe(listener, producer)."


class ConsentRequired(PostroadError):
    """The producer chooses its listeners and has not chosen this one."""

    slug = "consent-required"
    status = 403
    remedy = "Ask the producer or an admin to grant it: PUT /agents/{producerId}/grants/{listenerId}."


class IdentityMismatch(PostroadError):
    """The body names another agent than the token."""

    slug = "identity-mismatch"
    status = 403
    remedy = "Leave `agentId` out, or name the agent whose token is sent."


class RequestFailed(PostroadError):
    """A main loop answered the request with an error, which is the cause of this one."""

    slug = "request-failed"
    status = 502
    remedy = "Look at the cause; it is what the main loop's adapter, prompt or session raised."

    def __init__(self, request_id: UUID, error: BaseException) -> None:
        super().__init__(f"request {request_id} failed: {type(error).__name__}: {error}")
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


class InvalidNotification(InvalidMessage):
    """A push or an offline message that is refused; the message names the field, never what it holds."""

    slug = "invalid-notification"
    remedy = "Correct the field that the message names; nothing was stored or sent."


class SendFailed(TransportError):
    """A queue did not take a message; its cause is what the queue said."""

    slug = "send-failed"
    remedy = "Send the message again: a second copy of one message is recognised when it is stored."


class AlertRefused(ConfigurationError):
    """An address that no alert may be sent to."""

    slug = "alert-refused"
    remedy = "Give the https address of a webhook at one of the allowed hosts, by default hooks.slack.com."
