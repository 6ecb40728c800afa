"""What a worker did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Messages stored and pushes relayed, devices reached and dropped, and messages that were not done."""

    stored: int = 0
    duplicates: int = 0
    relayed: int = 0
    """Pushes that went from the outbox to the queue."""
    sent: int = 0
    """Devices that got a push."""
    dropped: int = 0
    """Devices that are dead."""
    retried: int = 0
    deferred: int = 0
    dead_lettered: int = 0
