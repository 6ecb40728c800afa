"""Wiring: `connect(url)` picks the adapters of one store and gives them as a `Backend`."""

from postroad.wiring.backend import Backend, Overflow
from postroad.wiring.connect import connect, run

__all__ = ["Backend", "Overflow", "connect", "run"]
