"""What a dispatcher needs of the database: each verb is one short transaction, timed by the database's own clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from postroad.outbox.dispatching.rows import ClaimedRow, Gauges, Key, Lease, Settled, Settlement

Wake = Callable[[], None]


class DispatchStore(Protocol):
    """The rows of one outbox as one dispatcher sees them. All verbs but `gauges` are called by one thread at a time."""

    def open(self) -> None:
        """Connect, or connect anew, and make sure that the tables are there and can be written."""
        ...

    def claim(self, limit: int, *, after: Key, leaving: int = 0) -> list[ClaimedRow]:
        """Lease up to `limit` rows of keys behind `after`: of each key the first rows, in order, when they are due.

        The first `leaving` of these keys are left to others.
        """
        ...

    def renew(self, rows: Sequence[ClaimedRow]) -> set[Lease]:
        """Lease the rows anew; the leases that were still ours."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write what became of rows that are still ours, and free them; those that were not are left out."""
        ...

    def tell_target(self, error: str | None, *, pause: float = 0.0) -> None:
        """Let everybody see what is wrong with the target, and for how long it is left alone; None: nothing is."""
        ...

    def gauges(self) -> Gauges:
        """Count, on a connection of its own."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...
