"""The rules of a queue and its dead letters in plain Python, to compare an adapter with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from postroad.queues import QueueSpec

Place = Literal["jobs", "dead"]

DEDUP_SECONDS = 300.0


@dataclass(slots=True, kw_only=True)
class Entry:
    """A message as the rules see it. `lease` is the number of the lease whose receipt is out."""

    body: str
    group: str | None
    place: Place
    sent_at: float
    visible_at: float
    receives: int = 0
    lease: int | None = None
    redrives: int = 0


@dataclass(slots=True, kw_only=True)
class QueueModel:
    """One queue and its dead-letter queue, with a clock of their own."""

    spec: QueueSpec
    now: float = 0.0
    entries: list[Entry] = field(default_factory=list)
    """In the order of their sequence within each place."""
    expired: dict[Place, int] = field(default_factory=lambda: {"jobs": 0, "dead": 0})
    remembered: dict[str, tuple[float, str]] = field(default_factory=dict)
    leases: int = 0

    def advance(self, seconds: float) -> None:
        """Let time pass; what is too old vanishes."""
        self.now += seconds
        for entry in [each for each in self.entries if self.now - each.sent_at > self.spec.retention]:
            self.entries.remove(entry)
            self.expired[entry.place] += 1

    def send(self, body: str, group: str | None, dedup_id: str | None, delay: float) -> str:
        """The body of the message that the send stands for: its own, or that of the first with its dedup id."""
        if dedup_id is not None:
            until, first = self.remembered.get(dedup_id, (self.now, ""))
            if until > self.now:
                return first
            self.remembered[dedup_id] = (self.now + DEDUP_SECONDS, body)
        self.entries.append(Entry(body=body, group=group, place="jobs", sent_at=self.now, visible_at=self.now + delay))
        return body

    def at(self, place: Place) -> list[Entry]:
        """What stands in one of the two queues, in order."""
        return [entry for entry in self.entries if entry.place == place]

    def reachable(self, place: Place) -> list[Entry]:
        """What a receiver may be given now or finds dead, in order."""
        if not self.spec.fifo:
            return [entry for entry in self.at(place) if entry.visible_at <= self.now]
        blocked = {entry.group for entry in self.at(place) if self.in_flight(entry)}
        found = []
        for entry in self.at(place):
            if entry.visible_at <= self.now and entry.group not in blocked:
                found.append(entry)
            else:
                blocked.add(entry.group)
        return found

    def exhausted(self, entry: Entry) -> bool:
        """Whether the next receive finds the message dead."""
        return entry.place == "jobs" and entry.receives >= self.spec.max_receives

    def in_flight(self, entry: Entry) -> bool:
        """Whether a receiver holds the message."""
        return entry.lease is not None and entry.visible_at > self.now

    def check_received(self, place: Place, bodies: Sequence[str], max_messages: int, buried: Sequence[str]) -> None:
        """Refuse a receive that the rules do not allow; `buried` went to the dead letters on the way."""
        reachable = self.reachable(place)
        alive = [entry.body for entry in reachable if not self.exhausted(entry)]
        dying = [entry.body for entry in reachable if self.exhausted(entry)]
        assert len(set(bodies)) == len(bodies), f"{bodies} holds one message twice"
        assert bool(bodies) is bool(alive), f"{bodies} of {alive}"
        assert len(bodies) <= max_messages
        assert set(bodies) <= set(alive), f"{bodies} are not all of {alive}"
        assert set(buried) <= set(dying), f"{buried} are not all of {dying}"
        if not bodies:
            assert set(buried) == set(dying), f"{buried} should be all of {dying}"
        if self.spec.fifo:
            self._check_order(reachable, bodies, buried)

    def _check_order(self, reachable: Sequence[Entry], bodies: Sequence[str], buried: Sequence[str]) -> None:
        for group in {entry.group for entry in reachable}:
            line = [entry.body for entry in reachable if entry.group == group]
            taken = [body for body in line if body in bodies or body in buried]
            assert taken == line[: len(taken)], f"{taken} leave a gap in {line}"
            received = [body for body in bodies if body in line]
            assert received == [body for body in line if body in bodies], f"{received} is not the order of {line}"

    def lease(self, body: str, seconds: float) -> int:
        """Give the message to a receiver; the number of the lease."""
        entry = self.find(body)
        self.leases += 1
        entry.lease, entry.visible_at = self.leases, self.now + seconds
        entry.receives += 1
        return self.leases

    def holds(self, body: str, place: Place, lease: int, *, late: bool = False) -> bool:
        """Whether the lease is the message's present one; `late` accepts one that ended before another began."""
        found = [entry for entry in self.at(place) if entry.body == body and entry.lease == lease]
        return any(self.in_flight(entry) or (late and not self.spec.fifo) for entry in found)

    def find(self, body: str) -> Entry:
        """The message of this body."""
        return next(entry for entry in self.entries if entry.body == body)

    def ack(self, body: str) -> None:
        """Forget the message."""
        self.entries.remove(self.find(body))

    def release(self, body: str, after: float) -> None:
        """End the lease."""
        entry = self.find(body)
        entry.lease, entry.visible_at = None, self.now + after

    def bury(self, body: str) -> None:
        """Move the message behind the other dead letters; a standard one keeps its age."""
        entry = self._move(body, "dead")
        if self.spec.fifo:
            entry.sent_at = self.now

    def redrive(self) -> list[str]:
        """Move the dead letters that nobody holds behind what waits; which ones."""
        bodies = [each.body for each in self.at("dead") if not self.in_flight(each) and each.redrives < 3]
        for body in bodies:
            entry = self._move(body, "jobs")
            entry.sent_at = self.now
            entry.redrives += 1
        return bodies

    def _move(self, body: str, place: Place) -> Entry:
        entry = self.find(body)
        self.entries.remove(entry)
        self.entries.append(entry)
        entry.place, entry.receives, entry.lease, entry.visible_at = place, 0, None, self.now
        return entry
