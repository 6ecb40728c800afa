"""Rows about the proof itself: whether it stays quick when it is asked for more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from postroad.testing.powerloss.recording import Step
from postroad.testing.powerloss.trial import inspect, record

SEED = 8


def _power_cuts(images: Callable[[Load], int]) -> Open:
    """A side that opens images of power cuts of one recording."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        steps = record(SEED)
        yield Opened(lambda: _rate(steps, images(load)))

    return opened


def _rate(steps: list[Step], images: int) -> float:
    """Images per second, each built, opened, checked for damage and searched for what was acknowledged."""
    started = time.perf_counter()
    lost, corrupt = inspect(steps, images, SEED)
    seconds = time.perf_counter() - started
    if any(lost) or corrupt:
        raise WrongResult(f"{sum(lost)} lost and {corrupt} corrupt in {images} images")
    return images / seconds


ROWS = [
    Row(
        name="powerloss-images",
        unit="per_second",
        target=0.8,
        loads=Loads(
            full=Load(messages=5_000, crowd=5_000),
            quick=Load(messages=500, crowd=500),
            smallest=Load(messages=20, crowd=20),
        ),
        what="images of power cuts per second when 5,000 are asked for against 500",
        ours=Side(label="5,000 images", open=_power_cuts(lambda load: load.crowd)),
        peer=Side(label="500 images", open=_power_cuts(lambda load: load.crowd // 10)),
    ),
]
