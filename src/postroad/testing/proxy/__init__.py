"""The fault proxy: an HTTP server before AWS or an emulator that breaks calls and applies AWS's own rules."""

from postroad.testing.proxy.server import FAULTS, FaultProxy, Seen

__all__ = ["FAULTS", "FaultProxy", "Seen"]
