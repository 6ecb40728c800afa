"""Charts as inline SVG: the paths of bars and areas, and what a chart says in words.

`script.js` draws the same paths when numbers change, so both keep to the same grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from postroad.dashboard.texts import number, seconds

WIDTH: Final = 600
HEIGHT: Final = 96
SPARK_WIDTH: Final = 120
SPARK_HEIGHT: Final = 24


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of the overview."""

    kind: str
    """`sent`, `acked` or `backlog`."""
    title: str
    figure: int
    """The large number: the sum of the window, or what waits now."""
    values: Sequence[int]
    top: int
    path: str
    note: str
    """What the figure means."""

    @property
    def label(self) -> str:
        """What the chart says to those who do not see it."""
        return f"{self.title}: {number(self.figure)} {self.note}, {number(self.values[-1])} latest"


def flow(kind: str, title: str, values: Sequence[int], window: int) -> Chart:
    """Return the bars of what happened in each step."""
    values = values or [0]
    path, top = bars(values, WIDTH, HEIGHT)
    return Chart(kind, title, sum(values), values, top, path, f"in the last {span(window)}")


def level(kind: str, title: str, values: Sequence[int], now: int) -> Chart:
    """Return the area of what waited at the end of each step; the last value is what waits now."""
    values = [*values[:-1], now]
    path, top = area(values, WIDTH, HEIGHT)
    return Chart(kind, title, now, values, top, path, "now")


def span(window: int) -> str:
    """Return the name of a window, such as `hour` or `5 min`."""
    return {3_600: "hour", 86_400: "day"}.get(window, seconds(window))


def bars(values: Sequence[int], width: int, height: int) -> tuple[str, int]:
    """Return the path of one bar for each value, and the value that reaches the top."""
    top = _top(values)
    step = width / len(values)
    gap = min(2.0, step / 4)
    wide = _short(step - gap)
    found = [
        f"M{_short(at * step)} {height}V{_short(height - max(2.0, value / top * height))}h{wide}V{height}z"
        for at, value in enumerate(values)
        if value
    ]
    return "".join(found), top


def area(values: Sequence[int], width: int, height: int) -> tuple[str, int]:
    """Return the closed path under a line through the values, and the value that reaches the top."""
    top = _top(values)
    step = width / max(1, len(values) - 1)
    points = "L".join(
        f"{_short(at * step)} {_short(height - value / top * (height - 2))}" for at, value in enumerate(values)
    )
    return f"M0 {height}L{points}L{width} {height}z", top


def spark(values: Sequence[int]) -> str:
    """Return the path of a sparkline; empty if nothing happened."""
    return bars(values, SPARK_WIDTH, SPARK_HEIGHT)[0] if any(values) else ""


def _top(values: Sequence[int]) -> int:
    """Return the smallest round number that no value exceeds, so that the scale does not change with every value."""
    most = max(values, default=0)
    size = 1
    while True:
        for factor in (1, 2, 3, 5):
            if most <= factor * size:
                return factor * size
        size *= 10


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
