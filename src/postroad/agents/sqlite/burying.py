"""Taking messages out of a lane other than by ack: to its dead letters, or because their time is over."""

from __future__ import annotations

from typing import Final

from postroad import failpoints
from postroad.agents.sqlite.names import next_places
from postroad.agents.sqlite.rows import Row, StoredEvent
from postroad.engine.transaction import Transaction, text_of

_BURY: Final = """
INSERT INTO agent_dead (lane, n, place, producer, receives, at_us, error, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
DAMAGED: Final = "what is stored is not what was published"
_UNLEASE: Final = "DELETE FROM agent_lease WHERE lane = ? AND turn = ?"
_UNASIDE: Final = "DELETE FROM agent_aside WHERE lane = ? AND grp = ? AND turn = ?"
_EXPIRED: Final = """
INSERT INTO agent_lane (lane, expired) VALUES (?, 1) ON CONFLICT DO UPDATE SET expired = expired + 1
"""


class Undertaker:
    """Decides which messages may still be given out, and takes the others away."""

    def __init__(self, max_receives: int) -> None:
        self._max_receives = max_receives

    def keeps(
        self, tx: Transaction, lane: int, group: int, row: Row, event: StoredEvent | None, now_us: int
    ) -> bool:  # fmt: skip
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
        )  # fmt: skip
        failpoints.hit("queue.dead_letter.before_commit")
