"""What fails on the way to other processes."""

from __future__ import annotations

from postroad.errors.root import PostroadError


class TransportError(PostroadError):
    """The driver or the network failed."""

    slug = "transport"
    status = 503
    remedy = "Try again; if it persists, check the address, the network and the credentials."


class Unavailable(TransportError):
    """The store could not be reached or refused; it surely had no effect."""

    slug = "unavailable"


class NotPermitted(Unavailable):
    """The credentials do not allow it; trying again cannot help."""

    slug = "not-permitted"
    remedy = "Give these credentials the permission that the message names, or renew them."


class Throttled(Unavailable):
    """The service takes no more at this rate; it had no effect."""

    slug = "throttled"
    remedy = "Send less, or wait; whoever sends in the background goes on by itself."


class CircuitOpenError(Unavailable):
    """Not tried, because too many calls before it failed."""

    slug = "circuit-open"
    remedy = "Publish again after `retry_after` seconds, and look for the cause in the failures before it."

    def __init__(self, message: str = "the circuit breaker is open", *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OutcomeUnknown(TransportError):
    """The call was cut off; it may have had its effect."""

    slug = "outcome-unknown"
    remedy = "Repeat it under the same id: what already happened is recognised."


class PublishFailed(TransportError):
    """A bus could not send an event to other processes; its cause is what the driver raised."""

    slug = "publish-failed"
    remedy = "Publish the event again: its id stays the same where the event carries one."


class OutOfOrder(PublishFailed):
    """Not sent again, because a later event of its group is already sent and the order must hold."""

    slug = "out-of-order"
    status = 409
    remedy = "Decide whether the event may come late; if so, publish it again by itself."


class NotSent(PublishFailed):
    """Not sent, because an earlier event of its group failed and the order must hold."""

    slug = "not-sent"
    status = 409
    remedy = "Publish the failed event again first, then this one."


class DuplicateInProgress(PostroadError):
    """Another copy of the event is being handled; this one must come again in case that fails."""

    slug = "duplicate-in-progress"
    status = 409
    remedy = "Let the transport deliver it again; it is recognised when the first copy succeeded."


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
