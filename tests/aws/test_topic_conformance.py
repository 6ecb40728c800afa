"""Topics on SNS and EventBridge keep the rules of topics that their traits promise."""

from __future__ import annotations

import pytest

from postroad.connections.aws import AwsConnection
from postroad.queues.sqs import SQSQueues
from postroad.testing.queues import QueueGround
from postroad.testing.topics import TopicConformance, TopicGround
from postroad.topics.eventbridge import EventBridgeTopics
from postroad.topics.sns import SNSTopics

pytestmark = pytest.mark.aws


class TestTopicsOnSNS(TopicConformance):
    @pytest.fixture
    def ground(self, aws: AwsConnection) -> TopicGround:
        queues = SQSQueues(aws)
        return TopicGround(topics=SNSTopics(aws, queues), queues=QueueGround(queues=queues))


class TestTopicsOnEventBridge(TopicConformance):
    @pytest.fixture
    def ground(self, aws: AwsConnection) -> TopicGround:
        queues = SQSQueues(aws)
        return TopicGround(topics=EventBridgeTopics(aws, queues), queues=QueueGround(queues=queues), fifo=False)
