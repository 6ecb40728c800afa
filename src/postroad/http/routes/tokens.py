"""`/tokens`: who may do what."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, delete, get, post
from litestar.openapi.spec import Example
from litestar.params import Body

from postroad.http import forms
from postroad.http.answers import answers
from postroad.http.idempotency import Answer
from postroad.http.paging import page
from postroad.http.performing import perform
from postroad.http.requests import ApiRequest
from postroad.http.routes.parameters import Cursor, Limit, Name
from postroad.views import TokenMade, TokenPage

TokenBody = Annotated[
    forms.NewToken, Body(examples=[Example(value={"name": "worker-1", "scope": "publish", "expires_in": 86_400})])
]


@post(
    "/tokens",
    opt={"scope": "admin"},
    status_code=201,
    responses=answers(TokenMade, 400, 409, status=201, says="The token with its secret, which is shown this once."),
)
async def create_token(request: ApiRequest, data: TokenBody) -> Response[Any]:
    """Make a token. A repeat under the same Idempotency-Key shows a fresh secret, and the former one is void."""
    tokens = request.context.tokens

    def make() -> Answer:
        token, secret = tokens.create(data.name, data.scope, expires_in=data.expires_in)
        return Answer(201, token.made(secret))

    def renew(document: dict[str, Any]) -> TokenMade:
        token, secret = tokens.renew(document["name"])
        return token.made(secret)

    return await perform(request, make, revive=renew)


@get("/tokens", opt={"scope": "admin"}, responses=answers(TokenPage, 400, says="Tokens by name."))
async def list_tokens(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Response[TokenPage]:
    """All tokens by name, without their secrets."""
    after = "" if cursor is None else request.context.cursors.open("tokens", cursor)

    def look() -> TokenPage:
        tokens = [token for token in request.context.tokens.tokens() if token.name > after]
        return page(
            request, TokenPage, "tokens", tokens, limit, position=lambda token: token.name, row=lambda token: token.row
        )

    return Response(await request.context.run(look))


@delete("/tokens/{name:str}", opt={"scope": "admin"}, responses=answers(None, 404, status=204, says="It is revoked."))
async def revoke_token(request: ApiRequest, name: Name) -> None:
    """Revoke a token; it opens nothing a second later at the latest."""
    await request.context.run(lambda: request.context.tokens.revoke(name))
