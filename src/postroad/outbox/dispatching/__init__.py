"""Dispatching: from committed rows to a topic, per key in order."""

from postroad.outbox.dispatching.config import DispatcherConfig, DispatchReport
from postroad.outbox.dispatching.dispatcher import OutboxDispatcher
from postroad.outbox.dispatching.publisher import Publisher, bus_name, group_id

__all__ = ["DispatchReport", "DispatcherConfig", "OutboxDispatcher", "Publisher", "bus_name", "group_id"]
