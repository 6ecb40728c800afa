"""What consumers count."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumeReport:
    """What became of the messages of one `run_once`."""

    received: int = 0
    handled: int = 0
    duplicates: int = 0
    failed: int = 0
    released: int = 0
    """Given back unhandled: behind a failed one of their group, held by somebody else, or at a stop."""
    dead: int = 0
    ignored: int = 0
