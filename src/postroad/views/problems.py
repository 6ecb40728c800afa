"""The problem object: the one form in which every error leaves Postroad."""

from __future__ import annotations

from typing import Any

from postroad.errors import InternalError, PostroadError, QueueExists


def problem(error: Exception, *, request_id: str | None = None) -> dict[str, Any]:
    """An error as `application/problem+json`. What Postroad did not foresee carries nothing but the request id."""
    known = error if isinstance(error, PostroadError) else InternalError("The cause is in the log.")
    document: dict[str, Any] = {
        "type": f"/errors/{known.slug}",
        "title": _title(known),
        "status": known.status,
        "detail": str(known),
        "remedy": remedy(known),
        "request_id": request_id,
    }
    if known.field is not None:
        document["field"] = known.field
    if isinstance(known, QueueExists):
        document["differences"] = {name: list(pair) for name, pair in known.differences.items()}
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
