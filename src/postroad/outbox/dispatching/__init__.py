"""Dispatching: from committed rows to a topic, per key in order."""

from postroad.outbox.dispatching.config import DispatcherConfig
from postroad.outbox.dispatching.dispatcher import OutboxDispatcher
from postroad.outbox.dispatching.naming import bus_name, group_id
from postroad.outbox.dispatching.publishing import Publisher
from postroad.outbox.dispatching.report import DispatchReport

__all__ = ["DispatchReport", "DispatcherConfig", "OutboxDispatcher", "Publisher", "bus_name", "group_id"]
