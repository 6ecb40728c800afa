"""Topics on SNS and EventBridge keep the rules of topics that their traits promise."""

from __future__ import annotations

import pytest

from postroad.connections.aws import AwsConnection
from postroad.queues.sqs import SQSQueues
from postroad.testing.queues import QueueFixture
from postroad.testing.topics import TopicConformance, TopicFixture
from postroad.topics.eventbridge import EventBridgeTopics
from postroad.topics.sns import SNSTopics

pytestmark = pytest.mark.aws


class TestTopicsOnSNS(TopicConformance):
    @pytest.fixture
    def ground(self, aws: AwsConnection) -> TopicFixture:
        queues = SQSQueues(aws)
        return TopicFixture(topics=SNSTopics(aws, queues), queues=QueueFixture(queues=queues))


class TestTopicsOnEventBridge(TopicConformance):
    @pytest.fixture
    def ground(self, aws: AwsConnection) -> TopicFixture:
        queues = SQSQueues(aws)
        return TopicFixture(topics=EventBridgeTopics(aws, queues), queues=QueueFixture(queues=queues), fifo=False)
