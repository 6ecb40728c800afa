"""The rows that a dispatcher claims and settles, and the store that it does this in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol


class Key(NamedTuple):
    """The ordering key of one tenant's events; the tenant is empty where there is none."""

    tenant: str
    lane: str


FIRST_KEY = Key("", "")
"""Comes before every key: a stored key is never empty."""

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
    """Skipped events of the key that the message of this row has to name."""
    waited: bool = False
    """Whether it was claimed because its retry was due, and not on the walk from key to key."""

    @property
    def lease(self) -> Lease:
        """The id and token, which differ for every claim of the row."""
        return self.id, self.token


@dataclass(frozen=True, slots=True)
class Settlement:
    """What to write about one row, which also ends its lease."""

    row: ClaimedRow
    kind: Literal["sent", "retried", "failed", "held"]
    """All but "held" count as an attempt."""
    state: str
    error: str | None = None
    """None leaves the last error as it is, or clears it where the row is sent."""
    delay: float | None = None
    """Seconds until it is due again; None leaves the time as it is."""


class Settled(NamedTuple):
    """A settlement that was written, and the age of the row in seconds."""

    settlement: Settlement
    age: float


class Gauges(NamedTuple):
    """The three figures that alarms watch."""

    backlog: int
    lag_seconds: float
    dead_letters: int


class DispatchStore(Protocol):
    """The rows of one outbox for one dispatcher. One thread at a time calls its methods, except `gauges`."""

    def open(self) -> None:
        """Connect, again if need be, and check that the tables exist and can be written."""
        ...

    def claim(self, limit: int, *, after: Key, leaving: int = 0) -> list[ClaimedRow]:
        """Lease up to `limit` rows of keys behind `after`: of each key the first rows, in order, if they are due.

        The first `leaving` of these keys are left to other dispatchers.
        """
        ...

    def renew(self, rows: Sequence[ClaimedRow]) -> set[Lease]:
        """Extend the leases of the rows, and return those that this dispatcher still held."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write the settlements of rows that this dispatcher still holds, and return those."""
        ...

    def restart_pauses(self) -> None:
        """Let rows that failed before the clock of the database was set back wait for their pause only."""
        ...

    def set_target_error(self, error: str | None, *, pause: float = 0.0) -> None:
        """Store why the target is unavailable and how many seconds this dispatcher pauses; None: it is available."""
        ...

    def gauges(self) -> Gauges:
        """Count the rows, on a connection of its own."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
