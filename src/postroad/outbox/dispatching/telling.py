"""What a dispatcher tells: one log line for each thing that happens to a row, and never its payload."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from postroad.outbox.dispatching.rows import Settlement
from postroad.telemetry import get_logger

_standard = logging.getLogger("postroad.outbox")
_WARNINGS = frozenset(
    {
        *("outbox_retried", "outbox_failed", "outbox_stale", "outbox_target_unavailable", "outbox_database_lost"),
        *("outbox_listen_unavailable", "outbox_stop_timed_out", "outbox_prune_refused"),
    }
)
_OF_ROWS = {"sent": "outbox_published", "retried": "outbox_retried", "failed": "outbox_failed"}


class Teller:
    """Speaks for one dispatcher."""

    def __init__(self, dispatcher: str) -> None:
        self._dispatcher = dispatcher

    def tell(self, event: str, **fields: Any) -> None:
        """Write one line."""
        level = logging.WARNING if event in _WARNINGS else logging.INFO
        if _standard.isEnabledFor(level):
            _logger().log(level, event, dispatcher=self._dispatcher, **fields)

    def tell_row(self, settlement: Settlement) -> None:
        """Write the line of a row that was settled; one that only went back has none."""
        event = _OF_ROWS.get(settlement.kind)
        if event is None or not _standard.isEnabledFor(logging.WARNING if event in _WARNINGS else logging.INFO):
            return
        row = settlement.row
        fields = {"row": row.id, "seq": row.seq, "attempt": max(row.attempts, 0) + 1, "redrives": row.redrives}
        if settlement.error is not None:
            fields["error"] = settlement.error
        self.tell(event, **fields)


@cache
def _logger() -> Any:
    return get_logger("outbox")
