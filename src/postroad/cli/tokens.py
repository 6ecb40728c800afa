"""`postroad token create|list|revoke`: who may use the HTTP API, and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from postroad.cli.auditing import audit_log
from postroad.cli.call import Call
from postroad.cli.confirming import confirm_name
from postroad.cli.durations import duration
from postroad.cli.verbs import add_verb

if TYPE_CHECKING:
    from postroad.http.tokens import TokenFile
    from postroad.views import Scope

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="The token.")]


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad token`."""
    add_verb(app, "create", create, example="postroad token create worker-1 --scope publish --expires-in 7d")
    add_verb(app, "list", list_, example="postroad token list")
    add_verb(app, "revoke", revoke, example="postroad token revoke worker-1 --confirm worker-1", destructive=True)


def create(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="1 to 64 letters, digits, '.', '_' or '-'.")],
    scope: Annotated[str, typer.Option(metavar="SCOPE", help="read, publish, operate or admin.")] = "read",
    expires_in: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="How long it opens anything (for ever).")
    ] = None,
) -> None:
    """Make a token and print its secret, which is shown this once."""
    from postroad.http.tokens import check_token

    tokens = _tokens(call)
    check_token(name, scope, expires_in)
    audit_log(call).append("token.create", name, {"scope": scope, "expires_in": expires_in})
    token, secret = tokens.create(name, cast("Scope", scope), expires_in=expires_in)
    call.show(token.made(secret), secret)


def list_(call: Call) -> None:
    """List the tokens by name, without their secrets."""
    from postroad.cli.tables import token_table
    from postroad.views import TokenPage

    rows = [token.row for token in _tokens(call).tokens()]
    call.show(TokenPage(rows), token_table(rows))


def revoke(
    call: Call,
    name: TokenName,
    confirm: Annotated[
        str | None, typer.Option(metavar="NAME", help="The token's name again, instead of the question.")
    ] = None,
) -> None:
    """Forget a token; running servers follow within a second."""
    tokens = _tokens(call)
    tokens.named(name)
    confirm_name(name, confirm, f'lets nobody in with token "{name}" any more')
    audit_log(call).append("token.revoke", name, {})
    tokens.revoke(name)
    call.show({"revoked": name}, f"revoked {name}")


def _tokens(call: Call) -> TokenFile:
    from postroad.http.tokens import TokenFile
    from postroad.settings import beside

    return TokenFile(beside(call.settings().url, "tokens.json"))
