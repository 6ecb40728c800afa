"""How a bus is doing."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from postroad.receiving import BreakerState


@dataclass(frozen=True, slots=True, kw_only=True)
class BusHealth:
    """One look at a bus."""

    running: bool
    in_flight: int
    publish_breaker: BreakerState
    receive_breaker: BreakerState
    last_error: str | None
    handled: int
    failed: int
    duplicates: int
    unhandled: int
    dead_lettered: int
    gaps: int


_COUNTED = {
    ("acked", None): "handled",
    ("acked", "duplicate"): "duplicates",
    ("acked", "unhandled"): "unhandled",
    ("retried", None): "failed",
    ("retried", "invalid"): "failed",
    ("retried", "duplicate"): "duplicates",
    ("retried", "unhandled"): "unhandled",
    ("rejected", None): "failed",
    ("rejected", "unhandled"): "unhandled",
}


class Tally:
    """What the health of a bus counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(
            ("handled", "failed", "duplicates", "unhandled", "dead_lettered", "gaps"), 0
        )
        self._transport_error: str | None = None
        self._handler_error: str | None = None

    def add(self, name: str) -> None:
        """Count one more."""
        with self._lock:
            self._counts[name] += 1

    def observe(self, what: str, *, label: str | None = None, error: object = None, **_: object) -> None:
        """Count what the receiver did with a message."""
        if what in ("acked", "retried", "rejected") and (counted := _COUNTED.get((what, label))) is not None:
            self.add(counted)
        if what == "rejected":
            self.add("dead_lettered")
        elif what == "lease_lost":
            self.add("failed")
        elif what in ("receive_failed", "settle_failed"):
            self._transport_error = str(error)
        elif what == "polled":
            self._transport_error = None
        if what in ("retried", "rejected") and label is None and error is not None:
            self._handler_error = str(error)

    @property
    def last_error(self) -> str | None:
        """What went wrong last: the transport, for as long as it does, else a handler."""
        return self._transport_error or self._handler_error

    def counts(self) -> dict[str, int]:
        """All counts as they are now."""
        with self._lock:
            return dict(self._counts)
