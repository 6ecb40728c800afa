"""The housekeeping of a receiver: when its thread looks for something to do."""

from __future__ import annotations

import threading
import time

from postroad.clock import SYSTEM_CLOCK
from postroad.receiving.leases import Housekeeper


class Batches:
    """A chore that is due soon whenever a batch begins, and done before the housekeeping looks."""

    def __init__(self) -> None:
        self._beginner = threading.current_thread()
        self._at = time.monotonic() + 5.0
        self.looks = threading.Semaphore(0)

    def due(self) -> float | None:
        if threading.current_thread() is self._beginner:
            return self._at
        self.looks.release()
        return None

    def run(self) -> None:
        raise AssertionError("it is never due when the housekeeping looks")


def test_the_next_batch_wakes_no_thread_that_looks_soon_anyway() -> None:
    batches = Batches()
    housekeeper = Housekeeper(SYSTEM_CLOCK, [batches], lambda *_, **__: None)
    housekeeper.wake()
    assert batches.looks.acquire(timeout=10)

    housekeeper.wake()

    assert not batches.looks.acquire(timeout=0.2)


def test_what_is_due_earlier_than_the_housekeeping_looks_wakes_it() -> None:
    batches = Batches()
    housekeeper = Housekeeper(SYSTEM_CLOCK, [batches], lambda *_, **__: None)
    housekeeper.wake()
    assert batches.looks.acquire(timeout=10)
    batches._at -= 1.0

    housekeeper.wake()

    assert batches.looks.acquire(timeout=10)
