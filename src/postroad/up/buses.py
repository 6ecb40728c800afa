"""The buses that loaded modules declare: their handlers run for as long as the service does."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from postroad.errors import ConfigurationError
from postroad.settings import Settings, nearest
from postroad.up.loading import load_modules
from postroad.wiring.backend import Backend

if TYPE_CHECKING:
    from postroad.bus import Bus


def find_buses(target: str) -> list[Bus]:
    """Return the buses of `MODULE`, or the one of `MODULE:NAME`.

    Raises:
        ConfigurationError: The module cannot be imported, or holds no such bus.
    """
    from postroad.bus import Bus

    module_name, _, name = target.partition(":")
    load_modules([module_name])
    buses = buses_of(sys.modules[module_name])
    if not name and buses:
        return list(buses.values())
    found = getattr(sys.modules[module_name], name, None) if name else None
    if isinstance(found, Bus):
        return [found]
    raise ConfigurationError(
        f"module: {target!r} is not a bus" if name else f"module: {module_name!r} declares no bus",
        field="module",
        nearest=nearest(name, list(buses)) if name else None,
        remedy='Declare one at the top of the module, as in orders = postroad.Bus("orders", group="billing").',
    )


def buses_of(module: ModuleType) -> dict[str, Bus]:
    """Return the buses that the module declares, each once, by name."""
    from postroad.bus import Bus

    found = {name: value for name, value in vars(module).items() if isinstance(value, Bus)}
    return {name: bus for name, bus in found.items() if next(n for n, b in found.items() if b is bus) == name}


def run_buses(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Receive with every bus that the loaded modules declare, until told to stop."""
    from postroad.wiring import run

    buses = _declared(settings.load)
    if not buses:
        stop.wait()
        return
    for bus in buses:
        if not bus.is_bound:
            bus.bind(backend)
    run(*buses, stop=stop)


def _declared(modules: Sequence[str]) -> list[Bus]:
    if not any("postroad.bus" in sys.modules for _ in modules):
        return []
    found = [bus for name in modules if name in sys.modules for bus in buses_of(sys.modules[name]).values()]
    return list({id(bus): bus for bus in found}.values())
