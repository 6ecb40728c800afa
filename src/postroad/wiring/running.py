"""`run(bus, …)`: receive with buses until the program is told to stop."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from postroad.errors import ConfigurationError
from postroad.signals import stopped_by_signals
from postroad.wiring.connect import connect

if TYPE_CHECKING:
    from postroad.bus import Bus

_STOP_SECONDS = 20.0


def run(*buses: Bus, url: str | None = None, stop: threading.Event | None = None) -> None:
    """Receive with all the buses until SIGTERM, Ctrl-C or `stop`; then let running handlers end and hand back the rest.

    Args:
        buses: Those that are not bound yet are bound to the backend at `url`.
        url: The backend; by default `$POSTROAD_URL`, else the file `postroad.db`.
        stop: Set by another thread to end the run; needed where this is not the main thread.

    Raises:
        ConfigurationError: No bus was given, or one of them has no handlers.

    Example:
        postroad.run(orders, url="sqlite:///shop.db")
    """
    if not buses:
        raise ConfigurationError("buses: there is none to run", field="buses", remedy="Give at least one bus.")
    with ExitStack() as stack:
        stopping = stack.enter_context(stopped_by_signals()) if stop is None else stop
        unbound = [bus for bus in buses if not bus.is_bound]
        if unbound:
            backend = stack.enter_context(connect(url))
            for bus in unbound:
                bus.bind(backend)
        for bus in buses:
            bus.start_receiver()
        stopping.wait()
        for bus in buses:
            bus.stop_receiver(timeout=_STOP_SECONDS)
