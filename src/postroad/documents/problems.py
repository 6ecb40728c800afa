"""The problem object: the one form in which every error leaves Postroad."""

from __future__ import annotations

from typing import Any

from postroad.errors import PostroadError


def problem(error: Exception, *, request_id: str | None = None) -> dict[str, Any]:
    """An error as `application/problem+json`. What Postroad did not foresee carries nothing but the request id."""
    if not isinstance(error, PostroadError):
        return _unforeseen(request_id)
    document: dict[str, Any] = {
        "type": f"/errors/{error.slug}",
        "title": _title(error),
        "status": error.status,
        "detail": str(error),
        "remedy": remedy(error),
        "request_id": request_id,
    }
    if error.field is not None:
        document["field"] = error.field
    if differences := getattr(error, "differences", None):
        document["differences"] = {name: list(pair) for name, pair in differences.items()}
    return document


def remedy(error: PostroadError) -> str:
    """What to do about it, the name that was probably meant first."""
    return error.remedy if error.nearest is None else f'Did you mean "{error.nearest}"? {error.remedy}'


def entry_problem(error: Exception) -> dict[str, Any]:
    """The error of one entry of a batch: a problem without status and request id."""
    document = problem(error)
    return {key: value for key, value in document.items() if key not in ("status", "request_id")}


def _title(error: PostroadError) -> str:
    """The first line of the class's own contract."""
    return (type(error).__doc__ or "").strip().split("\n", 1)[0]


def _unforeseen(request_id: str | None) -> dict[str, Any]:
    return {
        "type": "/errors/internal",
        "title": "Something went wrong inside Postroad.",
        "status": 500,
        "detail": "The cause is in the log.",
        "remedy": "Look for the request id in the log; POSTROAD_DEBUG=1 shows the traceback.",
        "request_id": request_id,
    }
