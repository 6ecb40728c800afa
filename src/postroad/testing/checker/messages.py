"""What is known about each message: published, received, handled, dead. Invariants I1 to I5, I7 and I17."""

from __future__ import annotations

from msgspec import structs

from postroad.testing.checker import history as lines, leases
from postroad.testing.checker.balance import Balance
from postroad.testing.checker.history import Name, Run
from postroad.testing.checker.leases import Copy, Faults
from postroad.testing.checker.order import Order
from postroad.testing.checker.report import Blame, Counts


class Message:
    """A message, and its copy in each subscription that has shown one."""

    __slots__ = ("copies", "doubtful", "key", "n", "oks", "publisher", "settled", "sha", "subs", "unknown")

    def __init__(self, sha: str | None, key: Name | None, n: int) -> None:
        self.sha, self.key, self.n = sha, key, n
        self.publisher: str | None = None
        self.subs: list[str] = []
        self.oks = self.unknown = self.settled = 0
        self.copies: dict[str, Copy] = {}
        self.doubtful = False
        """Whether it must be kept to the end, which alone shows whether it is all right."""

    @property
    def resent(self) -> bool:
        """Whether it may have been published more than once: an `ok` answers the `unknown` before it."""
        return max(self.oks, self.unknown) > 1

    @property
    def outcome(self) -> str:
        """What became of publishing it: a `fail` answers one `unknown` before it."""
        return "ok" if self.oks else "unknown" if self.unknown else "fail"


class Messages:
    """All messages that are not settled yet, and in `effects` handled ones on the left and effects on the right.

    A message that was handled and acked in every subscription is forgotten. In the first reading `blame` therefore
    only takes note of whatever looks wrong; in the second reading, without `order`, these few are kept to the end.
    """

    def __init__(
        self, run: Run, faults: Faults, counts: Counts, effects: Balance, blame: Blame, order: Order | None = None
    ) -> None:
        self._run, self._faults, self._counts, self._effects = run, faults, counts, effects
        self._blame, self._order = blame, order
        self.open: dict[Name, Message] = {}
        self.recoveries: list[float] = []

    def publish(self, line: lines.Publish) -> None:
        message = self.open.get(line.id)
        if message is None:
            message = self.open[line.id] = Message(line.sha, line.key, line.n)
        else:
            self._compare(message, line, None)
        if message.publisher is None:
            self._counts.messages += 1
        else:
            self._count_outcome(message, -1)
        message.publisher = line.p
        message.subs = self._run.subscriptions.get(line.topic, [])
        if line.outcome == "ok":
            message.oks += 1
        elif line.outcome == "unknown":
            message.unknown += 1
        elif message.unknown:
            message.unknown -= 1
        self._count_outcome(message, 1)
        if self._order is not None:
            self._order.published(message, line)
        if message.settled:
            self._forget_if_settled(line.id, message)

    def _is_resent(self, message: Message) -> bool:
        """Whether there may be several copies of a message, so that nobody can tell their receives apart."""
        return message.resent or (self._run.copies and self._faults.total > 0)

    def _count_outcome(self, message: Message, by: int) -> None:
        outcome, counts = message.outcome, self._counts
        if outcome == "ok":
            counts.publishes_ok += by
        elif outcome == "unknown":
            counts.publishes_unknown += by
        else:
            counts.publishes_failed += by

    def _compare(self, message: Message, line: lines.Publish | lines.Receive, sub: str | None) -> None:
        if message.sha is None:
            message.sha, message.key, message.n = line.sha, line.key, line.n
        elif line.sha != message.sha or line.key != message.key or line.n != message.n:
            known, found = (message.sha, message.key, message.n), (line.sha, line.key, line.n)
            self._blame("I3", line.id, sub, f"sha, key and n were {known}, here they are {found}")

    def receive(self, line: lines.Receive) -> None:
        message = self.open.get(line.id)
        if message is None:
            message = self.open[line.id] = Message(line.sha, line.key, line.n)
        else:
            self._compare(message, line, line.sub)
        _, copy = self._find(line.id, line.sub)
        if not line.receive_count:
            # Nobody counts the reads of a stream, so the lines do.
            line = structs.replace(line, receive_count=copy.highest + 1)
        self._counts.deliveries += 1
        if copy.receives or line.receive_count != 1:
            self._counts.redeliveries += 1
            for invariant, detail in leases.received_again(
                copy, line, self._is_resent(message), self._run, self._faults
            ):
                self._blame(invariant, line.id, line.sub, detail)
        copy.receive(line)
        if self._order is not None:
            self._order.received(message, line)

    def handled(self, line: lines.Handled) -> None:
        """A handler ended; one that ends after its message was forgotten has been counted."""
        is_forgotten = self._order is not None and line.id not in self.open
        message, copy = self._find(line.id, line.sub)
        if line.outcome != "ok":
            copy.freed = True
        elif copy.handled_at is None:
            copy.handled_at = line.t
            if is_forgotten:
                return
            self._effects.left(line.sub, line.id)
            if copy.receives > 1:
                self.recoveries.append(line.t - copy.first_at)
            if self._order is not None:
                self._order.handled(message, line)
        if self._order is not None:
            self._order.ran(copy, line)

    def effect(self, line: lines.Effect) -> None:
        self._counts.effects += 1
        self._effects.right(line.sub, line.id)

    def settle(self, line: lines.Settling) -> None:
        if line.outcome == "fail":
            return
        message, copy = self._find(line.id, line.sub)
        if line.outcome == "ok" and not self._is_resent(message) and leases.is_stale(copy, line):
            self._blame("I12", line.id, line.sub, f"{type(line).__name__.lower()} with old receipt {line.receipt} ok")
        if type(line) is not lines.Ack:
            copy.freed = True
            copy.undone |= isinstance(line, lines.Release) and line.undone
        elif line.outcome == "ok" and not copy.acked:
            copy.acked = True
            message.settled += copy.handled_at is not None
            self._forget_if_settled(line.id, message)

    def _forget_if_settled(self, id: Name, message: Message) -> None:
        if self._order is None or message.doubtful or not message.oks:
            return
        if message.settled >= max(len(message.subs), 1):
            del self.open[id]

    def peek(self, line: lines.Peek) -> None:
        message, copy = self._find(line.id, line.sub)
        if not self._is_resent(message):
            for detail in leases.peeked(copy, line, self._faults):
                self._blame("I14", line.id, line.sub, detail)
        message.doubtful |= copy.peeked is not None

    def dead(self, line: lines.Dead) -> None:
        self._counts.dead_letters += 1
        self._find(line.id, line.sub)[1].dead += 1

    def left(self, line: lines.Left) -> None:
        copy = self._find(line.id, line.sub)[1]
        if not copy.left:
            self._blame("I17", line.id, line.sub, "still waiting, delayed or in flight after the drain")
        copy.left = True

    def _find(self, id: Name, sub: str) -> tuple[Message, Copy]:
        """Return the message and its copy; new ones if it was never received, or is forgotten."""
        message = self.open.get(id)
        if message is None:
            message = self.open[id] = Message(None, None, 0)
        copy = message.copies.get(sub)
        if copy is None:
            copy = message.copies[sub] = Copy()
        return message, copy

    def finish(self) -> None:
        """Check what only the end shows, about the messages that are still known."""
        for id, message in self.open.items():
            if message.publisher is None or message.outcome == "fail":
                for sub in message.copies:
                    how = "was never published" if message.publisher is None else "failed to be published"
                    self._blame("I2", id, sub, f"it was delivered, but it {how}")
            elif message.oks and self._run.drained:
                self._find_missing(id, message)
            for sub, copy in message.copies.items():
                if copy.peeked is not None:
                    self._blame("I14", id, sub, f"peek shows receive_count {copy.peeked.receive_count} too early")
                for detail in leases.died(copy, self._is_resent(message), self._run, self._faults):
                    self._blame("I15", id, sub, detail)

    def _find_missing(self, id: Name, message: Message) -> None:
        for sub in message.subs:
            copy = message.copies.get(sub)
            if copy is None and message.copies:
                others = ", ".join(message.copies)
                self._blame("I7", id, sub, f"published, and delivered to {others}, but never here")
            elif copy is None:
                self._blame("I1", id, sub, "published, but never delivered")
            elif copy.handled_at is None and not copy.dead and not copy.left:
                self._blame("I1", id, sub, f"published and received {copy.receives} times, but never handled or dead")
