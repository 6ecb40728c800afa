"""`make soak`: hours of `postroad verify`, power cuts and mutants in turns, and one report of them all."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from postroad.errors import Unavailable
from postroad.testing.checker import Report, write_report
from postroad.testing.mutants import MUTANTS
from postroad.testing.mutants.__main__ import is_caught
from postroad.testing.powerloss.trial import verify_power_loss
from postroad.testing.verify.plan import SIZES, Size, make_plan
from postroad.testing.verify.run import Options, merge, run
from postroad.testing.verify.scenario import StoreName, find_scenario, scenarios_on

_ROUND_SECONDS = 60.0
_WEIGHTS: dict[StoreName, float] = {"sqlite": 1.0, "postgres": 0.25, "aws": 0.1}
"""How many messages a scenario moves on a store, beside those that it moves on SQLite in the same time."""
_ROUNDS: tuple[tuple[str, StoreName], ...] = tuple(
    (scenario, store) for store in _WEIGHTS for scenario in scenarios_on(store)
)
_PART = _ROUND_SECONDS / SIZES["soak"].seconds
_IMAGES = round(100_000 * _PART * len(_ROUNDS))
"""Power cuts after all scenarios ran on all stores: 100,000 in a night."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


def round_size(scenario: str, store: StoreName) -> Size:
    """Return what one round does of the size `soak`, so that all rounds of a night do all of it."""
    whole = SIZES["soak"]
    share = _weight(scenario, store) / sum(_weight(*each) for each in _ROUNDS)

    def on(name: StoreName, faults: int) -> int:
        rounds = sum(each == name for _, each in _ROUNDS)
        return round(faults * _PART * len(_ROUNDS) / rounds) if store == name else 0

    return Size(
        messages=max(1, round(whole.messages * _PART * len(_ROUNDS) * share)),
        kills=round(whole.kills * _PART),
        seconds=_ROUND_SECONDS,
        server_restarts=on("postgres", whole.server_restarts),
        proxy_faults=on("aws", whole.proxy_faults),
    )


def _weight(scenario: str, store: StoreName) -> float:
    return find_scenario(scenario).weight * _WEIGHTS[store]


@dataclass(slots=True, kw_only=True)
class Soak:
    """What a soak has done so far.

    Attributes:
        directory: Where the report is, and the history of each round that was not ok.
        reports: The reports of the rounds.
        images: Power cuts that were tried.
        lost: Messages that these lost, and files that they left unusable.
        missing: The stores that cannot be had here.
        escaped: The mutants that were not caught.
        hunted: How many mutants were hunted.
        full: Why the soak cannot go on, if the disk is full.
    """

    directory: Path
    reports: list[Report] = field(default_factory=list)
    images: int = 0
    lost: int = 0
    missing: set[StoreName] = field(default_factory=set)
    escaped: list[str] = field(default_factory=list)
    hunted: int = 0
    full: str | None = None

    @property
    def is_ok(self) -> bool:
        """Whether nothing was violated, nothing escaped and the disk had room for all of it."""
        verdicts = {report.verdict for report in self.reports}
        return verdicts == {"ok"} and not self.lost and not self.escaped and self.full is None

    @property
    def must_stop(self) -> bool:
        """Whether the disk is full, or the last round was interrupted."""
        return self.full is not None or (bool(self.reports) and "interrupted" in self.reports[-1].reasons)

    def break_things(self, seed: int, scenario: str, store: StoreName) -> None:
        """Run one scenario; keep its history if it is not ok, and leave out a store that cannot be had here."""
        if store in self.missing:
            return
        where = self.directory / f"{seed}-{scenario}-{store}"
        plan = make_plan(seed, scenario, round_size(scenario, store), store=store)
        command = (
            f"postroad verify run --scenario {scenario} --store {store} --size soak --messages {plan.messages} "
            f"--kills {plan.kills} --seconds {plan.seconds:g} --seed {seed}"
        )
        # A short path, because sockets are in it.
        with TemporaryDirectory(prefix="postroad-") as work:
            options = Options(plans=(plan,), store=store, size="soak", command=command, report=where, work=Path(work))
            try:
                report = run(options, lambda text: None)
            except Unavailable as error:
                _say(f"{store} is left out: {error}")
                self.missing.add(store)
                return
        if report.verdict == "ok":
            shutil.rmtree(where)
        self.reports.append(report)
        if any(os.strerror(number) in reason for number in _FULL for reason in report.reasons):
            self.full = "the disk is full"
        _say(f"{scenario} on {store}, seed {seed}: {report.verdict}")

    def hunt(self) -> None:
        """Hunt the next mutant, if there is one that was not hunted yet."""
        if self.hunted < len(MUTANTS):
            mutant = MUTANTS[self.hunted]
            self.hunted += 1
            caught = is_caught(mutant)
            if not caught:
                self.escaped.append(mutant.name)
            _say(f"{mutant.name}: {'caught' if caught else 'ESCAPED'}")

    def cut_power(self, seed: int) -> None:
        found = verify_power_loss(_IMAGES, seed=seed)
        self.images += found.images
        self.lost += found.lost + found.corrupt
        _say(f"{found.images} power cuts, seed {seed}: {found.verdict}")

    def write(self, command: str, seed: int) -> None:
        whole = merge(self.reports, command=command)
        whole.reasons += [f"mutant {name} escaped" for name in self.escaped]
        if self.lost:
            whole.reasons.append(f"power cuts lost {self.lost} messages or files")
        if self.full is not None:
            whole.reasons.append(f"stopped: {self.full}")
        whole.seed, whole.size, whole.store = seed, "soak", ", ".join(sorted({each.store for each in self.reports}))
        if whole.verdict != "violated" and (self.lost or self.escaped):
            whole.verdict = "violated"
        elif whole.verdict == "ok" and self.full is not None:
            whole.verdict = "inconclusive"
        rows = {
            "rounds": len(self.reports),
            "minutes of faults and draining": round(sum(each.seconds for each in self.reports) / 60),
            "power-loss images": self.images,
            "lost to power cuts": self.lost,
            "mutants hunted": self.hunted,
            "mutants caught": self.hunted - len(self.escaped),
        }
        write_report(whole, self.directory, rows.items())


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


def rounds(seed: int) -> Iterator[tuple[int, str, StoreName]]:
    """Yield seed, scenario and store of each round, for ever: all scenarios of a store, then those of the next."""
    for number in count():
        scenario, store = _ROUNDS[number % len(_ROUNDS)]
        yield seed + number, scenario, store


def soak(directory: Path, *, hours: float, seed: int) -> Soak:
    """Break things until the time is over, and go on after a violation; the report is written after each round.

    On a full disk it stops; then the report is the one after the round before, if there is no room for a newer one.
    """
    deadline, command = time.monotonic() + hours * 3_600, f"make soak HOURS={hours:g}"
    done = Soak(directory=directory)
    try:
        for number, scenario, store in rounds(seed):
            if time.monotonic() >= deadline or done.must_stop:
                break
            done.break_things(number, scenario, store)
            done.hunt()
            if (scenario, store) == _ROUNDS[-1]:
                done.cut_power(number)
            if done.reports:
                done.write(command, seed)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        done.full = "the disk is full"
    if done.full is not None and done.reports:
        with suppress(OSError):
            done.write(command, seed)
    return done


def main(hours: float) -> int:
    today = datetime.now(UTC)
    directory = Path("proof").absolute() / f"soak-{today:%Y-%m-%d}"
    done = soak(directory, hours=hours, seed=int(today.timestamp()))
    verdict = "ok" if done.is_ok else f"stopped, {done.full}" if done.full else "not ok"
    print(f"{verdict}: {directory / 'report.md'}")
    return 0 if done.is_ok else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 8.0))
