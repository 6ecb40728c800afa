"""`postroad doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.call import Call
from postroad.cli.durations import duration
from postroad.cli.errors import ANSWER_IS_NO
from postroad.cli.verbs import add_verb
from postroad.errors import InvalidInput
from postroad.telemetry import legible

if TYPE_CHECKING:
    from postroad.settings import Settings
    from postroad.topology import Finding


def add_to(app: typer.Typer) -> None:
    """Make the verb part of the program."""
    add_verb(app, "doctor", doctor, example="postroad doctor --p99 orders=12 --strict")


def doctor(
    call: Call,
    p99: Annotated[
        list[str] | None, typer.Option(metavar="QUEUE=SECONDS", help="The p99 of a queue's handler; repeatable.")
    ] = None,
    dsn: Annotated[
        str | None, typer.Option(metavar="DSN", help="The application's database: postgresql://… or sqlite:///path.")
    ] = None,
    outbox_horizon: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="How long the outbox retries (4.6h).")
    ] = None,
    inbox_retention: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="How long the inbox remembers (30d).")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on a warning too.")] = False,
) -> None:
    """Look for what will go wrong; exit 1 on an error."""
    from postroad.operations import doctor as examine

    with call.backend() as backend:
        found = examine(
            backend, handler_p99=_seconds(p99 or []), dsn=dsn, outbox_horizon=outbox_horizon,
            inbox_retention=inbox_retention,
        )  # fmt: skip
    findings = (*found, *_weak_tokens(call.settings()))
    ok = not any(strict or finding.severity == "error" for finding in findings)
    document = {"ok": ok, "findings": [asdict(finding) for finding in findings]}
    call.show(document, *(_lines(findings) if findings else ["nothing found"]))
    if not ok:
        raise typer.Exit(ANSWER_IS_NO)


def _seconds(pairs: list[str]) -> dict[str, float]:
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(f'p99: "{pair}" is not QUEUE=SECONDS', field="p99")
        found[name] = duration(text)
    return found


def _weak_tokens(settings: Settings) -> Iterator[Finding]:
    """The admin token, where the operator set one that can be guessed."""
    from postroad.topology import Finding
    from postroad.up.exposure import STRONG_TOKEN, token_of

    token = token_of(settings)
    if token is not None and len(token) < STRONG_TOKEN:
        message = f"token: the admin token has {len(token)} characters and can be guessed"
        remedy = f"Set one of {STRONG_TOKEN} characters or more, or leave it out to have one made."
        yield Finding("token-weak", "warning", "token", message, remedy)


def _lines(findings: tuple[Finding, ...]) -> Iterator[str]:
    for finding in findings:
        yield legible(f"{finding.severity:<8} {finding.code:<20} {finding.message}")
        yield legible(f"{'':<29} {finding.remedy}")
