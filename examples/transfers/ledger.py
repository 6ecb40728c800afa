"""Ledger: one debit and one credit for each settled transfer."""

from __future__ import annotations

from typing import Any

from postroad.inbox import DomainEvent, insert_once


def post(event: DomainEvent, connection: Any) -> None:
    """Post both entries by (transfer, type), so that even an event under a new id posts nothing twice."""
    for type in ("debit", "credit"):
        key = {"transfer_id": event.key["transferId"], "type": type}
        insert_once(connection, "ledger_entries", key=key, values={"amount": event.payload["amount"]["value"]})
