"""What a receiver does with its lease: ack, extend, release, reject; and how messages become dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from postroad import failpoints
from postroad.agents.sqlite import groups
from postroad.agents.sqlite.names import channel, next_places
from postroad.agents.sqlite.receipts import Receipt, read_receipt
from postroad.agents.sqlite.rows import Row, StoredEvent
from postroad.engine import Engine, Transaction, one, text_of
from postroad.errors import StaleReceipt
from postroad.queues import MAX_VISIBILITY, AckResult, Delivery, check_deliveries

_BURY: Final = """
INSERT INTO agent_dead (lane, n, place, producer, receives, at_us, error, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
DAMAGED: Final = "what is stored is not what was published"
_UNLEASE: Final = "DELETE FROM agent_lease WHERE lane = ? AND turn = ?"
_UNASIDE: Final = "DELETE FROM agent_aside WHERE lane = ? AND grp = ? AND turn = ?"
_EXPIRED: Final = """
INSERT INTO agent_lane (lane, expired) VALUES (?, 1) ON CONFLICT DO UPDATE SET expired = expired + 1
"""


class ExpiryRules:
    """Decides which messages may still be given out, and takes the others away."""

    def __init__(self, max_receives: int) -> None:
        self._max_receives = max_receives

    def keeps(self, tx: Transaction, lane: int, group: int, row: Row, event: StoredEvent | None, now_us: int) -> bool:
        """Whether the message may be given out; else it is taken away."""
        if event is None or event.expires_us <= now_us:
            tx.connection.execute(_EXPIRED, (lane,))
        elif event.is_damaged:
            # Its neighbours go on.
            self.bury(tx, lane, row, now_us=now_us, reason=DAMAGED)
        elif row.receives >= self._max_receives:
            self.bury(tx, lane, row, now_us=now_us)
        else:
            return True
        tx.connection.execute(_UNASIDE, (lane, group, row.turn))
        tx.connection.execute(_UNLEASE, (lane, row.turn))
        return False

    def bury(self, tx: Transaction, lane: int, row: Row, *, now_us: int, reason: str | None = None) -> None:
        """Put one message to the lane's dead letters in this transaction."""
        tx.must_be_durable()
        n = next_places(tx, 1)
        tx.connection.execute(
            _BURY, (lane, n, row.place, row.producer, row.receives, now_us, text_of(row.error), reason)
        )
        failpoints.hit("queue.dead_letter.before_commit")


_VALID: Final = "lane = ?1 AND turn = ?2 AND fence = ?3 AND held = 1 AND visible_us > ?4"
_ACK: Final = f"DELETE FROM agent_lease WHERE {_VALID} RETURNING grp"  # noqa: S608 - a constant
_EXTEND: Final = f"UPDATE agent_lease SET visible_us = min(?5, leased_us + ?6) WHERE {_VALID} RETURNING grp"  # noqa: S608 - a constant
_RELEASE: Final = f"""
UPDATE agent_lease SET visible_us = ?5, held = 0, error = coalesce(?6, error), due_wall_us = ?7
WHERE {_VALID} RETURNING grp
"""  # noqa: S608 - a constant
_UNDO: Final = f"""
UPDATE agent_lease SET visible_us = ?4, held = 0, receives = receives - 1 WHERE {_VALID} RETURNING grp
"""  # noqa: S608 - a constant
_BURY_OF_SETTLING: Final = f"""
DELETE FROM agent_lease WHERE {_VALID}
RETURNING grp, turn, place, producer, receives, first_us, CAST(error AS BLOB), replay, 0
"""  # noqa: S608 - a constant
_MAX_US: Final = int(MAX_VISIBILITY * 1_000_000)
_OK: Final = AckResult(True)

Change = Callable[[Receipt], Any]
"""Changes the lease of a receipt and returns a row that begins with its group; None when it is stale."""


class Settler:
    """Ends and prolongs leases of lanes."""

    def __init__(self, engine: Engine, expiry: ExpiryRules) -> None:
        self._engine = engine
        self._expiry = expiry

    def ack(self, tx: Transaction, lane: int, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Settle the messages whose receipts are valid."""
        now = self._engine.monotonic_us()
        results = self._change(tx, lane, deliveries, lambda receipt: one(tx.connection, _ACK, (*receipt, now)))
        failpoints.hit("queue.ack.before_commit")
        return results

    def extend(self, tx: Transaction, lane: int, deliveries: Sequence[Delivery], seconds: float) -> list[AckResult]:
        """Move the end of the leases, at most twelve hours from the receive."""
        now = self._engine.monotonic_us()
        until = now + int(seconds * 1_000_000)
        return self._change(
            tx, lane, deliveries, lambda receipt: one(tx.connection, _EXTEND, (*receipt, now, until, _MAX_US))
        )

    def release(
        self, tx: Transaction, lane: int, deliveries: Sequence[Delivery], after: float, error: str | None
    ) -> list[AckResult]:
        """End the leases without settling the messages."""
        now, after_us = self._engine.monotonic_us(), int(after * 1_000_000)
        due_wall_us = self._engine.now_us() + after_us if after_us else None
        return self._change(
            tx,
            lane,
            deliveries,
            lambda receipt: one(tx.connection, _RELEASE, (*receipt, now, now + after_us, error, due_wall_us)),
        )

    def undo(self, tx: Transaction, lane: int, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Take back deliveries that their receiver did not handle; they cost no receive."""
        now = self._engine.monotonic_us()
        return self._change(tx, lane, deliveries, lambda receipt: one(tx.connection, _UNDO, (*receipt, now)))

    def reject(
        self, tx: Transaction, lane: int, deliveries: Sequence[Delivery], reason: str, error: str | None
    ) -> list[AckResult]:
        """Put the messages to the dead letters now."""
        now, now_us = self._engine.monotonic_us(), self._engine.now_us()

        def bury(receipt: Receipt) -> Any:
            found = one(tx.connection, _BURY_OF_SETTLING, (*receipt, now))
            if found is not None:
                row = Row(*found[1:])
                row = row if error is None else row._replace(error=error)
                self._expiry.bury(tx, lane, row, now_us=now_us, reason=reason)
            return found

        return self._change(tx, lane, deliveries, bury)

    def _change(self, tx: Transaction, lane: int, deliveries: Sequence[Delivery], change: Change) -> list[AckResult]:
        check_deliveries(deliveries)
        results, touched = [], set()
        for delivery in deliveries:
            receipt = read_receipt(delivery.receipt)
            found = change(receipt) if receipt.lane == lane else None
            if found is None:
                results.append(_stale(delivery))
            else:
                touched.add(found[0])
                results.append(_OK)
        for group in touched:
            groups.regroup(tx, lane, group, self._engine.monotonic_us())
        if touched:
            tx.touch(channel(lane))
        return results


def _stale(delivery: Delivery) -> AckResult:
    return AckResult(False, StaleReceipt(f"message {delivery.message_id}: the lease is over"))
