from __future__ import annotations

import pytest
from tests.memory import memory_queues, memory_topics

from postroad.errors import InvalidName
from postroad.testing.clock import FakeClock
from postroad.testing.queues import QueueFixture
from postroad.testing.topics import TopicConformance, TopicFixture


class TestMemoryTopic(TopicConformance):
    @pytest.fixture
    def ground(self) -> TopicFixture:
        clock = FakeClock()
        queues = memory_queues(clock)
        return TopicFixture(topics=memory_topics(queues), queues=QueueFixture(queues=queues, clock=clock))


@pytest.mark.parametrize(
    ("name", "fifo"), [("", False), ("a b", False), ("a" * 257, False), ("a", True), ("a.fifo", False)]
)
def test_a_topic_name_that_sns_refuses_is_refused(name: str, fifo: bool) -> None:
    topics = memory_topics(memory_queues(FakeClock()))

    with pytest.raises(InvalidName):
        topics.topic(name, fifo=fifo)

    assert topics.topics() == []


def test_topics_are_listed_by_name() -> None:
    topics = memory_topics(memory_queues(FakeClock()))

    topics.topic("b", fifo=False)
    topics.topic("a.fifo", fifo=True)

    assert topics.topics() == ["a.fifo", "b"]
