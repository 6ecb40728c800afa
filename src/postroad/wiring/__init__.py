"""Wiring: `connect(url)` picks the adapters of one store and returns them as a `Backend`."""

from postroad.ports import Overflow
from postroad.wiring.backend import Backend
from postroad.wiring.connect import buses_of as buses_of, connect, parse_url as parse_url, run

__all__ = ["Backend", "Overflow", "connect", "run"]
