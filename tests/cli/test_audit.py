"""`postroad audit list|verify`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.terminal import Postroad

from postroad.operations import AuditLog


def test_records_are_listed_from_the_first_on(postroad: Postroad) -> None:
    AuditLog(Path("postroad-audit.jsonl")).append("purge", "orders", {"purged": 3}, actor="ada")

    items = postroad("audit", "list", "--json").document["items"]

    assert [(item["seq"], item["actor"], item["action"], item["detail"]) for item in items] == [
        (1, "ada", "purge", {"purged": 3})
    ]
    assert "ada  purge  orders" in postroad("audit", "list").out


def test_an_empty_audit_is_fine(postroad: Postroad) -> None:
    Path("postroad.db").touch()

    assert postroad("audit", "list").out == "no records\n"
    assert postroad("audit", "verify", "--json").document == {
        "ok": True,
        "records": 0,
        "bad_line": None,
        "head": "0" * 64,
    }


def test_a_changed_line_is_exit_1_and_named(postroad: Postroad) -> None:
    log = AuditLog(Path("postroad-audit.jsonl"))
    for name in ("a", "b"):
        log.append("purge", name, {})
    log.path.write_bytes(log.path.read_bytes().replace(b'"target":"b"', b'"target":"c"'))

    verified = postroad("audit", "verify", "--json")

    assert verified.code == 1
    assert verified.document["bad_line"] == 2
    assert "broken at line 2" in postroad("audit", "verify").out


def test_a_cut_tail_is_found_by_its_head(postroad: Postroad) -> None:
    log = AuditLog(Path("postroad-audit.jsonl"))
    log.append("purge", "a", {})
    head = log.append("purge", "b", {}).hash
    log.path.write_bytes(log.path.read_bytes().splitlines(keepends=True)[0])

    assert postroad("audit", "verify").code == 0
    assert postroad("audit", "verify", "--head", head).code == 1


def test_a_record_drives_no_terminal(postroad: Postroad) -> None:
    AuditLog(Path("postroad-audit.jsonl")).append("purge", "\x1b[2J", {}, actor="eve\nadmin")

    out = postroad("audit", "list").out

    assert "\x1b" not in out
    assert len(out.splitlines()) == 1


def test_a_record_is_listed_with_its_counts_and_its_reason(postroad: Postroad) -> None:
    AuditLog().append("queue.purge.end", "orders", {"purged": 12, "reason": "test data", "archive": None}, actor="kim")

    outcome = postroad("audit", "list")

    assert "orders  purged=12  reason='test data'" in outcome.out
