"""The ring of settled messages: what became of a message that is no longer there."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import apsw
import msgspec

from postroad.engine.transaction import every, text_of
from postroad.queues.sqlite.rows import moment
from postroad.queues.sqlite.state import ENTRY

_FIND: Final = """
SELECT at_us, kind, entries, CAST(detail AS BLOB), CAST(name AS BLOB)
FROM trail LEFT JOIN queue ON queue.id = trail.queue
WHERE instr(entries, ?) ORDER BY n
"""


class Settled(msgspec.Struct, frozen=True):
    """One thing that happened to a message: acked, failed, dead or expired."""

    what: str
    at: datetime
    queue: str | None
    """None when the queue was deleted since."""
    receives: int
    sent_at: datetime
    first_received_at: datetime | None
    detail: str | None


def find_settled(connection: apsw.Connection, first_id: int) -> list[Settled]:
    """What the ring still knows of the message that was first sent under this id, oldest first."""
    wanted = first_id.to_bytes(8)
    found = []
    for at_us, kind, entries, detail, name in every(connection, _FIND, (wanted,)):
        for row_id, receives, sent_us, first_us in ENTRY.iter_unpack(entries):
            if row_id == first_id:
                first = moment(first_us) if first_us else None
                times = (moment(sent_us), first)
                found.append(Settled(kind, moment(at_us), text_of(name), receives, *times, text_of(detail)))
    return found
