"""Write the figures of the newest soak into docs/proof.md."""

from __future__ import annotations

from pathlib import Path

import msgspec

from postroad.testing.checker import Report

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "proof.md"
_HEADING = "## What the last soak tried\n"
_NEXT = "\n## "


def page() -> str:
    """Return the page with the section of the newest report in place of what stands there."""
    before, _, rest = PAGE.read_text().partition(_HEADING)
    return before + _HEADING + _section() + rest[rest.index(_NEXT) :]


def _section() -> str:
    report = sorted(ROOT.glob("proof/soak-*/report.json"))[-1]
    found = msgspec.json.decode(report.read_bytes(), type=Report)
    path = report.with_suffix(".md")
    numbers, _, _ = path.read_text().partition("## Violations")
    rows = [line for line in numbers.splitlines() if line.startswith("| ")]
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    return (
        f"\n`{found.command}` ended with the verdict `{found.verdict}`. These figures come from\n"
        f"`{path.relative_to(ROOT)}` (seed {found.seed}; {versions}). `make proof` writes them here.\n\n"
        + "".join(f"- {reason}\n" for reason in found.reasons)
        + "\n".join(["", *rows[:1], "|---|---:|", *rows[1:], ""])
    )


if __name__ == "__main__":
    PAGE.write_text(page())
