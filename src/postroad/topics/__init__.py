"""Topics: each subscribed queue gets its own copy, on memory, on the embedded engine, on SNS and EventBridge."""

from postroad.topics.port import EVERYTHING, Filter, Subscription, Topic, TopicTraits

__all__ = ["EVERYTHING", "Filter", "Subscription", "Topic", "TopicTraits"]
