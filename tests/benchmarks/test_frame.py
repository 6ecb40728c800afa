"""The rules by which rows are measured and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks.frame import (
    Durability,
    Load,
    Loads,
    Open,
    Opened,
    Row,
    Scale,
    Side,
    WrongResult,
    measure,
    met,
    missing,
    ratio,
)
from benchmarks.workload import check_once

FULL = Durability(journal="wal", synchronous="FULL")
NORMAL = Durability(journal="wal", synchronous="NORMAL")


def steady(value: float, *, durability: Durability | None = None, seen: Callable[[], None] = lambda: None) -> Open:
    @contextmanager
    def opened(_: Path, __: Load) -> Iterator[Opened]:
        def run() -> float:
            seen()
            return value

        yield Opened(run, (lambda: durability) if durability else None)

    return opened


def a_row(ours: Open, peer: Open, *, target: float | None = 1.5, crowd: int = 0) -> Row:
    return Row(
        name="row",
        what="a row",
        unit="per_second",
        target=target,
        ours=Side(label="ours", open=ours),
        peer=Side(label="peer", open=peer),
        loads=Loads(full=Load(messages=4, crowd=crowd), quick=Load(messages=2), smallest=Load(messages=1)),
    )


def judge(row: Row, directory: Path, *, quick: bool = False) -> bool | None:
    scale: Scale = "quick" if quick else "full"
    samples = measure(row, scale=scale, rounds=3, directory=directory)
    return met(row, samples, scale=scale, found=ratio(row.unit, samples.ours, samples.peer))


def test_the_two_sides_take_turns_after_a_warm_up_each(tmp_path: Path) -> None:
    order: list[str] = []
    row = a_row(steady(2, seen=lambda: order.append("A")), steady(1, seen=lambda: order.append("B")))

    samples = measure(row, scale="full", rounds=4, directory=tmp_path)

    assert "".join(order) == "AB" + "ABBAABBA"
    assert samples.ours == (2, 2, 2, 2)


def test_a_ratio_is_the_median_of_the_rounds_and_keeps_its_extremes() -> None:
    found = ratio("per_second", (10, 20, 90), (10, 10, 10))

    assert (found.median, found.low, found.high) == (2, 1, 9)


@pytest.mark.parametrize("unit", ["seconds", "bytes", "ratio"])
def test_less_is_better_for_all_but_rates(unit: str) -> None:
    assert ratio(unit, (1.0,), (4.0,)).median == 4  # type: ignore[arg-type]  # one of the units, by parametrisation


def test_a_target_is_met_at_its_very_value(tmp_path: Path) -> None:
    assert judge(a_row(steady(3), steady(2)), tmp_path) is True


def test_a_lost_row_says_so(tmp_path: Path) -> None:
    assert judge(a_row(steady(2), steady(2)), tmp_path) is False


def test_a_row_without_target_is_information_and_never_judged(tmp_path: Path) -> None:
    assert judge(a_row(steady(3), steady(2), target=None), tmp_path) is None


def test_unequal_durability_is_never_judged(tmp_path: Path) -> None:
    row = a_row(steady(9, durability=NORMAL), steady(2, durability=FULL))

    assert judge(row, tmp_path) is None


def test_a_smaller_crowd_than_the_target_names_is_never_judged(tmp_path: Path) -> None:
    assert judge(a_row(steady(9), steady(2), crowd=1_000), tmp_path, quick=True) is None


def test_a_round_that_lost_or_doubled_something_does_not_count() -> None:
    with pytest.raises(WrongResult, match="1 lost, 1 doubled"):
        check_once(["a", "b"], ["a", "a"])


def test_a_peer_that_is_not_installed_is_missing() -> None:
    row = a_row(steady(1), steady(1))
    absent = Side(label="gone", package="no-such-package", open=steady(1))

    assert missing(row) is None
    assert absent.version() is None
