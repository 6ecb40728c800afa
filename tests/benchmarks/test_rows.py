"""A row of each kind works at its smallest size: what comes out is right, whatever the figures.

`make bench` checks the results of all rows; `BENCHMARK_ROWS=all` tests them all here.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.frame import Row, measure, missing
from benchmarks.rows import MEASURED, ROWS

pytestmark = pytest.mark.slow
TESTED = ROWS if os.environ.get("BENCHMARK_ROWS") == "all" else tuple(module.ROWS[0] for module in MEASURED)


@pytest.mark.parametrize("row", TESTED, ids=lambda row: row.name)
def test_a_row_gives_checked_figures_for_both_sides(row: Row, tmp_path: Path) -> None:
    if (side := missing(row)) is not None:
        pytest.skip(f"absent: {side.label} is not installed; `make setup` installs it")

    samples = measure(row, scale="smallest", rounds=1, directory=tmp_path)

    assert samples.ours[0] > 0
    assert samples.peer[0] > 0
