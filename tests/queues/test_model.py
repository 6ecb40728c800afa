from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from tests.memory import memory_queues

from postroad.engine.engine import Engine
from postroad.queues.port import QueueStore
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing.clock import FakeClock
from postroad.testing.queue_machine import queue_machine


@contextmanager
def memory(clock: FakeClock) -> Iterator[QueueStore]:
    yield memory_queues(clock)


@contextmanager
def sqlite(clock: FakeClock) -> Iterator[QueueStore]:
    with tempfile.TemporaryDirectory() as directory:
        engine = Engine(Path(directory) / "postroad.db", clock=clock)
        try:
            yield SQLiteQueues(engine)
        finally:
            engine.close()


# Each example drives every store beside its own model, through up to forty steps.
TestQueuesAgreeWithTheRules = pytest.mark.slow(pytest.mark.timeout(300)(queue_machine(memory, sqlite).TestCase))
TestQueuesAgreeWithTheRules.settings = settings(
    max_examples=200, stateful_step_count=40, derandomize=True, database=None
)
