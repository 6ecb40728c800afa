"""`postroad audit list|verify` and `postroad token create|list|revoke`: who may do what, and who did."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.output import ANSWER_IS_NO, confirm_name
from postroad.cli.parameters import duration
from postroad.telemetry import legible, recorded

if TYPE_CHECKING:
    from postroad.http import TokenFile
    from postroad.operations import AuditLog, AuditRecord
    from postroad.views import Scope


def audit_log(call: Call) -> AuditLog:
    """The file of this deployment."""
    from postroad.operations import AuditLog
    from postroad.settings import audit_path

    return AuditLog(audit_path(call.settings().url))


def audited(
    call: Call, action: str, target: str, by: str, reason: str, detail: dict[str, Any]
) -> AbstractContextManager[dict[str, Any]]:
    """A record before the change and one with its outcome after it; without the first nothing is changed."""
    return recorded(audit_log(call), action, target, {"reason": reason, **detail}, actor=by)


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad audit`."""
    add_verb(app, "list", list_, example="postroad audit list")
    add_verb(app, "verify", verify, example="postroad audit verify")


def list_(call: Call) -> None:
    """List who changed what, from the first record on."""
    records = list(audit_log(call).read())
    call.show({"items": [asdict(record) for record in records]}, *([_line(each) for each in records] or ["no records"]))


def verify(
    call: Call,
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A hash noted earlier that must still be there.")
    ] = None,
) -> None:
    """Follow the chain of hashes; exit 1 if a line was changed, removed or swapped."""
    log = audit_log(call)
    check = log.verify(head=head)
    said = f"ok, {check.records} records" if check.ok else f"broken at line {check.bad_line} of {log.path}"
    call.show(asdict(check), said, f"head {check.head}")
    if not check.ok:
        raise typer.Exit(ANSWER_IS_NO)


def _line(record: AuditRecord) -> str:
    """Who did what to what, how much of it, and why."""
    counts = [f"{name}={value}" for name, value in record.detail.items() if type(value) is int]
    reason = record.detail.get("reason")
    told = [*counts, *([f"reason={reason!r}"] if reason else [])]
    return legible("  ".join([f"{record.seq}  {record.at}  {record.actor}  {record.action}  {record.target}", *told]))


TokenName = Annotated[str, typer.Argument(metavar="NAME", help="The token.")]


def add_tokens_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad token`."""
    add_verb(app, "create", create, example="postroad token create worker-1 --scope publish --expires-in 7d")
    add_verb(app, "list", list_tokens, example="postroad token list")
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


def list_tokens(call: Call) -> None:
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
