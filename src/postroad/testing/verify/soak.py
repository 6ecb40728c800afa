"""`make soak`: runs of `postroad verify` for hours, scenario by scenario, and one report of them all."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import msgspec

from postroad.errors import Unavailable
from postroad.testing.checker import Report, write_report
from postroad.testing.verify.plan import SIZES, Size, plans
from postroad.testing.verify.run import Options, merge, run
from postroad.testing.verify.scenario import StoreName, scenarios_on

_STORES: tuple[StoreName, ...] = ("sqlite", "postgres", "aws")
_ROUND_SECONDS = 120.0


def rounds(seed: int) -> Iterator[tuple[int, str, StoreName]]:
    """Yield seed, scenario and store of each round, for ever: all scenarios of a store, then those of the next."""
    every: list[tuple[str, StoreName]] = [(scenario, store) for store in _STORES for scenario in scenarios_on(store)]
    for number in count():
        scenario, store = every[number % len(every)]
        yield seed + number, scenario, store


def round_size(hours: float) -> Size:
    """Return what one round does of the size `soak`, so that all rounds of a night do all of it."""
    part = _ROUND_SECONDS / (hours * 3_600)
    whole = SIZES["soak"]
    return Size(
        messages=max(1, round(whole.messages * part)),
        kills=max(1, round(whole.kills * part)),
        seconds=_ROUND_SECONDS,
        server_restarts=max(1, round(whole.server_restarts * part)),
        proxy_faults=max(1, round(whole.proxy_faults * part)),
    )


def soak(directory: Path, *, hours: float, seed: int) -> Report:
    """Run rounds until the time is over; keep the history of a round that is not ok, and write the report each time."""
    deadline = time.monotonic() + hours * 3_600
    reports: list[Report] = []
    whole = Report(scenario="all", reasons=["nothing ran"])
    missing: set[str] = set()
    for number, scenario, store in rounds(seed):
        if time.monotonic() >= deadline:
            break
        if store in missing:
            continue
        try:
            report = _round(directory, scenario, store, number, round_size(hours))
        except Unavailable as error:
            print(f"{store} is left out: {error}", file=sys.stderr)
            missing.add(store)
            continue
        print(f"{scenario} on {store}, seed {number}: {report.verdict}", file=sys.stderr, flush=True)
        reports.append(report)
        whole = merge(reports, command=f"make soak HOURS={hours:g}")
        write_report(msgspec.structs.replace(whole, seed=seed, size="soak", store="all"), directory)
        if "interrupted" in report.reasons:
            break
    return whole


def _round(directory: Path, scenario: str, store: StoreName, seed: int, size: Size) -> Report:
    """Run one scenario; remove its directory if all is well."""
    where = directory / f"{seed}-{scenario}-{store}"
    options = Options(
        plans=tuple(plans(seed, (scenario,), size, store=store)),
        store=store,
        size="soak",
        command=f"postroad verify run --scenario {scenario} --store {store} --size soak --messages {size.messages} "
        f"--kills {size.kills} --seconds {size.seconds:g} --seed {seed}",
        report=where,
        work=where / "work",
    )
    report = run(options, lambda text: None)
    shutil.rmtree(where / "work" if report.verdict != "ok" else where, ignore_errors=True)
    return report


def main(hours: float) -> int:
    """Soak for so many hours and return the exit code."""
    today = datetime.now(UTC)
    directory = Path("proof") / f"soak-{today:%Y-%m-%d}"
    report = soak(directory, hours=hours, seed=int(today.timestamp()))
    print(f"{report.verdict}: {directory / 'report.md'}")
    return 0 if report.verdict == "ok" else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 8.0))
