"""What a dispatcher did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DispatchReport:
    """How many rows were claimed, and what became of them."""

    claimed: int = 0
    sent: int = 0
    retried: int = 0
    """Failed and due again later."""
    failed: int = 0
    """Given up: FAILED."""
    held: int = 0
    """Given back without an attempt: behind a failed row of their key, or because the target is unavailable."""
    stale: int = 0
    """Another dispatcher has them by now; nothing was changed."""

    def __add__(self, other: DispatchReport) -> DispatchReport:
        return DispatchReport(
            claimed=self.claimed + other.claimed,
            sent=self.sent + other.sent,
            retried=self.retried + other.retried,
            failed=self.failed + other.failed,
            held=self.held + other.held,
            stale=self.stale + other.stale,
        )
