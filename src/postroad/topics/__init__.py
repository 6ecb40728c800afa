"""Topics: each subscribed queue gets its own copy, on memory, on the embedded engine, on SNS and EventBridge."""

from postroad.topics.port import Filter, Subscription, Topic, TopicTraits

__all__ = ["Filter", "Subscription", "Topic", "TopicTraits"]
