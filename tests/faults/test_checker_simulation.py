"""The checker believes a simulated system that keeps its promises, and finds whatever is changed in its history."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.forging import write
from tests.faults.simulation import System

from postroad.testing.checker import Report, check

pytestmark = pytest.mark.slow

SEEDS = range(40)
FEW_SEEDS = range(10)
Lines = dict[str, list[dict[str, Any]]]


def checked(directory: Path, run: dict[str, Any], lines: Lines) -> Report:
    write(directory, run, lines)  # type: ignore[arg-type]  # a list of dicts is one of dicts and text
    return check(directory)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_correct_system_is_never_blamed_whatever_is_killed_and_paused(ordered: bool, tmp_path: Path) -> None:
    kills = redeliveries = dead = 0
    for seed in SEEDS:
        system = System(seed, ordered=ordered).play()

        report = checked(tmp_path / str(seed), system.run, system.lines)

        assert report.findings == [], f"seed {seed}"
        assert report.verdict == "ok", f"seed {seed}: {report.reasons}"
        kills += report.counts.kills
        redeliveries += report.counts.redeliveries
        dead += report.counts.dead_letters
    assert min(kills, redeliveries, dead) > len(SEEDS)


def test_without_faults_nothing_is_delivered_twice(tmp_path: Path) -> None:
    for seed in FEW_SEEDS:
        system = System(seed, faults=False).play()

        report = checked(tmp_path / str(seed), system.run, system.lines)

        assert (report.verdict, report.counts.redeliveries) == ("ok", 0), f"seed {seed}"


def test_a_system_that_forgets_the_order_of_keys_is_found(tmp_path: Path) -> None:
    for seed in FEW_SEEDS:
        system = System(seed, ordered=False).play()

        report = checked(tmp_path / str(seed), {**system.run, "ordered": True}, system.lines)

        assert {each.invariant for each in report.findings} <= {"I9", "I10", "I11"}, f"seed {seed}"
        assert min(report.violations[name] for name in ("order", "overtaking")) > 0, f"seed {seed}"


@pytest.fixture(scope="module")
def systems() -> list[System]:
    """Return systems that have run, with something of every kind in their histories."""
    return [System(seed).play() for seed in FEW_SEEDS]


def settled(lines: Lines, pick: random.Random) -> tuple[str, str]:
    """Return subscription and id of a message that was handled, acked and surely published."""
    published = {each["id"] for each in every(lines, "publish") if each["outcome"] == "ok"}
    acks = [each for each in every(lines, "ack") if each["outcome"] == "ok" and each["id"] in published]
    chosen = pick.choice(acks)
    return chosen["sub"], chosen["id"]


def every(lines: Lines, *ops: str) -> list[dict[str, Any]]:
    return [each for its in lines.values() for each in its if each["op"] in ops]


def remove(lines: Lines, unwanted: Callable[[dict[str, Any]], bool]) -> None:
    for its in lines.values():
        its[:] = [each for each in its if not unwanted(each)]


def of(sub: str, id: str, *ops: str) -> Callable[[dict[str, Any]], bool]:
    return lambda line: line["op"] in ops and line["id"] == id and line.get("sub", sub) == sub


def lose(lines: Lines, pick: random.Random) -> None:
    remove(lines, of(*settled(lines, pick), "handled", "ack", "effect", "dead"))


def lose_a_copy(lines: Lines, pick: random.Random) -> None:
    remove(lines, of(*settled(lines, pick), "receive", "handled", "ack", "release", "effect", "dead"))


def invent(lines: Lines, pick: random.Random) -> None:
    remove(lines, of(*settled(lines, pick), "publish"))


def corrupt(lines: Lines, pick: random.Random) -> None:
    pick.choice(every(lines, "receive"))["sha"] = "other"


def repeat_an_effect(lines: Lines, pick: random.Random) -> None:
    lines["supervisor"].append(pick.choice(every(lines, "effect")))


def lose_an_effect(lines: Lines, pick: random.Random) -> None:
    remove(lines, of(*settled(lines, pick), "effect"))


def count_wrongly(lines: Lines, pick: random.Random) -> None:
    pick.choice(every(lines, "receive"))["receive_count"] += 1_000


def bury_twice(lines: Lines, pick: random.Random) -> None:
    sub, id = settled(lines, pick)
    lines["supervisor"].append({"t": 1e6, "p": "supervisor", "op": "dead", "sub": sub, "id": id})


def leave(lines: Lines, pick: random.Random) -> None:
    sub, id = settled(lines, pick)
    lines["supervisor"].append({"t": 1e6, "p": "supervisor", "op": "left", "sub": sub, "id": id})


def deliver_early(lines: Lines, pick: random.Random) -> None:
    sub, id = settled(lines, pick)
    last = max(filter(of(sub, id, "receive"), every(lines, "receive")), key=lambda each: each["receive_count"])
    again = dict(last, t=last["t"] + 0.00001, receive_count=last["receive_count"] + 1, receipt="again", p="other")
    lines["other"] = [again]


def ack_late(lines: Lines, pick: random.Random) -> None:
    deliver_early(lines, pick)
    again = lines["other"][0]
    lines["other"].append({"t": again["t"] + 1, "p": "x", "op": "ack", "sub": again["sub"], "id": again["id"]})
    lines["other"][-1]["receipt"] = f"{again['id']}#{again['receive_count'] - 1}"


def number_backwards(lines: Lines, pick: random.Random) -> None:
    receives = [each for each in every(lines, "receive") if each["n"] > 0]
    pick.choice(receives)["sequence"] = "0"


PLANTED: dict[str, Callable[[Lines, random.Random], None]] = {
    "I1": lose,
    "I7": lose_a_copy,
    "I2": invent,
    "I3": corrupt,
    "I5": repeat_an_effect,
    "I5 (missing)": lose_an_effect,
    "I12": ack_late,
    "I13": deliver_early,
    "I14": count_wrongly,
    "I15": bury_twice,
    "I17": leave,
    "I19": number_backwards,
}


@pytest.mark.parametrize("invariant", PLANTED)
def test_what_is_changed_in_a_history_is_found(invariant: str, systems: list[System], tmp_path: Path) -> None:
    for system in systems:
        lines = copy.deepcopy(system.lines)
        PLANTED[invariant](lines, random.Random(system.seed))

        report = checked(tmp_path / str(system.seed), system.run, lines)

        assert invariant.split()[0] in {each.invariant for each in report.findings}, f"seed {system.seed}"
        assert report.verdict == "violated", f"seed {system.seed}"
