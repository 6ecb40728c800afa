"""The messages of one in-memory queue with their leases: decisions only, the caller holds the lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from postroad.clock import Clock
from postroad.queues.port import Delivery, MessageState, OutgoingMessage, PeekedMessage, QueueStats, SendResult
from postroad.queues.rules import DEDUP_SECONDS, dedup_id
from postroad.queues.spec import MAX_VISIBILITY, QueueSpec


@dataclass(slots=True, kw_only=True)
class Kept:
    """A message on its shelf. `visible_at` is monotonic; `leased` says that a receipt is out for it."""

    message_id: str
    body: bytes
    attributes: dict[str, str]
    group: str | None
    sequence: int
    sent_at: datetime
    visible_at: float
    receives: int = 0
    first_received_at: datetime | None = None
    leased: bool = False
    leased_at: float = 0.0
    error: str | None = None

    def delivery(self) -> Delivery:
        """The message as its receiver sees it."""
        assert self.first_received_at is not None
        return Delivery(
            message_id=self.message_id,
            body=self.body,
            attributes=dict(self.attributes),
            group=self.group,
            receipt=f"{self.sequence}.{self.receives}",
            receive_count=self.receives,
            sent_at=self.sent_at,
            first_received_at=self.first_received_at,
            sequence=self.sequence,
        )

    def peeked(self, state: MessageState) -> PeekedMessage:
        """The message as a bystander sees it."""
        return PeekedMessage(
            message_id=self.message_id,
            body=self.body,
            attributes=dict(self.attributes),
            group=self.group,
            receive_count=self.receives,
            sent_at=self.sent_at,
            sequence=self.sequence,
            state=state,
        )


@dataclass(slots=True)
class Shelf:
    """What one queue holds, in the order of its sequence."""

    spec: QueueSpec
    clock: Clock
    messages: dict[int, Kept] = field(default_factory=dict)
    expired: int = 0
    renewed_at: float = 0.0
    _leased: dict[int, Kept] = field(default_factory=dict)
    _remembered: dict[tuple[str, ...], tuple[float, SendResult]] = field(default_factory=dict)
    _looked_for_expired_until: datetime | None = None

    def put(self, kept: Kept) -> None:
        """Add a message behind all others."""
        self.messages[kept.sequence] = kept
        expires_at = kept.sent_at + timedelta(seconds=self.spec.retention)
        if self._looked_for_expired_until is None or expires_at < self._looked_for_expired_until:
            self._looked_for_expired_until = expires_at

    def remove(self, kept: Kept) -> None:
        """Take a message off the shelf."""
        del self.messages[kept.sequence]
        self._leased.pop(kept.sequence, None)

    def clear(self) -> int:
        """Take all messages off the shelf; how many there were."""
        count = len(self.messages)
        self.messages.clear()
        self._leased.clear()
        return count

    def expire(self) -> None:
        """Drop and count what is older than the retention; without such messages it costs one comparison."""
        now = self.clock.now()
        if self._looked_for_expired_until is None or now <= self._looked_for_expired_until:
            return
        kept_from = now - timedelta(seconds=self.spec.retention)
        old = [kept for kept in self.messages.values() if kept.sent_at < kept_from]
        for kept in old:
            self.remove(kept)
        self.expired += len(old)
        self.retime()

    def retime(self) -> None:
        """Find out anew when the next message expires; needed after the retention changed."""
        oldest = min((kept.sent_at for kept in self.messages.values()), default=None)
        self._looked_for_expired_until = oldest and oldest + timedelta(seconds=self.spec.retention)

    def visible(self) -> Iterator[Kept]:
        """The messages that may be given out now, in order. Change nothing before the last one was taken."""
        now = self.clock.monotonic()
        blocked = self._locked_groups(now) if self.spec.fifo else set()
        for kept in self.messages.values():
            if kept.visible_at <= now and kept.group not in blocked:
                yield kept
            elif self.spec.fifo:
                # Whatever hides this message, those behind it in its group must not overtake it.
                blocked.add(kept.group)

    def _locked_groups(self, now: float) -> set[str | None]:
        return {kept.group for kept in self._leased.values() if kept.visible_at > now}

    def lease(self, kept: Kept, visibility: float) -> Delivery:
        """Hide the message for `visibility` seconds and hand out a new receipt."""
        self._leased[kept.sequence] = kept
        kept.leased, kept.leased_at = True, self.clock.monotonic()
        kept.visible_at = kept.leased_at + visibility
        kept.receives += 1
        kept.first_received_at = kept.first_received_at or self.clock.now()
        return kept.delivery()

    def held(self, receipt: str, *, late: bool = False) -> Kept | None:
        """The message whose lease the receipt is; `late` accepts one that ended before another began."""
        sequence, _, receives = receipt.partition(".")
        kept = self.messages.get(int(sequence)) if sequence.isdecimal() else None
        if kept is None or not kept.leased or receives != str(kept.receives):
            return None
        return kept if late or kept.visible_at > self.clock.monotonic() else None

    def extend(self, kept: Kept, seconds: float) -> bool:
        """Hide the message for `seconds` from now; False when the whole lease would be above twelve hours."""
        until = self.clock.monotonic() + seconds
        if until - kept.leased_at > MAX_VISIBILITY:
            return False
        kept.visible_at = until
        return True

    def release(self, kept: Kept, after: float, error: str | None) -> None:
        """End the lease; the message can be received again after `after` seconds."""
        self._leased.pop(kept.sequence, None)
        kept.leased, kept.visible_at = False, self.clock.monotonic() + after
        kept.error = error if error is not None else kept.error

    def state(self, kept: Kept) -> MessageState:
        """Whether the message waits, is with a receiver, or is not due yet (again)."""
        if kept.visible_at <= self.clock.monotonic():
            return "visible"
        return "in_flight" if kept.leased else "delayed"

    def stats(self) -> QueueStats:
        """How many messages are in which state."""
        states = [self.state(kept) for kept in self.messages.values()]
        oldest = min((kept.sent_at for kept in self.messages.values()), default=self.clock.now())
        return QueueStats(
            visible=states.count("visible"),
            in_flight=states.count("in_flight"),
            delayed=states.count("delayed"),
            oldest_age_seconds=max(0.0, (self.clock.now() - oldest).total_seconds()),
            expired=self.expired,
        )

    def remember(self, message: OutgoingMessage, body: bytes, result: SendResult) -> None:
        """Recognise the message again for five minutes, settled or not."""
        if self.spec.fifo:
            self._remembered[self._key(message, body)] = (self.clock.monotonic() + DEDUP_SECONDS, result)

    def recall(self, message: OutgoingMessage, body: bytes) -> SendResult | None:
        """What was answered to the first send of the same deduplication id."""
        if not self.spec.fifo:
            return None
        self._forget()
        found = self._remembered.get(self._key(message, body))
        return None if found is None else found[1]

    def _key(self, message: OutgoingMessage, body: bytes) -> tuple[str, ...]:
        scope = (message.group or "",) if self.spec.dedup_scope == "group" else ()
        return (*scope, dedup_id(message, body))

    def _forget(self) -> None:
        now = self.clock.monotonic()
        # Entries stand in the order of their sends, so the oldest come first.
        while self._remembered and next(iter(self._remembered.values()))[0] <= now:
            del self._remembered[next(iter(self._remembered))]
