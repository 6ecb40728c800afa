"""The order of each key: what was handled, received and numbered before what. Invariants I9 to I11 and I19."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from postroad.testing.checker.history import Gap, Handled, Name, Publish, Receive, Run
from postroad.testing.checker.leases import Copy, lease_start
from postroad.testing.checker.report import Blame

if TYPE_CHECKING:
    from postroad.testing.checker.messages import Message

_PATIENCE_SECONDS: Final = 60.0
"""How long a delivery waits for the line that says who published it."""
_MOST_KEYS: Final = 10_000
"""For how many keys it is known when their last handler ran."""


@dataclass(slots=True)
class _Waiting:
    """A message of a lane that is not handled yet."""

    id: Name
    call: tuple[str, float] | None = None
    """The call that received it."""
    by: int = -1
    """The message that overtook it."""
    again: bool = False
    """Whether it was received after that."""


@dataclass(slots=True)
class _Lane:
    """The messages of one publisher with one key in one subscription, by their n."""

    handled: int = -1
    n: int = -1
    sequence: int = -1
    waiting: dict[int, _Waiting] = field(default_factory=dict)
    overtaken: dict[int, _Waiting] = field(default_factory=dict)


class Order:
    """The lanes of all keys. Deliveries of a key wait here until it is known who published them."""

    def __init__(self, run: Run, blame: Blame) -> None:
        self._run, self._blame = run, blame
        self._lanes: dict[tuple[str, str, Name], _Lane] = {}
        self._delayed: dict[tuple[str, Name], deque[tuple[Message, Receive | Handled]]] = {}
        self._gaps: set[tuple[str, Name | None, int]] = set()
        self._ran: dict[tuple[str, Name], tuple[float, float, Name]] = {}

    def published(self, message: Message, line: Publish) -> None:
        """A message has its publisher; one that is surely there waits in each lane to be handled."""
        if line.key is None:
            return
        if line.outcome == "ok" and message.oks == 1 and self._run.ordered:
            for sub in message.subs:
                copy = message.copies.get(sub)
                if copy is None or copy.handled_at is None:
                    self._lane(sub, line.p, line.key).waiting.setdefault(line.n, _Waiting(line.id))
        if self._delayed:
            for sub in message.copies:
                self._catch_up((sub, line.key), line.t)

    def _lane(self, sub: str, publisher: str, key: Name) -> _Lane:
        lane = self._lanes.get((sub, publisher, key))
        if lane is None:
            lane = self._lanes[sub, publisher, key] = _Lane()
        return lane

    def received(self, message: Message, line: Receive) -> None:
        if line.key is not None and (self._run.ordered or line.sequence is not None):
            self._take(message, line)

    def handled(self, message: Message, line: Handled) -> None:
        if message.key is not None and self._run.ordered:
            self._take(message, line)

    def _take(self, message: Message, line: Receive | Handled) -> None:
        assert message.key is not None
        place = (line.sub, message.key)
        if message.publisher is not None and place not in self._delayed:
            self._apply(message, line)
            return
        self._delayed.setdefault(place, deque()).append((message, line))
        self._catch_up(place, line.t)

    def _catch_up(self, place: tuple[str, Name], now: float) -> None:
        """Apply what waits, in its order, up to the first whose publisher is still unknown."""
        delayed = self._delayed.get(place)
        while delayed:
            message, line = delayed[0]
            if message.publisher is not None:
                self._apply(message, line)
            elif now - line.t < _PATIENCE_SECONDS:
                return
            delayed.popleft()
        self._delayed.pop(place, None)

    def _apply(self, message: Message, line: Receive | Handled) -> None:
        assert message.publisher is not None
        assert message.key is not None
        lane = self._lane(line.sub, message.publisher, message.key)
        if isinstance(line, Handled):
            self._handle(lane, message, line)
            if not (lane.waiting or lane.overtaken or lane.n >= 0):
                # Whatever comes later has a higher n, so that nothing is left to compare it with.
                del self._lanes[line.sub, message.publisher, message.key]
            return
        if line.sequence is not None and not message.resent:
            self._number(lane, message.n, int(line.sequence), line)
        if self._run.ordered:
            self._receive(lane, message, line)

    def _number(self, lane: _Lane, n: int, sequence: int, line: Receive) -> None:
        known = lane.sequence
        wrong = sequence <= known if n > lane.n else sequence >= known if n < lane.n else sequence != known
        if lane.n >= 0 and wrong:
            self._blame("I19", line.id, line.sub, f"n {n} has sequence {sequence}, n {lane.n} has {known}")
        if n > lane.n:
            lane.n, lane.sequence = n, sequence

    def _receive(self, lane: _Lane, message: Message, line: Receive) -> None:
        n, began = message.n, line.t if line.t0 is None else line.t0
        if (overtaken := lane.overtaken.get(n)) is not None:
            # A paused process may write down a receive when its lease has long expired.
            overtaken.again |= line.t < began + self._run.visibility
        elif n in lane.waiting or message.copies[line.sub].handled_at is None:
            # What waits may be handled already: lines that had to wait for the publisher are applied late.
            lane.waiting.setdefault(n, _Waiting(line.id)).call = (line.p, began)
        if self._run.policy != "park":
            self._overtake(lane, message, line.sub, (line.p, began))

    def _overtake(self, lane: _Lane, message: Message, sub: str, call: tuple[str, float] | None) -> None:
        """Take note of the messages that this one leaves behind, unless one call received both."""
        for n, waiting in list(takewhile(lambda each: each[0] < message.n, lane.waiting.items())):
            if call is None or waiting.call != call:
                del lane.waiting[n]
                if (sub, message.key, n) not in self._gaps:
                    waiting.by = message.n
                    lane.overtaken[n] = waiting

    def _handle(self, lane: _Lane, message: Message, line: Handled) -> None:
        n = message.n
        lane.waiting.pop(n, None)
        overtaken = lane.overtaken.pop(n, None)
        if line.t >= self._lost_at(message.copies[line.sub], line):
            return  # nothing kept its place any more
        if n < lane.handled and message.oks:
            self._blame("I9", line.id, line.sub, f"n {n} of key {message.key} handled after n {lane.handled}")
        elif n > lane.handled and overtaken is not None:
            self._overtaking(line.sub, n, overtaken, "handled")
        lane.handled = max(lane.handled, n)
        if self._run.policy == "park":
            self._overtake(lane, message, line.sub, None)

    def _lost_at(self, copy: Copy, line: Handled) -> float:
        """Return until when nobody else could have what this handler worked on."""
        newest = line.receipt is None or line.receipt == copy.receipt
        return lease_start(copy.at, copy.began, self._run.visibility) + (self._run.visibility if newest else 0.0)

    def _overtaking(self, sub: str, n: int, overtaken: _Waiting, then: str) -> None:
        verb = "handled" if self._run.policy == "park" else "received"
        self._blame("I11", overtaken.id, sub, f"n {overtaken.by} was {verb} before n {n}, which was {then} later")

    def gap(self, line: Gap) -> None:
        self._gaps.add((line.sub, line.key, line.n))

    def ran(self, copy: Copy, line: Handled) -> None:
        """A handler ran; what counts is the time in which nobody else could have the message."""
        if not self._run.ordered or line.key is None or line.t0 is None:
            return
        start, end = line.t0, min(line.t, self._lost_at(copy, line))
        other_start, other_end, other = self._ran.pop((line.sub, line.key), (start, start, line.id))
        if max(start, other_start) < min(end, other_end):
            self._blame("I10", line.id, line.sub, f"its handler and that of {other} ran at the same time")
        last = (start, end, line.id) if end >= other_end else (other_start, other_end, other)
        self._ran[line.sub, line.key] = last
        if len(self._ran) > _MOST_KEYS:
            del self._ran[next(iter(self._ran))]  # the key that has rested for the longest time

    def finish(self, is_dead: Callable[[Name, str], bool]) -> None:
        """Check what only the end shows; `is_dead` tells whether a message is among a subscription's dead letters."""
        for place in list(self._delayed):
            self._catch_up(place, float("inf"))
        for (sub, _, _), lane in self._lanes.items():
            for n, overtaken in lane.overtaken.items():
                if overtaken.again:
                    self._overtaking(sub, n, overtaken, "received")
                elif self._run.policy != "block" and is_dead(overtaken.id, sub):
                    self._overtaking(sub, n, overtaken, "dead")
