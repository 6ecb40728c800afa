"""How tests wait: for a condition, with a limit so long that reaching it means never."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import httpx

NEVER_SECONDS: Final = 120.0
"""What has not happened by then will never happen, however busy the machine is."""
_LONGEST_PAUSE: Final = 0.05


def eventually(condition: Callable[[], object], *, every: float = 0.01) -> None:
    """Wait until the condition is true; a connection error counts as false.

    The longer it takes, the less often it asks: whoever asks a server a hundred times a second keeps it busy.
    """
    began = time.monotonic()
    while not _holds(condition):
        passed = time.monotonic() - began
        assert passed < NEVER_SECONDS, "it never came true"
        time.sleep(max(every, min(_LONGEST_PAUSE, passed / 10)))


def _holds(condition: Callable[[], object]) -> bool:
    try:
        return bool(condition())
    except (OSError, httpx.TransportError):
        return False
