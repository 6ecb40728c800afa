"""Projections: the timeline of every transfer."""

from __future__ import annotations

from typing import Any

from examples.transfers.database import run

from postroad.inbox import DomainEvent


def note(event: DomainEvent, connection: Any) -> None:
    """Add the event to the timeline."""
    run(connection, "INSERT INTO timeline (transfer_id, type) VALUES (?, ?)", (event.key["transferId"], event.type))
