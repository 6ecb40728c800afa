"""The demo as the CLI prints it and the HTTP API answers it."""

from __future__ import annotations

from typing import Literal

import msgspec

from postroad.views.service import PartState

FailureState = Literal["healthy", "failing", "repaired", "redriven"]


class SceneShown(msgspec.Struct):
    """One scene: what it has published, what of it was handled, and how many attempts failed."""

    name: str
    state: PartState
    published: int
    handled: int
    failed: int


class DemoFailure(msgspec.Struct):
    """The failure that the demo shows, and how far it is repaired."""

    state: FailureState
    queue: str
    dead_letters: int


class DemoShown(msgspec.Struct):
    """The scenes of the demo, and its failure."""

    scenes: list[SceneShown]
    failure: DemoFailure


class DemoPlayed(msgspec.Struct):
    """What came of a demo that was played to its end."""

    scenes: int
    published: int
    handled: int
    dead_lettered: int
    redriven: int
    lost: int
    duplicated_effects: int
    ledger_sum: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing was lost or made twice, and everything that failed was redriven."""
        return not self.lost and not self.duplicated_effects and 0 < self.dead_lettered == self.redriven
