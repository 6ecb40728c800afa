"""Inbox: each event's effect once, where the effect shares a transaction with the inbox row."""

from postroad.events import DomainEvent
from postroad.inbox.applications import (
    InDatabase as InDatabase,
    Transaction as Transaction,
    check_connections as check_connections,
    in_database as in_database,
)
from postroad.inbox.consumer import Consumer
from postroad.inbox.decisions import fingerprint_of as fingerprint_of
from postroad.inbox.inbox import RETENTION as RETENTION, Inbox, Windows, check_windows as check_windows, insert_once
from postroad.inbox.records import Effect, EffectNotDone
from postroad.inbox.telemetry import ConsumeReport

__all__ = ["ConsumeReport", "Consumer", "DomainEvent", "Effect", "EffectNotDone", "Inbox", "Windows", "insert_once"]
