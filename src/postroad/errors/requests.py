"""What a request to another process ends with, other than its answer."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from postroad.errors.root import PostroadError


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
