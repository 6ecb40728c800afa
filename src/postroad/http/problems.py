"""Errors on their way out: one form for all of them, whoever raised them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException

from postroad.errors import InternalError, InvalidInput, MethodNotAllowed, PostroadError, RouteNotFound
from postroad.telemetry import get_logger
from postroad.views import problem

MEDIA_TYPE = "application/problem+json"
_log = get_logger("http")


def answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Any exception as a problem; one that nobody foresaw is logged and says nothing but the request's id."""
    request_id = request.scope["state"].get("request_id")
    known = _known(error)
    if known is None or known.status == 500:
        _log.error("http_request", request_id=request_id, status=500, exc_info=error)
        known = InternalError("The cause is in the log.")
    headers = headers_of(known) | _allow(error)
    return Response(encoded(known, request_id), status_code=known.status, media_type=MEDIA_TYPE, headers=headers)


def encoded(error: PostroadError, request_id: str | None) -> bytes:
    """The body of a problem."""
    return msgspec.json.encode(problem(error, request_id=request_id))


def headers_of(error: PostroadError) -> dict[str, str]:
    """The headers that go with the status of an error."""
    if error.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if error.status in (429, 503):
        return {"Retry-After": str(max(1, math.ceil(getattr(error, "retry_after", None) or 1)))}
    return {}


def _known(error: Exception) -> PostroadError | None:
    if isinstance(error, PostroadError):
        return error
    if isinstance(error, ValidationException):
        return _invalid(error)
    if isinstance(error, NotFoundException):
        return RouteNotFound("there is nothing at this address")
    if isinstance(error, MethodNotAllowedException):
        return MethodNotAllowed("the address does not take this method")
    if isinstance(error, HTTPException) and 400 <= error.status_code < 500:
        return InvalidInput(error.detail)
    return None


def _invalid(error: ValidationException) -> InvalidInput:
    """The first of the fields that the framework refused."""
    first = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
    field = first.get("key")
    message = str(first.get("message", error.detail))
    return InvalidInput(f"{field or 'request'}: {message[:1].lower()}{message[1:]}", field=field)


def _allow(error: Exception) -> dict[str, str]:
    if not isinstance(error, MethodNotAllowedException):
        return {}
    named = {name.strip() for name in (error.headers or {}).get("allow", "").split(",")}
    methods = (named - {"OPTIONS", ""}) | ({"HEAD"} if "GET" in named else set())
    return {"Allow": ", ".join(sorted(methods))}
