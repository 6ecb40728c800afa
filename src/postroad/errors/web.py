"""What the HTTP API refuses."""

from __future__ import annotations

from postroad.errors.root import Conflict, InvalidInput, NotFound, PostroadError


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


class RouteNotFound(NotFound):
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


class TokenNotFound(NotFound):
    """There is no token of this name."""

    slug = "token-not-found"
    status = 404
    remedy = "Name a token that GET /tokens lists."


class TokenExists(Conflict):
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
