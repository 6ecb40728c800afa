"""`/notifications`: what the store of chat notifications knows of a user."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from litestar import Response
from litestar.params import PathParameter

from postroad.http.openapi import route
from postroad.http.requests import ApiRequest
from postroad.notifications import UserShown, configured_user

User = Annotated[str, PathParameter(description="The user's id.")]


@route("GET /notifications/users/{user:str}", "read", UserShown, 404)
async def show_user_notifications(request: ApiRequest, user: User) -> Response[UserShown]:
    """Show a user's devices, the messages that wait, and the results of the last pushes, without content and tokens."""
    look = partial(configured_user, request.context.backend.url, user)
    return Response(await request.context.run(look))
