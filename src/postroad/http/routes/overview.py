"""`/overview` and `/live`: the state of everything at a glance, once and as it changes."""

from __future__ import annotations

from typing import Annotated

from litestar import Response
from litestar.params import QueryParameter

from postroad.http.openapi import route
from postroad.http.requests import ApiRequest
from postroad.http.samples import LONGEST_SECONDS
from postroad.views import Overview

Window = Annotated[
    int, QueryParameter(ge=10, le=LONGEST_SECONDS, description="The seconds that the charts show, 10 to 86,400.")
]


@route("GET /overview", "read", Overview)
async def show_overview(request: ApiRequest, window: Window = 300) -> Response[Overview]:
    """Show what waits, what happened and what needs attention, as it was a second ago at most."""
    return Response(await request.context.overviews.document(window))
