"""FIFO groups: locked while one of their messages is with a receiver, gone when they hold none."""

from __future__ import annotations

from typing import Final

from postroad.engine.transaction import Transaction, one
from postroad.queues.sqlite.ids import channel
from postroad.queues.sqlite.state import QueueState

_LOCKED_UNTIL: Final = "SELECT max(visible_us) FROM lease WHERE grp = ? AND held = 1"
_HEAD: Final = """
SELECT max(coalesce(m.due_us, 0), coalesce(lease.visible_us, 0))
FROM message AS m LEFT JOIN lease ON lease.id = m.id WHERE m.grp = ? ORDER BY m.id LIMIT 1
"""
_SET: Final = "UPDATE grp SET visible_us = ? WHERE id = ?"
_DELETE: Final = "DELETE FROM grp WHERE id = ?"


def regroup(tx: Transaction, state: QueueState, group: int, monotonic_us: int) -> None:
    """Set when the group is free again after its leases or messages changed; remove it when it is empty."""
    head = one(tx.connection, _HEAD, (group,))
    if head is None:
        tx.connection.execute(_DELETE, (group,))
        return
    locked_until = one(tx.connection, _LOCKED_UNTIL, (group,))[0] or 0
    # A group that becomes free goes behind those that are free already, so that none starves.
    tx.connection.execute(_SET, (max(locked_until, head[0], monotonic_us), group))
    if locked_until <= monotonic_us:
        tx.touch(channel(state.id))
