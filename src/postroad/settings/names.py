"""The name somebody probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, candidates: Iterable[str], *, letters: int = 2) -> str | None:
    """The candidate at most `letters` slips of the finger away from `name`, the closest first; None when none is."""
    close = [(slips, other) for other in candidates if (slips := _slips(name, other, letters)) is not None]
    return min(close)[1] if close else None


def _slips(name: str, other: str, most: int) -> int | None:
    """How many slips lie between the two; None when too many, or when every letter would be one."""
    if abs(len(name) - len(other)) > most:
        return None
    slips = _distance(name.casefold(), other.casefold())
    return slips if slips <= most and slips < len(name) else None


def _distance(one: str, other: str) -> int:
    """Letters to insert, drop, change or swap with their neighbour (optimal string alignment)."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, opposite in enumerate(other, 1):
            best = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != opposite))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == opposite:
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]
