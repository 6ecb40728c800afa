"""How tests wait: for a condition, with a limit so long that reaching it means never."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import httpx

NEVER_SECONDS: Final = 120.0
"""What has not happened by then will never happen, however busy the machine is."""


def eventually(condition: Callable[[], object], *, every: float = 0.01) -> None:
    """Wait until the condition is true; a connection error counts as false."""
    deadline = time.monotonic() + NEVER_SECONDS
    while not _holds(condition):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(every)


def _holds(condition: Callable[[], object]) -> bool:
    try:
        return bool(condition())
    except (OSError, httpx.TransportError):
        return False
