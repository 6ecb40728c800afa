"""`postroad audit list|verify` and `postroad token create|list|revoke`: who changed what, and who may."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime
from typing import Annotated, Any, cast

from postroad.cli.call import Call, verb
from postroad.cli.display import table
from postroad.cli.output import confirm_name
from postroad.cli.packages import http, http_tokens, operations, views
from postroad.cli.parameters import argument, duration_option, option
from postroad.settings import audit_path, beside
from postroad.telemetry import counted, legible, recorded


def audit_log(call: Call) -> operations.AuditLog:
    return operations.AuditLog(audit_path(call.settings().url))


def audited(
    call: Call, action: str, target: str, by: str, reason: str, detail: dict[str, Any]
) -> AbstractContextManager[dict[str, Any]]:
    """Record the change before it, and its outcome after it; without the first record nothing is changed."""
    return recorded(audit_log(call), action, target, {"reason": reason, **detail}, actor=by)


@verb("audit list", "--url sqlite:///work.db")
def list_(call: Call) -> None:
    """List who changed what, oldest first."""
    log = audit_log(call)
    call.check_exists(log.path)
    records = list(log.read())
    call.show(views.Listed(records), *([_line(each) for each in records] or ["no records"]))


@verb("audit verify", "--url sqlite:///work.db")
def verify(
    call: Call,
    head: Annotated[str | None, option("HASH", "A hash noted earlier that must still exist.")] = None,
) -> None:
    """Check the chain of hashes; exit 1 if a line was changed, removed or moved."""
    log = audit_log(call)
    call.check_exists(log.path)
    check = log.verify(head=head)
    result = f"ok, {counted(check.records, 'record')}" if check.ok else f"broken at line {check.bad_line} of {log.path}"
    call.show(check, result, f"head {check.head}", ok=check.ok)


def _line(record: operations.AuditRecord) -> str:
    parts = [str(record.seq), record.at, record.actor, record.action, record.target]
    parts += [f"{name}={value}" for name, value in record.detail.items() if type(value) is int]
    if reason := record.detail.get("reason"):
        parts.append(f"reason={reason!r}")
    return legible("  ".join(parts))


@verb("token create", "worker-1 --scope publish --expires-in 7d")
def create(
    call: Call,
    name: Annotated[str, argument("NAME", "1 to 64 letters, digits, '.', '_' or '-'.")],
    scope: Annotated[str, option("SCOPE", "What it allows: read, publish, operate or admin.")] = "read",
    expires_in: Annotated[float | None, duration_option("How long it is valid (for ever).")] = None,
) -> None:
    """Create a token and print its secret, which is shown only once."""
    tokens = _tokens(call)
    http_tokens.check_token(name, scope, expires_in)
    audit_log(call).append("token.create", name, {"scope": scope, "expires_in": expires_in})
    token, secret = tokens.create(name, cast("views.Scope", scope), expires_in=expires_in)
    call.show(token.made(secret), secret)


@verb("token list", "--json")
def list_tokens(call: Call) -> None:
    """List the tokens by name, without their secrets."""
    tokens = _tokens(call)
    call.check_exists(tokens.path)
    rows = [token.row for token in tokens.tokens()]
    cells = ([row.name, row.scope, _time(row.created_at), _time(row.expires_at)] for row in rows)
    nothing = "no tokens; make one with: postroad token create worker-1 --scope publish"
    call.show(views.Listed(rows), table(["TOKEN", "SCOPE", "CREATED", "EXPIRES"], cells, nothing))


def _time(at: datetime | None) -> str:
    return "never" if at is None else at.strftime("%Y-%m-%d %H:%M:%S")


@verb("token revoke", "worker-1 --confirm worker-1", destructive=True)
def revoke(
    call: Call,
    name: Annotated[str, argument("NAME", "The token.")],
    confirm: Annotated[str | None, option("NAME", "The token's name again, to skip the question.")] = None,
) -> None:
    """Revoke a token; running servers refuse it within a second."""
    tokens = _tokens(call)
    tokens.named(name)
    confirm_name(name, confirm, f'revokes token "{name}"')
    audit_log(call).append("token.revoke", name, {})
    tokens.revoke(name)
    call.show({"revoked": name}, f"revoked {name}")


def _tokens(call: Call) -> http.TokenFile:
    return http.TokenFile(beside(call.settings().url, "tokens.json"))
