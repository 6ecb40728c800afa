"""Hunt all mutants, or those that are named: `python -m postroad.testing.mutants [NAME]...`; exit 1 if one escapes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from postroad.testing.checker import Report
from postroad.testing.mutants import MUTANTS, Mutant, find_mutant

_LONGEST_SECONDS = 150.0
_TRIES = 3
"""A bug that needs a fault at the right moment may escape one run; another seed moves the faults."""


def hunt(mutant: Mutant, seed: int) -> Report:
    """Run the scenario that shows a mutant, in processes of its own, and return the report."""
    with tempfile.TemporaryDirectory(prefix="postroad-mutant-") as folder:
        report = Path(folder) / "report"
        words = ["verify", "run", "--mutant", mutant.name, "--seed", str(seed), "--report", str(report), "--json"]
        try:
            run = [sys.executable, "-m", "postroad", *words]
            done = subprocess.run(run, capture_output=True, check=False, timeout=_LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            # Its processes end with it.
            return Report(reasons=["the run did not end"])
        if not (report / "report.json").exists():
            raise RuntimeError(f"{mutant.name}: {done.stderr.decode(errors='replace')[-2_000:]}")
        return msgspec.json.decode((report / "report.json").read_bytes(), type=Report)


def is_caught(mutant: Mutant) -> bool:
    """Return whether the checker finds the invariant that a mutant breaks, in one of a few runs."""
    for seed in range(1, _TRIES + 1):
        report = hunt(mutant, seed)
        if report.verdict == "violated" and any(each.invariant == mutant.invariant for each in report.findings):
            return True
    return False


def main(names: Sequence[str]) -> int:
    hunted = [find_mutant(name) for name in names] or MUTANTS
    escaped: list[str] = []
    for mutant in hunted:
        caught = is_caught(mutant)
        if not caught:
            escaped.append(f"{mutant.name} ({mutant.invariant})")
        print(f"{'caught' if caught else 'ESCAPED'} {mutant.name}: {mutant.bug} ({mutant.invariant})", flush=True)
    print(f"{len(hunted) - len(escaped)} of {len(hunted)} mutants were caught")
    if escaped:
        print(f"escaped: {', '.join(escaped)}")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
