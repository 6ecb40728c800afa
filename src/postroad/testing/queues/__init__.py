"""The conformance suite of queues: a new adapter is a subclass with the fixture `ground`."""

from __future__ import annotations

from postroad.testing.queues.dead_letters import DeadLetterRules, MovingRules
from postroad.testing.queues.delivery import DeliveryRules
from postroad.testing.queues.fifo import DeduplicationRules, FifoRules
from postroad.testing.queues.fixture import QueueFixture
from postroad.testing.queues.leases import LeaseRules
from postroad.testing.queues.limits import LimitRules, SettingRules

__all__ = ["QueueConformance", "QueueFixture"]


class QueueConformance(
    DeliveryRules, LeaseRules, FifoRules, DeduplicationRules, DeadLetterRules, LimitRules, SettingRules, MovingRules
):
    """Every promise of `Queue`, unless its traits say otherwise."""
