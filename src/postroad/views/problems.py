"""The problem object: the one form in which every error leaves Postroad."""

from __future__ import annotations

from typing import Any

import msgspec

from postroad.errors import InternalError, PostroadError, QueueExists


class EntryProblem(msgspec.Struct, kw_only=True):
    """What went wrong with one entry of a batch."""

    type: str
    title: str
    detail: str
    remedy: str
    field: str | msgspec.UnsetType = msgspec.UNSET


class Problem(msgspec.Struct, kw_only=True):
    """What went wrong, and what to do about it."""

    type: str
    title: str
    status: int
    detail: str
    remedy: str
    request_id: str | None
    field: str | msgspec.UnsetType = msgspec.UNSET
    differences: dict[str, list[Any]] | msgspec.UnsetType = msgspec.UNSET


class ErrorPage(msgspec.Struct):
    """What an error means."""

    slug: str
    title: str
    status: int
    remedy: str


def problem(error: Exception, *, request_id: str | None = None) -> Problem:
    """Return an error as `application/problem+json`. An unforeseen error carries nothing but the request id."""
    known = error if isinstance(error, PostroadError) else InternalError("The cause is in the log.")
    document = Problem(
        type=_address(known),
        title=title(type(known)),
        status=known.status,
        detail=str(known),
        remedy=_remedy(known),
        request_id=request_id,
        field=msgspec.UNSET if known.field is None else known.field,
    )
    if isinstance(known, QueueExists):
        document.differences = {name: list(pair) for name, pair in known.differences.items()}
    return document


def entry_problem(error: Exception) -> EntryProblem:
    """Return the error of one entry of a batch: a problem without status and request id."""
    whole = problem(error)
    return EntryProblem(type=whole.type, title=whole.title, detail=whole.detail, remedy=whole.remedy, field=whole.field)


def error_page(kind: type[PostroadError]) -> ErrorPage:
    """Return what the class of an error means."""
    return ErrorPage(kind.slug, title(kind), kind.status, kind.remedy)


def title(kind: type[PostroadError]) -> str:
    """Return the first line of the class's docstring."""
    return (kind.__doc__ or "").strip().split("\n", 1)[0]


def _address(error: PostroadError) -> str:
    return f"/errors/{error.slug}"


def _remedy(error: PostroadError) -> str:
    """Return what to do about it, the name that was probably meant first."""
    return error.remedy if error.nearest is None else f'Did you mean "{error.nearest}"? {error.remedy}'
