from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.engine.engine import Engine
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing.clock import FakeClock
from postroad.testing.queues import QueueFixture
from postroad.testing.topics import TopicConformance, TopicFixture
from postroad.topics.sqlite import SQLiteTopics


class TestSQLiteTopic(TopicConformance):
    @pytest.fixture
    def ground(self, tmp_path: Path) -> Iterator[TopicFixture]:
        clock = FakeClock()
        engine = Engine(tmp_path / "postroad.db", clock=clock)
        queues = SQLiteQueues(engine)
        yield TopicFixture(topics=SQLiteTopics(engine, queues), queues=QueueFixture(queues=queues, clock=clock))
        engine.close()
