"""`postroad audit list|verify`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.auditing import audit_log
from postroad.cli.call import Call
from postroad.cli.errors import ANSWER_IS_NO
from postroad.cli.verbs import add_verb
from postroad.telemetry import legible

if TYPE_CHECKING:
    from postroad.operations import AuditRecord


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
