"""Ids of journal events: UUIDv7 of the event's own millisecond, in the order in which one process makes them."""

from __future__ import annotations

import itertools
import os
from uuid import UUID

from postroad.events.ids import uuid7_of

_made = itertools.count()
_COUNTER_MASK = (1 << 32) - 1
_RANDOM_BYTES = 5


def new_event_id(timestamp: int) -> UUID:
    """A new id of this millisecond, greater than every id this process made for it before."""
    # The counter goes on through all milliseconds: a sender may come back to one that it had left.
    counter = next(_made) & _COUNTER_MASK
    return uuid7_of(timestamp, counter << 42 | int.from_bytes(os.urandom(_RANDOM_BYTES), "big"))
