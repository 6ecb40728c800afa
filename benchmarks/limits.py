"""A fixed limit in the place of a peer, for rows that a target bounds by a figure of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.frame import Load, Opened, Side


def limit(label: str, value: float) -> Side:
    """A side that always gives `value`."""

    @contextmanager
    def opened(_: Path, __: Load) -> Iterator[Opened]:
        yield Opened(lambda: value)

    return Side(label=label, open=opened)
