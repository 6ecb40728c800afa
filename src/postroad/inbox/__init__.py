"""Inbox: each event's effect once, where the effect shares a transaction with the inbox row."""

from postroad.events import DomainEvent
from postroad.inbox.consumer import Consumer
from postroad.inbox.inbox import Inbox
from postroad.inbox.records import Effect, EffectNotDone
from postroad.inbox.telemetry import ConsumeReport
from postroad.inbox.windows import Windows
from postroad.inbox.writing import insert_once

__all__ = ["ConsumeReport", "Consumer", "DomainEvent", "Effect", "EffectNotDone", "Inbox", "Windows", "insert_once"]
