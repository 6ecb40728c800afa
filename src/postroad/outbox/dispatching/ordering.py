"""The rows of a claim in the order in which they may be published."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from postroad.outbox.dispatching.rows import ClaimedRow


def contiguous(rows: Iterable[tuple[int, ClaimedRow]]) -> tuple[list[ClaimedRow], list[ClaimedRow]]:
    """Rows with their places in their keys, sorted by key and place; then those behind a place that is missing."""
    ordered = sorted(rows, key=lambda placed: (placed[1].key, placed[0]))
    kept: list[ClaimedRow] = []
    cut_off: list[ClaimedRow] = []
    for _, group in groupby(ordered, key=lambda placed: placed[1].key):
        for expected, (place, row) in enumerate(group, 1):
            (kept if place == expected else cut_off).append(row)
    return kept, cut_off
