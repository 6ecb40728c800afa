"""Topics: each subscribed queue gets its own copy, on memory, on the embedded engine, on SNS and EventBridge."""

from typing import TYPE_CHECKING

from postroad.lazy import lazy_names
from postroad.topics.port import (
    EVERYTHING,
    Filter,
    OverflowingTopic as OverflowingTopic,
    Subscription,
    Topic,
    TopicTraits,
    check_filter as check_filter,
    is_arn as is_arn,
    lets_through as lets_through,
)
from postroad.topics.sqlite import SQLiteTopics as SQLiteTopics

if TYPE_CHECKING:
    from postroad.topics.eventbridge import EventBridgeTopic as EventBridgeTopic, EventBridgeTopics as EventBridgeTopics
    from postroad.topics.sns import SNSTopic as SNSTopic, SNSTopics as SNSTopics
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "postroad.topics.eventbridge": "EventBridgeTopic EventBridgeTopics",
            "postroad.topics.sns": "SNSTopic SNSTopics",
        },
    )

__all__ = ["EVERYTHING", "Filter", "Subscription", "Topic", "TopicTraits"]
