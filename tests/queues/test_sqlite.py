from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.engine.engine import Engine
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing.clock import FakeClock
from postroad.testing.queues import QueueConformance, QueueFixture


class TestSQLiteQueue(QueueConformance):
    @pytest.fixture
    def ground(self, tmp_path: Path) -> Iterator[QueueFixture]:
        clock = FakeClock()
        engines = [Engine(tmp_path / "postroad.db", clock=clock)]

        def reopen() -> SQLiteQueues:
            engines[-1].close()
            engines.append(Engine(tmp_path / "postroad.db", clock=clock))
            return SQLiteQueues(engines[-1])

        yield QueueFixture(queues=SQLiteQueues(engines[0]), clock=clock, reopen=reopen)
        engines[-1].close()
