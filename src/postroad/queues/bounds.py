"""How far a redrive goes, how fast, and what stops it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

from postroad.errors import InvalidInput
from postroad.queues.pace import check_rate


class BoundOptions(TypedDict, total=False):
    """The bounds as keywords of a call; what is left out is as `Bounds` has it."""

    limit: int | None
    rate: float | None
    canary: int
    canary_wait: float
    stop_after: int
    max_redrives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of one redrive. A number that is out of range is refused by its name."""

    limit: int | None = None
    """So many move at the most."""
    rate: float | None = None
    """So many move in any second."""
    canary: int = 0
    """So many go first, and the others when these were handled."""
    canary_wait: float = 60.0
    """So many seconds the first ones are waited for."""
    stop_after: int = 5
    """So many that come back stop the run; 0 stops nothing."""
    max_redrives: int = 3
    """What was redriven so often stays."""

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_whole(self.limit, "limit", 1)
        check_whole(self.canary, "canary", 0)
        check_whole(self.stop_after, "stop_after", 0)
        check_whole(self.max_redrives, "max_redrives", 1)
        _check_wait(self.canary_wait)
        check_rate(self.rate)


def check_whole(value: object, field: str, low: int) -> None:
    """Refuse what is not a whole number from `low` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidInput(f"{field}: {value!r} is not a whole number from {low} on", field=field)


def _check_wait(seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise InvalidInput(f"canary_wait: {seconds!r} is not a number of seconds from 0 on", field="canary_wait")
