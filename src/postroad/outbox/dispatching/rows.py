"""What a claim gives, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from postroad.outbox.dispatching.config import DispatcherConfig
from postroad.outbox.dispatching.publisher import Rejected, Sent, TargetDown, Tried, Untried, Verdict
from postroad.outbox.rows import FAILED, PENDING, SENT

Kind = Literal["sent", "retried", "failed", "held"]


class Key(NamedTuple):
    """A lane of one tenant; the tenant is empty where there is none."""

    tenant: str
    lane: str


FIRST_KEY = Key("", "")
"""Comes before every key: lanes are never empty."""


Lease = tuple[str, int]
"""The id of a row and the token under which it was claimed."""


class ClaimedRow(NamedTuple):
    """A row that this dispatcher may publish while its lease lasts."""

    id: str
    key: Key
    seq: int
    payload: str
    attempts: int
    redrives: int
    token: int
    gap: tuple[str, ...] = ()
    """Events of the key that this row's message has to name as left out."""
    waited: bool = False
    """Whether it was found because its time had come, and not on the walk from key to key."""

    @property
    def lease(self) -> Lease:
        """What tells this claim of the row from another one."""
        return self.id, self.token


@dataclass(frozen=True, slots=True)
class Settlement:
    """What to write about one row; the row is free again afterwards."""

    row: ClaimedRow
    kind: Kind
    state: str
    error: str | None = None
    """None leaves the last error as it is, or clears it where the row is sent."""
    delay: float | None = None
    """Seconds until it is due again; None leaves the time as it is."""

    @property
    def counts(self) -> bool:
        """Whether it was an attempt."""
        return self.kind != "held"


class Settled(NamedTuple):
    """A settlement that was written, and the age of the row in seconds."""

    settlement: Settlement
    age: float


class Gauges(NamedTuple):
    """The three figures that alarms watch."""

    backlog: int
    lag_seconds: float
    dead_letters: int


def settlement(row: ClaimedRow, verdict: Verdict, config: DispatcherConfig, chance: float) -> Settlement:
    """Decide by the verdict, the row's attempts and the settings; `chance` is the jitter, from 0 to 1."""
    match verdict:
        case Sent():
            return Settlement(row, "sent", SENT)
        case Rejected(error):
            return Settlement(row, "failed", FAILED, error)
        case Tried(error):
            return _tried(row, error, config, chance)
        case TargetDown(error):
            return Settlement(row, "held", PENDING, error)
        case Untried():
            return given_back(row)


def given_back(row: ClaimedRow) -> Settlement:
    """Free the row as it was."""
    return Settlement(row, "held", PENDING)


def _tried(row: ClaimedRow, error: str, config: DispatcherConfig, chance: float) -> Settlement:
    attempts = max(row.attempts, 0) + 1
    if attempts >= config.retry_max:
        return Settlement(row, "failed", FAILED, error)
    return Settlement(row, "retried", PENDING, error, config.pause(attempts, chance=chance))
