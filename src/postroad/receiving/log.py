"""What a receiver writes to the log when nobody else does."""

from __future__ import annotations

import logging
from typing import Any

from postroad.queues import Delivery
from postroad.receiving.settlement import Observe
from postroad.telemetry import get_logger

_standard = logging.getLogger("postroad.receiving")
_QUIET = frozenset({"acked", "deferred", "received", "released"})


def log_to(name: str) -> Observe:
    """Return what writes one line for each thing that happens to a message of this receiver."""

    def observe(what: str, delivery: Delivery | None, /, **fields: Any) -> None:
        level = logging.INFO if what in _QUIET else logging.WARNING
        if what == "polled" or not _standard.isEnabledFor(level):
            return
        fields.pop("about", None)
        deliveries = fields.pop("deliveries", None)
        if deliveries is not None:
            fields["messages"] = len(deliveries)
        if delivery is not None:
            fields |= {"message_id": delivery.message_id, "receives": delivery.receive_count}
        told = {key: str(value) if isinstance(value, Exception) else value for key, value in fields.items()}
        shown = {key: value for key, value in told.items() if value is not None}
        get_logger("receiving").log(level, f"receiver_{what}", receiver=name, **shown)

    return observe
