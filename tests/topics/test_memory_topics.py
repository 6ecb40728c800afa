from __future__ import annotations

import pytest

from postroad.errors import InvalidName
from postroad.queues.memory import MemoryQueues
from postroad.testing.clock import FakeClock
from postroad.testing.queues import QueueGround
from postroad.testing.topics import TopicConformance, TopicGround
from postroad.topics.memory import MemoryTopics


class TestMemoryTopic(TopicConformance):
    @pytest.fixture
    def ground(self) -> TopicGround:
        clock = FakeClock()
        queues = MemoryQueues(clock)
        return TopicGround(topics=MemoryTopics(queues), queues=QueueGround(queues=queues, clock=clock))


@pytest.mark.parametrize(
    ("name", "fifo"), [("", False), ("a b", False), ("a" * 257, False), ("a", True), ("a.fifo", False)]
)
def test_a_topic_name_that_sns_refuses_is_refused(name: str, fifo: bool) -> None:
    topics = MemoryTopics(MemoryQueues(FakeClock()))

    with pytest.raises(InvalidName):
        topics.topic(name, fifo=fifo)

    assert topics.topics() == []


def test_topics_are_listed_by_name() -> None:
    topics = MemoryTopics(MemoryQueues(FakeClock()))

    topics.topic("b", fifo=False)
    topics.topic("a.fifo", fifo=True)

    assert topics.topics() == ["a.fifo", "b"]
