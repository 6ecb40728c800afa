"""Outbox: events recorded in the caller's own database transaction, and moved from there onto a topic."""

from postroad.outbox.rows import AuditEntry, KeyState, OutboxRow, OutboxStatus, Reconciliation

__all__ = ["AuditEntry", "KeyState", "OutboxRow", "OutboxStatus", "Reconciliation"]
