"""Rows of the message table in the words of the port."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

import apsw
import msgspec

from postroad.engine import Transaction, every, one, text_of
from postroad.queues.sqlite.state import ENTRY, QueueState

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_attributes = msgspec.json.Decoder(dict[str, str])
DAMAGED: Final = "what is stored is not what was sent"

# Texts are read as bytes: only their checksum tells whether they can be decoded.
GROUP_AND_ATTRIBUTES: Final = "CAST(m.group_name AS BLOB), CAST(m.attributes AS BLOB)"
COLUMNS: Final = """m.id, m.sent_us, m.grp, m.origin, CAST(m.group_name AS BLOB), m.body, CAST(m.attributes AS BLOB),
    m.checksum"""
ERROR: Final = "CAST(lease.error AS BLOB)"
Text = str | bytes | None
"""A text that was just written, or bytes as they were read."""


class Row(NamedTuple):
    """A message with what its lease says of it."""

    id: int
    sent_us: int
    grp: int | None
    origin: int | None
    group_name: Text
    body: bytes
    attributes: Text
    checksum: int
    receives: int
    first_us: int | None
    error: Text

    @property
    def first_id(self) -> int:
        """The id it was first sent under."""
        return self.id if self.origin is None else self.origin


@lru_cache(maxsize=256)
def moment(us: int) -> datetime:
    """The time of a stored wall clock; the end of time for one that is damaged."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def write_attributes(attributes: Mapping[str, str]) -> str | None:
    """Attributes as they are stored."""
    return msgspec.json.encode(attributes).decode() if attributes else None


def read_attributes(text: Text) -> dict[str, str]:
    """Attributes as they were sent."""
    return {} if text is None else _attributes.decode(text)


def checksum(body: bytes, attributes: Text, group: Text) -> int:
    """What tells a changed body, attribute or group."""
    total = zlib.crc32(body)
    if attributes is not None:
        total = zlib.crc32(_bytes(attributes), total)
    return total if group is None else zlib.crc32(_bytes(group), total)


def is_damaged(row: Row) -> bool:
    """Whether body, attributes or group are not those that were sent."""
    if checksum(row.body, row.attributes, row.group_name) == row.checksum:
        return False
    # Earlier versions left the group out.
    return checksum(row.body, row.attributes, None) != row.checksum or not _is_text(row.group_name)


def salvaged_attributes(text: Text) -> dict[str, str]:
    """Attributes as they were sent, or what is left of them under one name."""
    try:
        return read_attributes(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {"Damaged": str(text_of(text))}


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _is_text(text: Text) -> bool:
    try:
        _bytes(text or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_RECEIPT = re.compile(r"(\d{1,19})-(\d{1,9})")
_VARIANT = 0b10 << 62
MAX_ID = (1 << 62) - 1


class MessageIds:
    """UUIDs (version 8) of 60 bits that are the file's own and 62 bits of the row id."""

    def __init__(self, salt: int) -> None:
        self._prefix = f"{salt >> 28:08x}-{salt >> 12 & 0xFFFF:04x}-8{salt & 0xFFF:03x}-"

    def text(self, row_id: int) -> str:
        """The message id of a row."""
        tail = f"{_VARIANT | row_id:016x}"
        return f"{self._prefix}{tail[:4]}-{tail[4:]}"

    def row_id(self, text: str) -> int | None:
        """The row a message was first stored in; None when the id is not of this file."""
        if _TEXT.fullmatch(text) is None or not text.startswith(self._prefix):
            return None
        return int(text[19:].replace("-", ""), 16) & MAX_ID


def channel(queue_id: int) -> str:
    """Where changes of a queue are heard."""
    return f"q{queue_id}"


def receipt(row_id: int, receives: int) -> str:
    """The proof of one receive: the receive count is the fencing token."""
    return f"{row_id}-{receives}"


def read_receipt(text: str) -> tuple[int, int]:
    """The row and receive count of a receipt; (-1, -1), which is nobody's, when it is not ours."""
    match = _RECEIPT.fullmatch(text)
    return (-1, -1) if match is None or int(match[1]) > MAX_ID else (int(match[1]), int(match[2]))


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
