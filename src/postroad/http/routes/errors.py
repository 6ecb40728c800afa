"""`/errors/{slug}`: what an error means, for whoever followed a problem's `type`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from litestar import Response, get

from postroad.errors import PostroadError, RouteNotFound
from postroad.http.answers import ErrorPage, answers
from postroad.http.guard import OPEN
from postroad.http.routes.parameters import Name


@get("/errors/{slug:str}", opt={"scope": OPEN}, responses=answers(ErrorPage, 404, says="What the error means."))
async def explain_error(slug: Name) -> Response[dict[str, Any]]:
    """One kind of error: what it says and what to do about it."""
    for kind in _kinds(PostroadError):
        if kind.slug == slug:
            title = (kind.__doc__ or "").strip().split("\n", 1)[0]
            return Response({"slug": slug, "title": title, "status": kind.status, "remedy": kind.remedy})
    raise RouteNotFound("no error has this name")


def _kinds(kind: type[PostroadError]) -> Iterator[type[PostroadError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)
