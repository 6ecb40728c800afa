"""Housekeeping: what is over its time is removed, so that the data does not grow with time alone."""

from __future__ import annotations

import threading

from postroad.http.idempotency import Memory
from postroad.settings import Settings
from postroad.telemetry import get_logger
from postroad.wiring.backend import Backend

_EVERY_SECONDS = 600.0
_log = get_logger("housekeeping")


def keep_house(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Sweep every ten minutes until told to stop."""
    while not stop.is_set():
        sweep(backend, settings)
        stop.wait(_EVERY_SECONDS)


def sweep(backend: Backend, settings: Settings) -> int:
    """Forget answers kept for idempotency keys for longer than 24 hours; how many."""
    forgotten = Memory(backend.items(), tenant=settings.tenant, clock=backend.clock).prune()
    if forgotten:
        _log.info("housekeeping_swept", answers=forgotten)
    return forgotten
