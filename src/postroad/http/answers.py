"""The answers of the routes, for the API's description. What they hold is described in `postroad.views`."""

from __future__ import annotations

from typing import Any

from litestar.openapi.datastructures import ResponseSpec

from postroad.views import Problem


def answers(
    what: Any, *more: int, status: int = 200, says: str, media_type: str = "application/json"
) -> dict[int, ResponseSpec]:
    """The answers of a route: the good one, and a problem for each of the other statuses."""
    good = ResponseSpec(data_container=what, generate_examples=False, description=says, media_type=media_type)
    return {status: good} | {
        other: ResponseSpec(
            data_container=Problem,
            generate_examples=False,
            description=SAYS[other],
            media_type="application/problem+json",
        )
        for other in more
    }


SAYS = {
    400: "Malformed or invalid; `field` names what is at fault.",
    401: "No token, or one that opens nothing.",
    403: "The token's scope does not reach this, or the server is read-only.",
    404: "There is no such thing.",
    408: "The body came too slowly.",
    409: "It conflicts with what is there.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too much at once; `Retry-After` says when to come again.",
    500: "Nothing Postroad foresaw; the log has the request id.",
    503: "The storage refuses for now; `Retry-After` says when to come again.",
}
