"""Rows of the message table in the words of the port."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from postroad.engine.transaction import text_of

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
