"""The plan: one seed fixes which faults happen when. Pure, so that it can be printed and repeated."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

import msgspec

from postroad.testing.verify.scenario import SCENARIOS, find_scenario

SizeName = Literal["quick", "gate", "soak"]
AT_ONCE = 2
"""How many scenarios run side by side: each waits for leases to expire most of the time."""
_QUIET = 0.25
_QUIET_PERIODS = 3
_LONGEST_PAUSE = 5.0
_SHORTEST_PAUSE = 0.1


class Size(msgspec.Struct, frozen=True):
    """How much one run does in all its scenarios."""

    messages: int
    kills: int
    seconds: float
    server_restarts: int = 0
    proxy_faults: int = 0


SIZES: dict[SizeName, Size] = {
    "quick": Size(messages=2_000, kills=12, seconds=20.0),
    "gate": Size(messages=20_000, kills=100, seconds=160.0, server_restarts=4, proxy_faults=500),
    "soak": Size(messages=2_000_000, kills=10_000, seconds=28_800.0, server_restarts=500, proxy_faults=50_000),
}


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that the supervisor does, `at` seconds after the start."""

    at: float
    do: Literal["kill", "pause", "restart", "quiet", "visit", "fill", "server"]
    who: Literal["any", "holder"] = "any"
    """A process at work, or one that holds a delivery."""
    pick: float = 0.0
    """Which of them, from 0 to 1."""
    seconds: float = 0.0
    """How long a pause, a quiet period or a full disk lasts."""


class Plan(msgspec.Struct, frozen=True):
    """What one scenario goes through."""

    scenario: str
    seed: int
    messages: int
    seconds: float
    kills: int
    proxy_faults: int
    actions: tuple[Action, ...]


def share(size: Size, weights: Sequence[int], index: int) -> Size:
    """Return what one of several scenarios gets of a size: messages by its weight, faults as many as the others."""
    scenarios = len(weights)

    def part(whole: int) -> int:
        return whole // scenarios + (index < whole % scenarios)

    before, after = (size.messages * sum(weights[:end]) // sum(weights) for end in (index, index + 1))
    return Size(
        messages=max(1, after - before),
        kills=part(size.kills),
        seconds=size.seconds * min(AT_ONCE, scenarios) / scenarios,
        server_restarts=part(size.server_restarts),
        proxy_faults=part(size.proxy_faults),
    )


def make_plan(seed: int, scenario: str, size: Size, *, store: str = "sqlite") -> Plan:
    """Return the plan of one scenario: the same for the same arguments."""
    random = Random(f"{seed} {scenario} {store}")  # a repeatable schedule, not a secret
    return Plan(
        scenario=scenario,
        seed=seed,
        messages=size.messages,
        seconds=size.seconds,
        kills=size.kills,
        proxy_faults=size.proxy_faults if size.kills and store == "aws" else 0,
        actions=tuple(_schedule(random, size, store)) if size.kills else (),
    )


def _schedule(random: Random, size: Size, store: str) -> list[Action]:
    holders = -(-size.kills // 2)
    faults = [Action(0, "kill", "holder" if n < holders else "any", _pick(random)) for n in range(size.kills)]
    faults += [Action(0, "pause", "any", _pick(random), _pause(random, size)) for _ in range(max(1, size.kills // 3))]
    faults += [Action(0, "restart", "any", _pick(random)) for _ in range(max(1, size.kills // 6))]
    if store == "sqlite":
        faults += [Action(0, "visit", pick=_pick(random)) for _ in range(max(3, size.kills // 4))]
        faults += [Action(0, "fill", seconds=_pause(random, size)) for _ in range(max(1, size.kills // 12))]
    if store == "postgres":
        faults += [Action(0, "server") for _ in range(size.server_restarts)]
    random.shuffle(faults)
    return _timed(random, faults, size.seconds)


def _timed(random: Random, faults: list[Action], seconds: float) -> list[Action]:
    """Spread the faults over three quarters of the time; the quiet quarter lies between them."""
    periods = min(_QUIET_PERIODS, len(faults))
    quiet = seconds * _QUIET / periods
    loud = seconds * (1 - _QUIET)
    times = sorted(random.uniform(0.02, 0.98) * loud for _ in faults)
    timed: list[Action] = []
    for index, (at, fault) in enumerate(zip(times, faults, strict=True)):
        passed = index * periods // len(faults)
        timed.append(msgspec.structs.replace(fault, at=round(at + passed * quiet, 3)))
        if (index + 1) * periods // len(faults) > passed:
            timed.append(Action(round(at + passed * quiet, 3), "quiet", seconds=round(quiet, 3)))
    return timed


def _pick(random: Random) -> float:
    return round(random.random(), 3)


def _pause(random: Random, size: Size) -> float:
    """Return how long a pause lasts: mostly short, seldom as long as allowed."""
    longest = max(_SHORTEST_PAUSE, min(_LONGEST_PAUSE, size.seconds / 4))
    return round(float(_SHORTEST_PAUSE * (longest / _SHORTEST_PAUSE) ** random.random()), 3)


def plans(seed: int, scenarios: tuple[str, ...], size: Size, *, store: str = "sqlite") -> list[Plan]:
    """Return the plans of several scenarios, which share the size between them."""
    order = {name: index for index, name in enumerate(SCENARIOS)}
    chosen = sorted(scenarios, key=lambda name: order[name])
    weights = [find_scenario(name).weight for name in chosen]
    return [make_plan(seed, name, share(size, weights, index), store=store) for index, name in enumerate(chosen)]
