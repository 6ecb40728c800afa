"""How far a redrive goes, how fast, and what stops it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypedDict

from msgspec import Meta

from postroad.arguments import FINITE, check_settings
from postroad.errors import InvalidInput
from postroad.queues.pace import Rate


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

    limit: Annotated[int, Meta(ge=1)] | None = None
    """So many move at the most."""
    rate: Rate | None = None
    """So many move in any second."""
    canary: Annotated[int, Meta(ge=0)] = 0
    """So many go first, and the others when these were handled."""
    canary_wait: Annotated[float, Meta(ge=0, le=FINITE, description="a number of seconds from 0 on")] = 60.0
    """So many seconds the first ones are waited for."""
    stop_after: Annotated[int, Meta(ge=0)] = 5
    """So many that come back stop the run; 0 stops nothing."""
    max_redrives: Annotated[int, Meta(ge=1)] = 3
    """What was redriven so often stays."""

    def __post_init__(self) -> None:
        check_settings(self, InvalidInput)
