"""Inbox: each event's effect once, where the effect shares a transaction with the inbox row."""

from postroad.events import DomainEvent
from postroad.inbox.consumer import Consumer
from postroad.inbox.inbox import Inbox, Windows, insert_once
from postroad.inbox.records import Effect, EffectNotDone
from postroad.inbox.telemetry import ConsumeReport

__all__ = ["ConsumeReport", "Consumer", "DomainEvent", "Effect", "EffectNotDone", "Inbox", "Windows", "insert_once"]
