"""One message in one subscription: receipts, receive counts, visibility and death. Invariants I4 and I12 to I15."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from postroad.testing.checker.history import Name, Peek, Receive, Run, Settling

_SLACK_SECONDS: Final = 1.0
"""How long before its line an operation may have happened, if the line does not say when the call began."""


@dataclass(slots=True)
class Faults:
    """The faults so far."""

    total: int = 0
    hidden: int = 0
    """Receives that these faults must have hidden, for dead letters to be explained: a fault hides one."""


class Copy:
    """What is known about a message in one subscription."""

    __slots__ = (
        *("acked", "at", "began", "dead", "first_at", "freed", "handled_at", "hidden", "highest", "left"),
        *("older", "peeked", "receipt", "receives", "undone"),
    )

    def __init__(self) -> None:
        self.first_at = self.at = 0.0
        self.began: float | None = None
        self.receives = self.highest = self.hidden = self.dead = 0
        self.receipt: Name | None = None
        self.older: dict[Name, int] | None = None
        self.handled_at: float | None = None
        self.freed = self.acked = self.left = self.undone = False
        self.peeked: Peek | None = None
        """What peek showed about a receive that is not written down yet."""

    def receive(self, line: Receive) -> None:
        """Take note of a receive; one that was written down late is not the newest."""
        if not self.receives:
            self.first_at = line.t
        self.receives += 1
        count = line.receive_count
        if self.peeked is not None and self.peeked.receive_count == count and line.t < self.peeked.t + _SLACK_SECONDS:
            self.peeked = None
        if count < self.highest:
            self.hidden -= self._is_hidden(count)
            self._put_away(line.receipt, count)
            return
        if self.receipt is not None and self.receipt != line.receipt:
            self._put_away(self.receipt, self.highest)
        self.hidden += max(0, count - self.highest - 1)
        self.highest, self.receipt = count, line.receipt
        self.at, self.began, self.freed, self.undone = line.t, line.t0, False, False

    def _put_away(self, receipt: Name, count: int) -> None:
        if self.older is None:
            self.older = {}
        self.older[receipt] = count

    def _is_hidden(self, count: int) -> bool:
        """Whether nobody has written down the receive with this count yet."""
        return 0 < count < self.highest and count not in (self.older or {}).values()

    def follows(self, count: int, faults: int) -> bool:
        """Whether the next receive may have this count, if each fault may have hidden one receive."""
        if count > self.highest:
            return self.hidden + count - self.highest - 1 <= faults
        if count == self.highest and self.undone:
            return True
        return faults > 0 and self._is_hidden(count)


def lease_start(at: float, began: float | None, visibility: float) -> float:
    """Return a time at which the lease had not begun yet, or had just begun."""
    return at - min(_SLACK_SECONDS, visibility / 10) if began is None else began


def received_again(copy: Copy, line: Receive, resent: bool, run: Run, faults: Faults) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a receive that is not the first, as invariant and detail."""
    if resent:
        return
    if not copy.follows(line.receive_count, faults.total):
        seen = f"{copy.receives} receives were seen before, the highest count was {copy.highest}"
        yield "I14", f"receive_count {line.receive_count}, but {seen}, with {faults.total} faults"
    if not copy.receives:
        return
    after = line.t - copy.at
    is_late_line = line.receive_count < copy.highest
    early = line.t < lease_start(copy.at, copy.began, run.visibility) + run.visibility
    early = early and not copy.freed and not is_late_line
    if not run.faults:
        yield "I4", f"received again after {after:.3f} s, in a run without faults"
        return
    if early and not faults.total:
        yield "I4", f"received again after {after:.3f} s, before any fault"
    if early:
        yield "I13", f"received again after {after:.3f} s, within the visibility of {run.visibility:g} s"


def is_stale(copy: Copy, line: Settling) -> bool:
    """Return whether the receipt was not the newest when the call began."""
    if line.receipt == copy.receipt or copy.older is None or line.receipt not in copy.older:
        return False
    return copy.at < (line.t if line.t0 is None else line.t0)


def peeked(copy: Copy, line: Peek, faults: Faults) -> Iterator[str]:
    """Yield what is wrong with the receive count that peek showed; a receive of that moment may be written later."""
    count, highest = line.receive_count, copy.highest
    hidden = count - highest + copy.hidden
    if count == highest + 1 and hidden > faults.total:
        copy.peeked = line
    elif hidden > faults.total or count < highest - (line.t - copy.at < _SLACK_SECONDS):
        yield f"peek shows receive_count {count} after {copy.receives} receives, with {faults.total} faults"


def died(copy: Copy, resent: bool, run: Run, faults: Faults) -> Iterator[str]:
    """Yield what is wrong with the death of a message."""
    if run.two_step_reject and faults.total and (copy.dead > 1 or copy.acked):
        return
    if copy.dead > 1:
        yield f"{copy.dead} times in the dead letters"
    elif copy.dead and copy.acked:
        yield "in the dead letters after an ack that was ok"
    elif run.policy == "park" and not copy.receives:
        return  # parked behind another one of its key
    elif copy.dead and not resent and run.max_receives is not None:
        faults.hidden += max(0, copy.hidden + run.max_receives - copy.highest)
        if copy.highest > run.max_receives or faults.hidden > faults.total:
            yield f"dead after {copy.highest} receives instead of {run.max_receives}, with {faults.total} faults"
