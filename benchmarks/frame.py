"""How a row is measured: both sides in one run, in turns, each round checked before its time counts."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from benchmarks.wal import count_commits

Scale = Literal["full", "quick", "smallest"]
Unit = Literal["per_second", "seconds", "ratio", "bytes"]
NOISY = 0.20
PROBE_MESSAGES = 40


class WrongResult(Exception):
    """A side lost, doubled or reordered something: its time does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much one round does: messages moved, and the backlog or number of groups they move among."""

    messages: int
    crowd: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """The load of a row at each scale; `smallest` is for checking that the row works at all."""

    full: Load
    quick: Load
    smallest: Load

    def at(self, scale: Scale) -> Load:
        """The load at this scale."""
        return {"full": self.full, "quick": self.quick, "smallest": self.smallest}[scale]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """What a side's own connection says about its commits."""

    journal: str
    synchronous: str
    commits_per_message: float | None = None

    def equals(self, other: Durability) -> bool:
        """Whether a commit means the same on both sides."""
        return (self.journal, self.synchronous) == (other.journal, other.synchronous)


@dataclass(frozen=True, slots=True)
class Opened:
    """A side that is ready: `run` does one round, checks it and returns its figure."""

    run: Callable[[], float]
    durability: Callable[[], Durability] | None = None


Open = Callable[[Path, Load], AbstractContextManager[Opened]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two things compared. `package` is the distribution whose version is shown; `needs` answers what else
    has to be installed, by its name and version, or None when it is not."""

    label: str
    open: Open
    package: str | None = None
    needs: Callable[[], str | None] | None = None

    def version(self) -> str | None:
        """The label with the versions behind it; None when something is not installed."""
        label = self.label
        if self.package is not None:
            try:
                label = f"{label} {metadata.version(self.package)}"
            except metadata.PackageNotFoundError:
                return None
        if self.needs is None:
            return label
        needed = self.needs()
        return None if needed is None else f"{label} on {needed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the results. A `target` of None makes it information."""

    name: str
    what: str
    unit: Unit
    target: float | None
    ours: Side
    peer: Side
    loads: Loads
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What the rounds of one row gave."""

    ours: tuple[float, ...]
    peer: tuple[float, ...]
    ours_durability: Durability | None = None
    peer_durability: Durability | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the rounds' ratios with its extremes; above 1 ours is better."""

    median: float
    low: float
    high: float


def measure(row: Row, *, scale: Scale, rounds: int, directory: Path) -> Samples:
    """Warm both sides up, then let them take turns (A B, B A, A B, …), and keep every figure."""
    load = row.loads.at(scale)
    with ExitStack() as stack:
        ours = _open(stack, row.ours, directory / "ours", load)
        peer = _open(stack, row.peer, directory / "peer", load)
        ours.run()
        peer.run()
        pairs = [_take_turns(ours, peer, ours_first=number % 2 == 0) for number in range(rounds)]
        samples = Samples(
            ours=tuple(mine for mine, _ in pairs),
            peer=tuple(theirs for _, theirs in pairs),
            ours_durability=ours.durability and ours.durability(),
            peer_durability=peer.durability and peer.durability(),
        )
    return replace(
        samples,
        ours_durability=_with_commits(samples.ours_durability, row.ours, directory / "ours-probe", load),
        peer_durability=_with_commits(samples.peer_durability, row.peer, directory / "peer-probe", load),
    )


def missing(row: Row) -> Side | None:
    """The side that cannot be measured here because something is not installed."""
    return next((side for side in (row.peer, row.ours) if side.version() is None), None)


def ratio(unit: Unit, ours: tuple[float, ...], peer: tuple[float, ...]) -> Ratio:
    """Compare round by round: ours over peer for rates, peer over ours where less is better."""
    ratios = [mine / theirs if unit == "per_second" else theirs / mine for mine, theirs in zip(ours, peer, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def noise(samples: tuple[float, ...]) -> float:
    """How far the rounds of one side lie apart, as a part of their median."""
    return (max(samples) - min(samples)) / statistics.median(samples)


def met(row: Row, samples: Samples, *, scale: Scale, found: Ratio) -> bool | None:
    """Whether the target holds; None where there is none or where the two sides are not comparable."""
    if row.target is None or unequal(samples) or row.loads.at(scale).crowd != row.loads.full.crowd:
        return None
    return found.median >= row.target


def unequal(samples: Samples) -> bool:
    """Whether a commit of one side promises something else than one of the other."""
    mine, theirs = samples.ours_durability, samples.peer_durability
    return mine is not None and theirs is not None and not mine.equals(theirs)


def _open(stack: ExitStack, side: Side, directory: Path, load: Load) -> Opened:
    directory.mkdir(parents=True)
    return stack.enter_context(side.open(directory, load))


def _take_turns(ours: Opened, peer: Opened, *, ours_first: bool) -> tuple[float, float]:
    if ours_first:
        mine = ours.run()
        return mine, peer.run()
    theirs = peer.run()
    return ours.run(), theirs


def _with_commits(durability: Durability | None, side: Side, directory: Path, load: Load) -> Durability | None:
    """Count commits from outside, in the log of a small run of its own that no checkpoint cuts short."""
    if durability is None:
        return None
    small = Load(messages=PROBE_MESSAGES, crowd=min(load.crowd, PROBE_MESSAGES))
    with ExitStack() as stack:
        opened = _open(stack, side, directory, small)
        before = count_commits(directory)
        opened.run()
        commits = count_commits(directory) - before
    return replace(durability, commits_per_message=commits / PROBE_MESSAGES if commits > 0 else None)
