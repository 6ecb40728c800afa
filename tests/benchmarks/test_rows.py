"""Every row works at its smallest size: what comes out is right, whatever the figures."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from benchmarks import http_streams, jobs, pages, postgres, surfaces
from benchmarks.frame import Row, measure, missing
from benchmarks.rows import ROWS

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _nothing_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at once: what a process costs right after its start spoils only figures."""
    for module in (http_streams, jobs, pages, surfaces):
        monkeypatch.setattr(module, "_SETTLE_SECONDS", 0.0)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_gives_checked_figures_for_both_sides(
    row: Row, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if (side := missing(row)) is not None:
        pytest.skip(f"absent: {side.label} is not installed; `make setup` installs it")
    if postgres.version in (row.ours.needs, row.peer.needs):
        # To start a server of its own would take longer than most rows.
        dsn = request.getfixturevalue("postgres")
        monkeypatch.setattr(postgres, "shared", lambda directory: nullcontext(dsn))

    samples = measure(row, scale="smallest", rounds=1, directory=tmp_path)

    assert samples.ours[0] > 0
    assert samples.peer[0] > 0
