"""`postroad token create|list|revoke`: who may use the HTTP API, and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from postroad.cli.auditing import audit_log
from postroad.cli.call import Call
from postroad.cli.confirming import confirm_name
from postroad.cli.durations import duration
from postroad.cli.verbs import add_verb

if TYPE_CHECKING:
    from datetime import datetime

    from postroad.http.tokens import Scope, Token, TokenFile

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
    call.show({**_row(token), "token": secret}, secret)


def list_(call: Call) -> None:
    """List the tokens by name, without their secrets."""
    from postroad.cli.tables import token_table

    rows = [_row(token) for token in _tokens(call).tokens()]
    call.show({"items": rows}, token_table(rows))


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


def _row(token: Token) -> dict[str, Any]:
    return {
        "name": token.name,
        "scope": token.scope,
        "created_at": _text(token.created_at),
        "expires_at": None if token.expires_at is None else _text(token.expires_at),
    }


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
