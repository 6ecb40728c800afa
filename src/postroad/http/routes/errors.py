"""`/errors/{slug}`: what an error means, for whoever followed a problem's `type`."""

from __future__ import annotations

from collections.abc import Iterator

from litestar import Response, get

from postroad.errors import PostroadError, RouteNotFound
from postroad.http.answers import answers
from postroad.http.guard import OPEN
from postroad.http.routes.parameters import Name
from postroad.views import ErrorPage, error_page


@get("/errors/{slug:str}", opt={"scope": OPEN}, responses=answers(ErrorPage, 404, says="What the error means."))
async def explain_error(slug: Name) -> Response[ErrorPage]:
    """One kind of error: what it says and what to do about it."""
    for kind in _kinds(PostroadError):
        if kind.slug == slug:
            return Response(error_page(kind))
    raise RouteNotFound("no error has this name")


def _kinds(kind: type[PostroadError]) -> Iterator[type[PostroadError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)
