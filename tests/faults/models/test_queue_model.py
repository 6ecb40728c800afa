"""Queues beside a model of their rules: the embedded engine in memory and on a file keep all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.faults.models.machines import check_finds, check_model
from tests.faults.models.queue_machine import queue_machine
from tests.memory import memory_queues

from postroad.engine.engine import Engine
from postroad.queues.port import QueueStore
from postroad.queues.sqlite import SQLiteQueues, claims
from postroad.testing.clock import FakeClock

pytestmark = pytest.mark.slow


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


@pytest.mark.long
def test_queues_agree_with_their_rules() -> None:
    check_model(queue_machine(memory, sqlite), steps=40)


def test_a_group_that_is_not_locked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    unlocked = claims._FREE_GROUPS.replace("visible_us <= ?", "? IS NOT NULL")
    monkeypatch.setattr(claims, "_FREE_GROUPS", unlocked)

    check_finds(queue_machine(memory), steps=40)
