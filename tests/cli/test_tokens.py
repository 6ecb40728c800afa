"""`postroad token`: secrets shown once, hashes kept, every change on record."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from tests.cli.terminal import Postroad

from postroad.http.tokens import TokenFile, digest
from postroad.operations import AuditLog
from postroad.settings import audit_path

TOKENS = Path("postroad.db.tokens.json")


def test_a_token_is_made_listed_and_revoked(postroad: Postroad) -> None:
    made = postroad("token", "create", "worker-1", "--scope", "publish", "--expires-in", "7d", "--json").document
    (kept,) = TokenFile(TOKENS).tokens()
    listed = postroad("token", "list", "--json").document
    revoked = postroad("token", "revoke", "worker-1", "--confirm", "worker-1", "--json").document

    assert made["token"].startswith("pr_")
    assert kept.sha256 == digest(made["token"])
    assert listed == {"items": [{key: made[key] for key in ("name", "scope", "created_at", "expires_at")}]}
    assert revoked == {"revoked": "worker-1"}
    assert TokenFile(TOKENS).tokens() == ()
    assert stat.S_IMODE(TOKENS.stat().st_mode) == 0o600


def test_making_and_revoking_are_one_record_each(postroad: Postroad) -> None:
    secret = postroad("token", "create", "worker-1").out.strip()
    postroad("token", "revoke", "worker-1", "--confirm", "worker-1")

    records = list(AuditLog(audit_path("sqlite:///postroad.db")).read())

    assert [(record.action, record.target) for record in records] == [
        ("token.create", "worker-1"),
        ("token.revoke", "worker-1"),
    ]
    assert secret not in audit_path("sqlite:///postroad.db").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "slug"),
    [
        (("create", "a b"), 2, "invalid-input"),
        (("create", "ann", "--scope", "root"), 2, "invalid-input"),
        (("create", "ann", "--expires-in", "0"), 2, "invalid-input"),
        (("create", "worker-1"), 1, "token-exists"),
        (("revoke", "worker-1"), 2, "invalid-input"),
        (("revoke", "worker-1", "--confirm", "worker"), 2, "invalid-input"),
        (("revoke", "nobody", "--confirm", "nobody"), 1, "token-not-found"),
    ],
)
def test_what_is_refused_changes_no_token(postroad: Postroad, arguments: tuple[str, ...], code: int, slug: str) -> None:
    postroad("token", "create", "worker-1")
    before = TOKENS.read_bytes()

    refused = postroad("token", *arguments, "--json")

    assert (refused.code, refused.problem["type"]) == (code, f"/errors/{slug}")
    assert TOKENS.read_bytes() == before


def test_the_remedy_of_an_unknown_token_names_the_command_that_lists_them(postroad: Postroad) -> None:
    refused = postroad("token", "revoke", "nobody", "--confirm", "nobody", "--json")

    assert "`postroad token list`" in refused.problem["remedy"]
