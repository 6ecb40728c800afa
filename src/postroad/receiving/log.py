"""What a receiver writes to the log when nobody else does."""

from __future__ import annotations

import logging
from typing import Any

from postroad.queues import Delivery
from postroad.receiving.settlement import Observe
from postroad.telemetry import get_logger

_standard = logging.getLogger("postroad.receiving")
_LINES = {
    "received": "receiver_received",
    "acked": "receiver_acked",
    "deferred": "receiver_deferred",
    "released": "receiver_released",
    "retried": "receiver_retried",
    "rejected": "receiver_rejected",
    "lease_lost": "receiver_lease_lost",
    "ack_failed": "receiver_ack_failed",
    "heartbeat_failed": "receiver_heartbeat_failed",
    "settle_failed": "receiver_settle_failed",
    "receive_failed": "receiver_receive_failed",
    "chore_failed": "receiver_chore_failed",
    "stop_timed_out": "receiver_stop_timed_out",
}
_QUIET = frozenset({"acked", "deferred", "received", "released"})


def log_to(name: str) -> Observe:
    """Return what writes one line for each thing that happens to a message of this receiver."""

    def observe(what: str, delivery: Delivery | None, /, **fields: Any) -> None:
        level = logging.INFO if what in _QUIET else logging.WARNING
        if what not in _LINES or not _standard.isEnabledFor(level):
            return
        fields.pop("about", None)
        deliveries = fields.pop("deliveries", None)
        if deliveries is not None:
            fields["messages"] = len(deliveries)
        if delivery is not None:
            fields |= {"message_id": delivery.message_id, "receives": delivery.receive_count}
        told = {key: str(value) if isinstance(value, Exception) else value for key, value in fields.items()}
        shown = {key: value for key, value in told.items() if value is not None}
        get_logger("receiving").log(level, _LINES[what], receiver=name, **shown)

    return observe
