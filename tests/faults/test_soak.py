"""`make soak`: scenarios and stores take turns, a night does all of its size, and one report tells of everything."""

from __future__ import annotations

import errno
import os
from collections import Counter
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from postroad.testing.checker import Report
from postroad.testing.verify import soak as soaking
from postroad.testing.verify.plan import SIZES
from postroad.testing.verify.run import Options
from postroad.testing.verify.scenario import SCENARIOS, find_scenario
from postroad.testing.verify.soak import Soak, round_size, rounds, soak

NIGHT = 480


def test_every_scenario_runs_on_each_of_its_stores_before_one_runs_again() -> None:
    every = {(scenario, store) for scenario in SCENARIOS for store in find_scenario(scenario).stores}

    turns = [(scenario, store) for _, scenario, store in islice(rounds(7), len(every))]

    assert set(turns) == every


def test_no_two_rounds_have_the_same_seed() -> None:
    seeds = [seed for seed, _, _ in islice(rounds(7), NIGHT)]

    assert len(set(seeds)) == NIGHT


def test_the_rounds_of_a_night_do_all_of_the_size_soak() -> None:
    done: Counter[str] = Counter()
    for _, scenario, store in islice(rounds(7), NIGHT):
        done.update(msgspec.to_builtins(round_size(scenario, store)))

    asked = msgspec.to_builtins(SIZES["soak"])
    assert {name: done[name] / asked[name] for name in asked} == pytest.approx(dict.fromkeys(asked, 1.0), rel=0.03)


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        ({}, "ok", None),
        ({"lost": 2}, "violated", "power cuts lost 2 messages or files"),
        ({"escaped": ["peek-counts"]}, "violated", "mutant peek-counts escaped"),
    ],
)
def test_the_report_tells_of_power_cuts_and_mutants_too(
    change: dict[str, object], verdict: str, reason: str | None, tmp_path: Path
) -> None:
    done = Soak(directory=tmp_path, reports=[Report(verdict="ok", store="sqlite")] * 2, images=500, hunted=3)
    for name, value in change.items():
        setattr(done, name, value)

    done.write("make soak HOURS=1", 7)

    report = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report)
    page = (tmp_path / "report.md").read_text()
    assert (report.verdict, report.command, report.seed) == (verdict, "make soak HOURS=1", 7)
    assert report.reasons == ([reason] if reason else [])
    assert done.is_ok == (verdict == "ok")
    assert "| rounds | 2 |" in page
    assert "| power-loss images | 500 |" in page
    assert f"| mutants caught | {3 - len(done.escaped)} |" in page


@pytest.mark.parametrize("noticed_by", ["the supervisor", "a process"])
def test_on_a_full_disk_it_stops_with_the_report_so_far(
    noticed_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.strerror(errno.ENOSPC)
    outcomes = iter([Report(verdict="ok", store="sqlite"), Report(verdict="inconclusive", reasons=[f"died: {full}"])])
    played: list[str] = []

    def run(options: Options, progress: object) -> Report:
        played.append(options.plans[0].scenario)
        options.report.mkdir()
        if noticed_by == "the supervisor" and len(played) == 2:
            raise OSError(errno.ENOSPC, full)
        return next(outcomes)

    monkeypatch.setattr(soaking, "run", run)
    monkeypatch.setattr(Soak, "hunt", lambda self: None)
    done = soak(tmp_path, hours=8, seed=7)

    report = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report)
    assert len(played) == 2
    assert not done.is_ok
    assert "stopped: the disk is full" in report.reasons
    assert report.verdict == "inconclusive"
