"""`/schema`: the description of this API, for programs and for people."""

from __future__ import annotations

from typing import Any

from litestar import Response, get

from postroad.http.answers import answers
from postroad.http.guard import OPEN
from postroad.http.page import STYLE, render
from postroad.http.requests import ApiRequest


@get("/schema/openapi.json", opt={"scope": "read"}, responses=answers(dict[str, Any], says="OpenAPI 3.1."))
async def openapi(request: ApiRequest) -> Response[bytes]:
    """The description as OpenAPI 3.1."""
    return Response(request.app.state["openapi"].encoded, media_type="application/json")


@get("/schema", opt={"scope": "read"}, responses=answers(str, says="The page.", media_type="text/html"))
async def schema(request: ApiRequest) -> Response[str]:
    """The description as a page."""
    return Response(render(request.app.state["openapi"].document), media_type="text/html; charset=utf-8")


@get("/schema/style.css", opt={"scope": OPEN}, include_in_schema=False)
async def style() -> Response[str]:
    """The looks of the page."""
    return Response(STYLE, media_type="text/css; charset=utf-8")
