"""`/why`: one story for any id."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from litestar import Response, get
from litestar.params import PathParameter

from postroad.http.answers import answers
from postroad.http.requests import ApiRequest
from postroad.journal.stories import Story
from postroad.operations.why import why

Named = Annotated[str, PathParameter(description="The id of a task or job.")]


@get("/why/{name:str}", opt={"scope": "read"}, responses=answers(Story, 404, says="What happened, and what is next."))
async def tell_why(request: ApiRequest, name: Named) -> Response[Story]:
    """What happened to a task or job, how it stands, and what would move it on."""
    context = request.context
    settings = context.settings
    look = partial(why, context.backend, name, tenant=settings.tenant, app=settings.app)
    return Response(await context.run(look))
