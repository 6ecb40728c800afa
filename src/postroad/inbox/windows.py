"""How long the inbox has to remember: as long as a copy of an event may still arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Final

from postroad.errors import ConfigurationError

RETENTION: Final = timedelta(days=30)
"""How long an inbox remembers when nobody says."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The longest times, in seconds, that an event may lie on its way to a consumer."""

    queue_retention: float = 345_600
    dead_letter_retention: float = 1_209_600
    outbox_horizon: float = 16_672
    redrive_delay: float = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigurationError(
                    f"{field.name}: {value!r} is not a number of seconds of 0 or more", field=field.name
                )

    @property
    def required(self) -> float:
        """How long after its first handling a copy of an event may arrive."""
        return self.queue_retention + self.dead_letter_retention + self.outbox_horizon + self.redrive_delay


def check_windows(retention: timedelta | None, windows: Windows) -> None:
    """Refuse a retention under which the inbox forgets events that may still come again; None forgets nothing."""
    if retention is None:
        return
    kept = retention.total_seconds()
    if kept < windows.required:
        raise ConfigurationError(
            f"retention: the inbox remembers for {kept:.0f} s, but copies may arrive for {windows.required:.0f} s",
            field="retention",
            remedy="Give the inbox a longer retention, or Windows the true figures of this queue.",
        )
