"""The report of a check: the verdict, what was counted, and each violation that was found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

Verdict = Literal["ok", "violated", "inconclusive"]
Blame = Callable[[str, str | int, str | None, str], None]
"""Takes invariant, id, subscription and detail of what looks wrong."""
MOST_FINDINGS: Final = 100
INVARIANTS: Final = {
    f"I{number}": name
    for number, name in enumerate(
        (
            *("lost", "phantom", "corrupt", "unexplained_duplicates", "duplicated_effects", "split_outcomes"),
            *("missing_copies", "echo", "order", "overlap", "overtaking", "stale_ack", "early_delivery"),
            *("receive_count", "dead_letter", "atomicity", "stuck", "attempts", "sequence", "dedup", "stream"),
            *("terminal", "fencing", "orphans", "dag", "fold", "storage", "counters", "tenants", "recovery"),
        ),
        1,
    )
}
"""The name of each invariant in `violations`."""


class Counts(msgspec.Struct, kw_only=True):
    """How much happened."""

    messages: int = 0
    publishes_ok: int = 0
    publishes_unknown: int = 0
    publishes_failed: int = 0
    deliveries: int = 0
    redeliveries: int = 0
    effects: int = 0
    dead_letters: int = 0
    kills: int = 0
    pauses: int = 0
    restarts: int = 0
    proxy_faults: int = 0
    unknown_ops: int = 0


class Finding(msgspec.Struct, kw_only=True, frozen=True):
    """One violation of an invariant."""

    invariant: str
    name: str
    id: str | int | None = None
    subscription: str | None = None
    detail: str = ""


class Recovery(msgspec.Struct, kw_only=True):
    """How long messages that were delivered again took from their first receive until they were handled."""

    max: float = 0.0
    p99: float = 0.0


class Report(msgspec.Struct, kw_only=True):
    """What a check found.

    `violations` has the number of all violations, under the name of each invariant; `findings` are the first hundred
    of them. `reasons` says why the verdict is `inconclusive`.
    """

    format: int = 1
    verdict: Verdict = "inconclusive"
    seed: int = 0
    scenario: str = ""
    store: str = ""
    size: str = ""
    started_at: str = ""
    seconds: float = 0.0
    counts: Counts = msgspec.field(default_factory=Counts)
    violations: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(INVARIANTS.values(), 0))
    findings: list[Finding] = []
    reasons: list[str] = []
    recovery_seconds: Recovery = msgspec.field(default_factory=Recovery)
    versions: dict[str, str] = {}
    command: str = ""

    def blame(self, invariant: str, id: str | int | None, subscription: str | None, detail: str) -> None:
        """Count a violation of the invariant with this number, such as `I1`; keep it as a finding if there is room."""
        name = INVARIANTS[invariant]
        self.violations[name] += 1
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(
                Finding(invariant=invariant, name=name, id=id, subscription=subscription, detail=detail)
            )

    def rows(self) -> Iterator[tuple[str, int]]:
        counts, found = self.counts, self.violations
        for name in ("messages", "deliveries", "kills", "pauses", "restarts", "proxy_faults"):
            yield name.replace("_", " "), getattr(counts, name)
        for name in ("lost", "phantom", "corrupt", "duplicated_effects"):
            yield name.replace("_", " "), found[name]
        yield "order violations", found["order"] + found["overtaking"] + found["overlap"]
        yield "stuck", found["stuck"]


def write_report(report: Report, directory: Path, more: Iterable[tuple[str, int]] = ()) -> None:
    """Write `report.json` and `report.md`, which only their owner can read; `more` are further rows of the page."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(directory / "report.json", msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    _write(directory / "report.md", "\n".join(_page(report, more)).encode())


def _write(path: Path, content: bytes) -> None:
    """Replace the file at once: if there is no room for the new one, the old one stays."""
    new = path.with_suffix(path.suffix + ".new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _page(report: Report, more: Iterable[tuple[str, int]]) -> Iterator[str]:
    yield f"# {report.scenario or 'History'}: {report.verdict}\n"
    yield from (f"- {reason}" for reason in report.reasons)
    yield f"\n`{report.command}` · seed {report.seed} · store {report.store or '-'} · size {report.size or '-'}\n"
    yield from ("| what | number |", "|---|---|")
    yield from (f"| {name} | {number:,} |" for name, number in (*report.rows(), *more))
    broken = {name: number for name, number in report.violations.items() if number}
    yield "\n## Violations\n"
    yield from (f"- {name}: {number:,}" for name, number in broken.items()) if broken else ("None was found.",)
    yield from _table("\n## Findings\n", report.findings)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield f"\nVersions: {versions}. No finding does not prove that there is no bug: the table says what was tried.\n"


def _table(heading: str, findings: list[Finding]) -> Iterator[str]:
    if findings:
        yield from (heading, "| invariant | message | subscription | detail |", "|---|---|---|---|")
    for each in findings:
        cells: tuple[Any, ...] = (f"{each.invariant} {each.name}", each.id, each.subscription, each.detail)
        texts = ("" if cell is None else str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
        yield f"| {' | '.join(texts)} |"
