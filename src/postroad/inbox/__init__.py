"""Inbox: the effect of each event is made once, in one transaction with the inbox row."""

from postroad.events import DomainEvent
from postroad.inbox.consumer import Consumer, ConsumeReport
from postroad.inbox.effects import (
    InDatabase as InDatabase,
    Transaction as Transaction,
    check_connections as check_connections,
    fingerprint_of as fingerprint_of,
    in_database as in_database,
)
from postroad.inbox.external import Effect, EffectNotDone
from postroad.inbox.inbox import RETENTION as RETENTION, Inbox, Windows, check_windows as check_windows, insert_once

__all__ = ["ConsumeReport", "Consumer", "DomainEvent", "Effect", "EffectNotDone", "Inbox", "Windows", "insert_once"]
