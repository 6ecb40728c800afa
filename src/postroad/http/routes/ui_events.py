"""`/ui/events`, `/ui/map`: the journal, the story of any id, and what events pass through."""

from __future__ import annotations

from typing import Annotated

from litestar import Response, get
from litestar.params import PathParameter

from postroad.dashboard import failure_of, next_of
from postroad.http.requests import ApiRequest
from postroad.http.routes.service import story_of
from postroad.http.routes.ui import PAGE, shown

Id = Annotated[str, PathParameter()]


@get("/ui/events/{name:str}", **PAGE)
async def event(request: ApiRequest, name: Id) -> Response[str]:
    """Show what happened to an event, message, push, task or job, and what would move it on."""
    story = await story_of(request, name)
    return shown(request, "event", doc=story, failure=failure_of(story), next=next_of(story))
